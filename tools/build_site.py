"""Build the documentation site with Sphinx: `build_site.py [OUTPUT]`, by default into build/site.

The sources are docs/ as it stands. The navigation comes from docs/README.md: each of its sections that links pages is
a part of the menu, in that order. A warning fails the build. The site is searchable and works from the file system.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ROOT / ".venv" / "docs-site"  # from requirements/docs.txt, see the Makefile
_SECTION = re.compile(r"^## +(?P<title>.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?P<page>[A-Za-z0-9/-]+\.md)(?:#[^)]*)?\)")
_RELATIVE = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#\s]+)(?:#[^)]*)?\)")


def menu(text: str) -> list[tuple[str, list[str]]]:
    """The sections of the first page that link pages, each page where it is linked first."""
    parts = _SECTION.split(text)
    seen: set[str] = set()
    found = []
    for title, section in zip(parts[1::2], parts[2::2], strict=True):
        pages = []
        for match in _LINK.finditer(section):
            if match["page"] not in seen:
                seen.add(match["page"])
                pages.append(match["page"])
        if pages:
            found.append((title, pages))
    return found


def index_of(text: str) -> str:
    """The part of the first page that is the index: what leads readers by need comes before it and is no menu."""
    start = text.find("<!-- index -->")
    return text[start:] if start >= 0 else text


def toctrees(text: str) -> str:
    trees = []
    for title, pages in menu(index_of(text)):
        lines = "\n".join(page.removesuffix(".md") for page in pages)
        trees.append(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    return "".join(trees)


def prepare(target: Path) -> None:
    """Copy the sources, add the menu, and turn links to files outside of docs/ into plain text."""
    shutil.copytree(DOCS, target, dirs_exist_ok=True)
    for page in target.rglob("*.md"):
        text = _RELATIVE.sub(partial(_inside, target, page), page.read_text())
        if page == target / "README.md":
            text += toctrees(text)
        page.write_text(text)
    decisions = target / "explanation" / "decisions"
    names = sorted(page.stem for page in decisions.glob("[0-9]*.md"))
    with (decisions / "README.md").open("a") as file:
        file.write("\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")


def _inside(docs: Path, page: Path, link: re.Match[str]) -> str:
    """A link as it is, or only its text if it leads out of docs/: to a file of the repository."""
    leads_to = Path(os.path.normpath(page.parent / link["path"]))
    return link[0] if leads_to.is_relative_to(docs) else link["text"]


def build(output: Path) -> int:
    if not PACKAGES.is_dir():
        print("The packages of the site are not installed: run `make docs`.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "docs"
        prepare(source)
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
        command += ["-c", str(ROOT / "tools" / "docs_site"), "-d", f"{directory}/trees", str(source), str(output)]
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PACKAGES)}, check=False).returncode
    if code == 0:
        (output / "index.html").write_text((output / "README.html").read_text())
        print(f"The site is in {output}: open {output / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "site"))

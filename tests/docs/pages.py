"""The pages of the documentation, and the code blocks, links and headings in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


@dataclass(slots=True, frozen=True)
class Block:
    """A fenced block. The first word after the fence is the language, a second one says how it is run."""

    page: Path
    line: int
    language: str
    role: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        words = match["info"].split()
        language, role = [*words, "", ""][:2]
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, language, role, match["text"]))
    return found


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    return [match["target"] for match in _LINK.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """The names that a link can point to: headings as the usual Markdown renderers name them."""
    headings = (match["text"].replace("`", "").lower() for match in _HEADING.finditer(prose(page)))
    return {_NOT_IN_ANCHOR.sub("", heading).replace(" ", "-") for heading in headings}

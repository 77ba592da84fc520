"""Builds the wheel and the source distribution of Baton into dist/, without network and outside of the source tree.

python tools/build_dist.py [DIRECTORY]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
# Runs in the copy, so that no build directory and no egg-info is left in the source tree.
_BUILD = """
import sys
from setuptools import build_meta

where = sys.argv[1]  # setuptools changes sys.argv
print(build_meta.build_sdist(where))
print(build_meta.build_wheel(where))
"""


def build(directory: Path) -> list[Path]:
    """Build into a directory, which is created. Returns the new files: the source distribution and the wheel."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="baton-dist-") as copy:
        for name in FILES:
            shutil.copy2(ROOT / name, copy)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", Path(copy) / "src", ignore=ignored)
        command = [sys.executable, "-c", _BUILD, str(directory.resolve())]
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The build failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return [directory / line for line in done.stdout.splitlines() if line.endswith((".tar.gz", ".whl"))]


def main(words: list[str]) -> int:
    for path in build(Path(words[0]) if words else ROOT / "dist"):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The page on architecture names every folder, and no file that is not there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
SOURCE = ROOT / "src/batonq"
UNNAMED = {"sync.py"}  # it only hands on names of client/


def test_every_folder_and_module_of_the_package_is_named() -> None:
    folders = {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")}
    modules = {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("_")}
    assert sorted(name for name in folders | modules - UNNAMED if f"`{name}" not in PAGE) == []


def test_every_file_that_is_named_is_there() -> None:
    seen = 0
    for line in PAGE.splitlines():
        folder = re.match(r"\| `([a-z_/]+/)`", line)
        for name in re.findall(r"`([a-z0-9_/]+\.py)`", line):
            places = [SOURCE / name, ROOT / name, SOURCE / (folder[1] if folder else "") / name]
            assert any(place.is_file() for place in places), name
            seen += 1
        for name in re.findall(r"`([a-z0-9_/]+/)`", line):
            places = [SOURCE / name, ROOT / name, SOURCE / (folder[1] if folder else "") / name]
            assert any(place.is_dir() for place in places), name
            seen += 1
    assert seen > 50

"""Links between pages lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, page_id, pages


def _is_external(target: str) -> bool:
    return target.startswith(("http://", "https://", "mailto:"))


def _resolve(page: Path, target: str) -> tuple[Path, str]:
    path, _, anchor = target.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in links(page):
        if _is_external(target):
            continue
        file, anchor = _resolve(page, target)
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        internal = (target for target in links(page) if not _is_external(target))
        files = (_resolve(page, target)[0] for target in internal)
        waiting += [file for file in files if file.suffix == ".md" and file.exists()]
    assert set(pages()) - reached == set()

"""The documentation site: it builds without a warning, has every page in its menu, and needs no other host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tools import build_site

_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class _Loaded(HTMLParser):
    """The addresses that a browser loads by itself, and those of links."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _LOADS and given.get(_LOADS[tag]):
            self.loaded.append(given[_LOADS[tag]] or "")
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("site")
    assert build_site.build(output) == 0
    return output


def _read(page: Path) -> _Loaded:
    parser = _Loaded()
    parser.feed(page.read_text())
    return parser


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = {link.partition("#")[0] for link in _read(site / "index.html").links}
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if str(page) not in menu and "decisions/0" not in str(page)] == ["README.html"]


def test_pages_load_nothing_from_another_host_and_every_file_exists(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in _read(page).loaded:
            assert "//" not in address and not address.startswith("/"), (page.name, address)
            path = re.split(r"[?#]", address)[0]
            if path and not address.startswith("data:"):
                assert (page.parent / path).exists(), (page.name, address)


def test_the_search_index_knows_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "how-to/dead-letters-and-redrive" in index and "visibl" in index

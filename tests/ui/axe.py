"""Accessibility, checked with axe-core (tests/ui/vendor)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from playwright.sync_api import Page

_SOURCE = Path(__file__).parent / "vendor" / "axe.min.js"
_RUN = """
async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(
  found => [found.impact, found.id, found.help, found.nodes.slice(0, 5).map(node => node.html.slice(0, 200))])
"""
BAD = ("serious", "critical")


@cache
def _source() -> str:
    return _SOURCE.read_text(encoding="utf-8")


def findings(page: Page) -> list[str]:
    """The serious and critical findings on a page."""
    page.evaluate(_source())  # by the debugger, which the page's content security policy does not concern
    return [f"{impact}: {rule}: {text}: {nodes}" for impact, rule, text, nodes in page.evaluate(_RUN) if impact in BAD]


def assert_accessible(page: Page) -> None:
    found = findings(page)
    assert not found, f"{page.url}\n" + "\n".join(found)

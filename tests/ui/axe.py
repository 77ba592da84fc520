"""Accessibility, checked with axe-core (tests/ui/vendor)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from playwright.sync_api import Page

_SOURCE = Path(__file__).parent / "vendor" / "axe.min.js"
_RUN = """
async rules => (await axe.run(document, {resultTypes: ['violations'], ...rules})).violations.map(
  found => [found.impact, found.id, found.help, found.nodes.slice(0, 5).map(node => node.html.slice(0, 200))])
"""
BAD = ("serious", "critical")


@cache
def _source() -> str:
    return _SOURCE.read_text(encoding="utf-8")


def findings(page: Page, *rules: str) -> list[str]:
    """The serious and critical findings on a page: of all rules, or of these."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_source())  # by the debugger, which the page's content security policy does not concern
    found = page.evaluate(_RUN, {"runOnly": list(rules)} if rules else {})
    return [f"{impact}: {rule}: {text}: {nodes}" for impact, rule, text, nodes in found if impact in BAD]


def assert_accessible(page: Page, *rules: str) -> None:
    found = findings(page, *rules)
    assert not found, f"{page.url}\n" + "\n".join(found)

"""A browser page that remembers everything that must not happen on a page of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Response

# What a script of an attacker calls in the payloads of tests/ui/xss.py.
RAN = "xssRan"
_REPORT = "reportViolation"
_INIT = f"""
document.addEventListener('securitypolicyviolation', event => window.{_REPORT}(
  [event.violatedDirective, event.blockedURI, event.sourceFile, event.lineNumber, event.sample].join(' ')
));
"""
_LOCAL_SCHEMES = {"data", "blob", "about"}
PROBLEMS_MAX = 50


class Watch:
    """Watches all pages of a browser context. `problems` must be empty at the end of a test."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []  # path and query of each request to the server
        self._host = urlsplit(url).netloc
        self._expected: tuple[str, ...] = ()
        context.expose_function(RAN, lambda *given: self._note(f"a script of an attacker ran: {given}"))
        context.expose_function(_REPORT, lambda text: self._note(f"content security policy: {text}"))
        context.add_init_script(_INIT)
        context.on("page", self._watch)
        context.on("request", self._asked)
        context.on("response", self._answered)

    @contextmanager
    def expecting(self, *texts: str) -> Iterator[None]:
        """Problems that contain one of these texts are what the test is about."""
        before, self._expected = self._expected, (*self._expected, *texts)
        try:
            yield
        finally:
            self._expected = before

    def assert_clean(self) -> None:
        assert not self.problems, "\n".join(self.problems)

    def _note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX and not any(text in problem for text in self._expected):
            self.problems.append(problem)

    def _watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self._note(f"uncaught: {error} on {page.url}"))
        page.on("dialog", self._dialog)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._note(f"console {message.type}: {message.text} at {_place(message.location)}")

    def _dialog(self, dialog: Dialog) -> None:
        self._note(f"dialog: {dialog.type} {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in _LOCAL_SCHEMES:
            return
        if parts.netloc != self._host:
            self._note(f"request to another host: {request.url[:200]}")
        self.requests.append(parts.path + (f"?{parts.query}" if parts.query else ""))

    def _answered(self, response: Response) -> None:
        if response.status >= 500:
            self._note(f"{response.request.method} {response.url} answered {response.status}")


def _place(location: Any) -> str:
    return f"{location.get('url', '')}:{location.get('lineNumber', '')}"

"""A real Chromium and real servers. Without a Chromium the tests that need one are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.ui.servers import Rest, UiServer
from tests.ui.watch import Watch
from tools.browser import find_browser, why_missing

FLAGS = (
    "--no-sandbox",  # tests often run as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
WAIT_MS = 60_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_browser() is None:
        for item in items:
            if "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=f"needs a browser: {why_missing()}"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    """A development server for all tests; each uses queues of its own."""
    with UiServer(tmp_path_factory.mktemp("ui")) as running:
        yield running


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    """A secured server."""
    with UiServer(tmp_path_factory.mktemp("ui-secured"), "--secure") as running:
        yield running


@pytest.fixture
def rest(server: UiServer) -> Rest:
    return server.rest


Open = Callable[..., "Opened"]


class Opened:
    """A page of a server, in a browser context of its own, and what went wrong on it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.set_default_timeout(WAIT_MS)
        self.url = url
        self.context = context
        self.watch = Watch(context, url)
        self.page: Page = context.new_page()

    def go(self, path: str, status: int = 200) -> Page:
        response = self.page.goto(self.url + path)
        assert response is not None and response.status == status, (path, response and response.status)
        return self.page


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """`open_page(server, viewport=…)`: any option of a browser context. What went wrong fails the test at its end."""
    with ExitStack() as stack:
        opened: list[Opened] = []

        def open_one(server: UiServer, **options: Any) -> Opened:
            context = browser.new_context(**options)
            stack.callback(context.close)
            opened.append(Opened(context, server.url))
            return opened[-1]

        yield open_one
        for one in opened:
            one.watch.assert_clean()


@pytest.fixture
def opened(open_page: Open, server: UiServer) -> Opened:
    """A page of the development server."""
    made: Opened = open_page(server)
    return made

"""The harness notices what it is for: each test shows it a page that does what no page of ours may do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from tests.ui import axe
from tests.ui.conftest import Opened
from tests.ui.xss import MARKUP, poke

POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'"
PAGES = {
    "/good": ("", "<html lang=en><title>Good</title><main><h1>Good</h1></main>"),
    "/console": ("", "<script>console.error('on the console')</script>"),
    "/throws": ("", "<script>throw new Error('thrown')</script>"),
    "/policy": (POLICY, "<script>var x = 1</script>"),
    "/outside": ("", "<img src='http://localhost:9/picture.png' alt=''>"),
    "/dialog": ("", "<script>alert('here')</script>"),
    "/unlabelled": ("", "<html lang=en><title>No label</title><main><h1>No label</h1><input></main>"),
    "/poke": ("", "<p onmouseover=\"xssRan('over')\">text</p>"),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/payload?"):
            policy, text = "", MARKUP[int(self.path.rpartition("?")[2])]
        elif self.path == "/broken":
            policy, text = "", ""
        else:
            policy, text = PAGES.get(self.path, ("", ""))
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(f"<!doctype html>{text}".encode())

    def log_message(self, format: str, *given: object) -> None:
        pass


@pytest.fixture(scope="module")
def bad_site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join(60)


@pytest.fixture
def visit(browser: Browser, bad_site: str) -> Iterator[Opened]:
    context = browser.new_context()
    yield Opened(context, bad_site)
    context.close()


def problems(visit: Opened, path: str) -> str:
    visit.page.goto(visit.url + path)
    visit.page.wait_for_load_state("load")
    visit.page.evaluate("() => 0")  # events that came before are here now
    return "\n".join(visit.watch.problems)


def test_a_good_page_has_no_problem(visit: Opened) -> None:
    assert problems(visit, "/good") == ""
    assert axe.findings(visit.page) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/console", "console error: on the console"),
        ("/throws", "uncaught: thrown"),
        ("/policy", "content security policy: script-src-elem inline"),
        ("/outside", "request to another host: http://localhost:9/picture.png"),
        ("/dialog", "dialog: alert here"),
        ("/broken", "/broken answered 500"),
    ],
)
def test_a_bad_page_has_one(visit: Opened, path: str, problem: str) -> None:
    assert problem in problems(visit, path)


def test_an_expected_problem_is_none(visit: Opened) -> None:
    with visit.watch.expecting("on the console"):
        assert problems(visit, "/console") == ""
    assert "on the console" in problems(visit, "/console")


def test_axe_finds_a_field_without_a_label(visit: Opened) -> None:
    visit.page.goto(visit.url + "/unlabelled")
    assert "critical: label" in axe.findings(visit.page)[0]


def test_handlers_in_attributes_are_poked(visit: Opened) -> None:
    visit.page.goto(visit.url + "/poke")
    poke(visit.page)
    assert "a script of an attacker ran" in "\n".join(visit.watch.problems)


@pytest.mark.parametrize("number", range(len(MARKUP)))
def test_every_payload_works_on_a_page_that_does_not_escape(visit: Opened, number: int) -> None:
    """Else the corpus would show nothing."""
    visit.page.goto(f"{visit.url}/payload?{number}")
    poke(visit.page)
    assert visit.watch.problems

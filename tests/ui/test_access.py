"""Who may see and change what, in a browser: sign-in, expiry, forms of other sites, read-only mode, roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Open
from tests.ui.servers import Rest, UiServer, wait_for

PAGES = ("/ui", "/ui/keys", "/ui/jobs", "/ui/alarms", "/ui/workers", "/ui/cluster", "/ui/reports", "/ui/dead-letters")


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Admin token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def sign_in_with_key(page: Page, key: dict[str, Any]) -> None:
    page.get_by_text("Use an access key instead").click()
    page.get_by_label("Access key id").fill(key["keyId"])
    page.get_by_label("Secret").fill(key["secret"])
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.parametrize("path", PAGES)
def test_a_secured_server_shows_nothing_without_signing_in(open_page: Open, secured: UiServer, path: str) -> None:
    page = open_page(secured).go(path)
    expect(page.locator("h1")).to_have_text("Sign in")


def test_signing_in_leads_to_the_wanted_page_and_out_again(open_page: Open, secured: UiServer) -> None:
    opened = open_page(secured)
    page = opened.go("/ui/keys")
    with opened.watch.expecting("status of 403"):
        sign_in(page, "wrong")
        expect(page.locator(".problem")).to_contain_text("not valid")
    sign_in(page, secured.token)
    expect(page.locator("h1")).to_have_text("Keys")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.goto(secured.url + "/ui/keys")
    expect(page.locator("h1")).to_have_text("Sign in")


def test_the_token_is_in_no_address_and_no_cookie(open_page: Open, secured: UiServer) -> None:
    opened = open_page(secured)
    sign_in(opened.go("/ui/keys"), secured.token)
    expect(opened.page.locator("h1")).to_have_text("Keys")
    cookies = opened.context.cookies()
    assert cookies and all(cookie.get("httpOnly") and cookie.get("sameSite") in ("Strict", "Lax") for cookie in cookies)
    assert all(secured.token not in str(cookie) for cookie in cookies)
    assert all(secured.token not in request for request in opened.watch.requests)


def test_a_session_ends_when_its_key_expires(open_page: Open, secured: UiServer) -> None:
    key = secured.rest("POST", "/v1/keys", {"name": "short", "role": "admin", "expiresInSeconds": 4})
    opened = open_page(secured)
    page = opened.go("/ui/keys")
    sign_in_with_key(page, key)
    expect(page.locator("h1")).to_have_text("Keys")

    def ended() -> bool:
        page.goto(secured.url + "/ui/keys")
        return page.locator("h1").inner_text() == "Sign in"

    wait_for(ended)


def test_a_session_ends_when_its_key_is_disabled(open_page: Open, secured: UiServer) -> None:
    key = secured.rest("POST", "/v1/keys", {"name": "disabled", "role": "admin"})
    page = open_page(secured).go("/ui/keys")
    sign_in_with_key(page, key)
    expect(page.locator("h1")).to_have_text("Keys")
    secured.rest("POST", f"/v1/keys/{key['keyId']}:disable")
    page.goto(secured.url + "/ui/keys")
    expect(page.locator("h1")).to_have_text("Sign in")


def test_a_key_that_may_only_read_sees_no_buttons(open_page: Open, secured: UiServer) -> None:
    key = secured.rest("POST", "/v1/keys", {"name": "reader", "role": "read"})
    opened = open_page(secured)
    page = opened.go("/ui/keys")
    sign_in_with_key(page, key)
    expect(page.locator("h1")).to_have_text("Keys")
    expect(page.get_by_role("button", name="Create the key")).to_have_count(0)
    with opened.watch.expecting("status of 403"):
        answer = opened.context.request.post(secured.url + "/ui/keys", form={"name": "more"})
    assert answer.status == 403


# --- forms ------------------------------------------------------------------------------------------


@pytest.fixture
def create_forged(rest: Rest) -> Iterator[str]:
    """The name that a forged form would create; it must not exist at the end."""
    yield "forged"
    assert all(key["name"] != "forged" for key in rest("GET", "/v1/keys")["keys"])


def test_a_form_without_its_token_is_refused(open_page: Open, server: UiServer, create_forged: str) -> None:
    opened = open_page(server)
    page = opened.go("/ui/keys")
    page.evaluate("() => document.querySelectorAll('[name=form_token]').forEach(one => one.remove())")
    page.get_by_label("Name").fill(create_forged)
    with opened.watch.expecting("status of 403"):
        page.get_by_role("button", name="Create the key").click()
        expect(page.locator("#verdict")).to_contain_text("not valid any more")


def test_the_token_of_another_session_is_refused(open_page: Open, server: UiServer, create_forged: str) -> None:
    other = open_page(server).go("/ui/keys").locator("[name=form_token]").first.input_value()
    opened = open_page(server)
    page = opened.go("/ui/keys")
    page.evaluate(
        "value => document.querySelectorAll('[name=form_token]').forEach(one => { one.value = value; })", other
    )
    page.get_by_label("Name").fill(create_forged)
    with opened.watch.expecting("status of 403"):
        page.get_by_role("button", name="Create the key").click()
        expect(page.locator("#verdict")).to_contain_text("not valid any more")


def test_a_form_of_another_site_is_refused(open_page: Open, server: UiServer, create_forged: str) -> None:
    """Another port is another origin: a page there posts with the visitor's cookies."""
    opened = open_page(server)
    token = opened.go("/ui/keys").locator("[name=form_token]").first.input_value()
    form = (
        f'<form method=post action="{server.url}/ui/keys"><input name=name value={create_forged}>'
        f'<input name=form_token value="{token}"></form>'
    )
    opened.context.route("http://localhost:9/", lambda route: route.fulfill(body=form, content_type="text/html"))
    with opened.watch.expecting("status of 403", "request to another host"):
        opened.page.goto("http://localhost:9/")
        with opened.page.expect_navigation() as arrived:
            opened.page.evaluate("() => document.forms[0].submit()")
    assert arrived.value.status == 403


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    with UiServer(tmp_path_factory.mktemp("read-only"), "--read-only") as running:
        running.rest("POST", "/v1/queues", {"name": "orders", "deadLetterQueue": "orders-dead"})
        yield running


@pytest.mark.parametrize("path", ["/ui/keys", "/ui/jobs", "/ui/alarms", "/ui/queues/orders-dead/dead-letters"])
def test_a_read_only_dashboard_has_no_forms_that_change(open_page: Open, read_only: UiServer, path: str) -> None:
    page = open_page(read_only).go(path)
    expect(page.locator(".badge", has_text="read-only")).to_have_count(1)
    expect(page.locator("main form[method=post]")).to_have_count(0)


def test_a_read_only_dashboard_refuses_a_form_that_is_sent_anyway(open_page: Open, read_only: UiServer) -> None:
    opened = open_page(read_only)
    page = opened.go("/ui/keys")
    token = page.evaluate("() => document.querySelector('[name=form_token]')?.value || ''")
    answer = opened.context.request.post(
        read_only.url + "/ui/keys", form={"name": "more", "form_token": token}, headers={"Origin": read_only.url}
    )
    assert answer.status == 403
    assert read_only.rest("GET", "/v1/keys")["keys"] == []
    assert read_only.rest("POST", "/v1/queues", {"name": "clients-can"})["name"] == "clients-can"


def test_a_hostile_report_reaches_nothing(open_page: Open, tmp_path: Path) -> None:
    """Reports are files. Their scripts run without the dashboard's cookies, and can ask the server nothing."""
    reports = tmp_path / "reports"
    reports.mkdir()
    attack = "fetch('/v1/queues', {method: 'POST', body: '{\"name\": \"stolen\"}'}).catch(() => 0)"
    form = "<form method=post action=/ui/keys><input name=name value=stolen></form>"
    script = f"{attack}; try {{ document.cookie }} catch {{ document.title = 'no cookies' }} document.forms[0].submit()"
    (reports / "bad.html").write_text(f"<!doctype html><title>Bad</title>{form}<script>{script}</script>")
    with UiServer(tmp_path / "data", "--reports", str(reports)) as server:
        opened = open_page(server)
        opened.go("/ui/reports").get_by_role("link", name="bad.html")
        with opened.watch.expecting(
            "content security policy", "Content Security Policy", "sandboxed", "blocked by CORS"
        ):
            page = opened.go("/ui/reports/bad.html")
            expect(page).to_have_title("no cookies")
            assert page.evaluate("() => self.origin") == "null"
            page.wait_for_load_state("networkidle")
        assert page.url == f"{server.url}/ui/reports/bad.html"
        assert server.rest("GET", "/v1/queues")["queues"] == [] and server.rest("GET", "/v1/keys")["keys"] == []

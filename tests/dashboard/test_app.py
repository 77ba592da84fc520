"""What holds for every page: headers, sessions, form tokens, sign-in, read-only mode, errors and escaping."""

from __future__ import annotations

import asyncio

import pytest

from batonq.api.http import CredentialGate, HttpLimits, Request
from batonq.api.sqs.access import Caller
from batonq.api.ui import app as ui_app
from batonq.api.ui import assets, rendering
from batonq.api.ui.app import POLICY
from batonq.api.ui.sessions import SESSION_S, SignInLimit
from batonq.core.catalog.entries import READ, WRITE
from batonq.errors import Unavailable
from tests.dashboard import samples
from tests.dashboard.pages import ACCOUNT, HOST, NOW_S, TOKEN, Browser, FakeRest, Refusal, header, text_of


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest(
        {"GET /v1/status": samples.status(), "GET /v1/queues:stats": samples.queue_stats(samples.summary("orders"))}
    )


@pytest.fixture
def browser(rest: FakeRest) -> Browser:
    return Browser(rest)


@pytest.fixture
def secured(rest: FakeRest) -> Browser:
    return Browser(rest, secured=True)


# --- every answer


@pytest.mark.parametrize("path", ["/ui", "/", "/ui/nothing", "/ui/static/x/app.css", "/ui/events?page=/nothing"])
def test_every_answer_has_the_policy(browser: Browser, path: str) -> None:
    response = browser.send("GET", path)
    assert header(response, "Content-Security-Policy") == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY
    assert header(response, "X-Frame-Options") == "DENY"


def test_a_page_has_no_inline_script_or_style(browser: Browser) -> None:
    page = browser.get("/ui")
    assert "<style" not in page and " style=" not in page and " onclick" not in page
    assert page.count("<script") == page.count("<script src=")


def test_pages_are_not_stored_and_files_are(browser: Browser) -> None:
    assert header(browser.send("GET", "/ui"), "Cache-Control") == "no-store"
    response = browser.send("GET", assets.url("app.css"))
    assert response.status == 200 and "immutable" in header(response, "Cache-Control")
    again = browser.send("GET", assets.url("app.css"), headers={"If-None-Match": header(response, "ETag")})
    assert again.status == 304 and not again.body


def test_a_file_of_another_version_is_not_kept(browser: Browser) -> None:
    response = browser.send("GET", "/ui/static/0000/app.css")
    assert response.status == 200 and header(response, "Cache-Control") == "no-cache"


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "nothing.js", "VENDORED.md", ""])
def test_only_the_files_of_the_dashboard_are_served(browser: Browser, name: str) -> None:
    assert browser.send("GET", f"/ui/static/x/{name}").status == 404


def test_a_page_that_does_not_exist(browser: Browser) -> None:
    assert "There is no page /ui/nothing." in text_of(browser.get("/ui/nothing", 404))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods(browser: Browser, method: str) -> None:
    assert browser.send(method, "/ui").status == 405


def test_a_problem_of_rest_is_shown_as_a_page(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/status"] = Refusal(503, "unavailable", "Shard 3 is being <moved>.")
    page = browser.get("/ui", 503)
    assert "Shard 3 is being &lt;moved&gt;." in page and "Try again" in page


def test_an_unexpected_failure_says_where_to_look(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/status"] = {"not": "a status"}
    assert "The server's log says why" in text_of(browser.get("/ui", 500))


def test_hostile_text_is_escaped(browser: Browser, rest: FakeRest) -> None:
    hostile = '"><script>alert(1)</script>'
    verdict = {"level": "warning", "sentence": hostile, "problems": [{"level": "warning", "text": hostile}]}
    rest.answers["GET /v1/status"] = samples.status(verdict=verdict)
    rest.answers["GET /v1/queues:stats"] = samples.queue_stats(samples.summary(hostile, level="warning", note=hostile))
    page = browser.get("/ui?range=" + hostile)
    assert "<script>alert" not in page and "alert(1)" in page
    assert 'href="/ui/queues/%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E"' in page


# --- loading


def test_templates_are_compiled_without_a_request(rest: FakeRest, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = rendering.Renderer()
    monkeypatch.setattr(rendering, "renderer", lambda: fresh)
    monkeypatch.setattr(ui_app, "LOAD_AFTER_S", 0.0)
    app = Browser(rest).app

    def compiled() -> set[str]:
        assert fresh.environment.cache is not None
        return {name for _, name in fresh.environment.cache}

    async def main() -> None:
        app.load_soon()
        assert "overview.html" not in compiled(), "nothing is done at once"
        await asyncio.sleep(0.01)
        assert app._loading is not None
        await asyncio.wait_for(app._loading, 60)

    asyncio.run(main())
    assert compiled() == set(fresh.environment.list_templates())
    assert not rest.asked


def test_a_page_that_comes_first_does_not_wait_for_the_pauses(rest: FakeRest, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = rendering.Renderer()
    monkeypatch.setattr(rendering, "renderer", lambda: fresh)
    monkeypatch.setattr(ui_app, "LOAD_AFTER_S", 0.0)
    monkeypatch.setattr(ui_app, "PAUSE_S", 3_600.0)
    browser = Browser(rest)
    loaded: list[bool] = []

    async def load() -> None:
        browser.app.load_soon()
        await asyncio.sleep(0.05)
        loaded.append(browser.app._loaded)
        async with asyncio.timeout(60):
            await asyncio.gather(*(browser.app.handle(Request("GET", "/ui")) for _ in range(3)))

    asyncio.run(load())
    assert loaded == [False] and "orders" in browser.get("/ui")


# --- forms


def test_a_form_without_its_token_is_refused(browser: Browser) -> None:
    browser.get("/ui")
    assert "not valid any more" in browser.send("POST", "/ui/sign-out").body.decode()
    assert browser.send("POST", "/ui/sign-out", {"form_token": "guess"}).status == 403


def test_a_form_without_a_session_is_refused(rest: FakeRest) -> None:
    one, other = Browser(rest), Browser(rest)
    one.get("/ui")
    token = one.app._sessions.form_token(one.app._sessions.make("open"))
    assert other.send("POST", "/ui/sign-out", {"form_token": token}).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_of_another_site_is_refused(secured: Browser, site: str) -> None:
    for path in ("/ui/sign-in", "/ui/sign-out"):
        response = secured.send("POST", path, {"token": TOKEN}, {"Sec-Fetch-Site": site})
        assert response.status in (401, 403) and not header(response, "Set-Cookie")


def test_the_cookie_of_a_session(browser: Browser) -> None:
    cookie = header(browser.send("GET", "/ui"), "Set-Cookie")
    assert cookie.startswith("baton-session-9324=") and cookie.endswith("; HttpOnly; SameSite=Strict")
    assert not header(browser.send("GET", "/ui"), "Set-Cookie")  # it has one now
    browser.scheme = "https"
    browser.cookies.clear()
    assert header(browser.send("GET", "/ui"), "Set-Cookie").endswith("; Secure")


# --- signing in


def test_a_secured_server_asks_who_you_are(secured: Browser, rest: FakeRest) -> None:
    response = secured.send("GET", "/ui?range=1h")
    assert response.status == 303 and header(response, "Location") == "/ui/sign-in?next=%2Fui%3Frange%3D1h"
    assert secured.send("GET", "/ui/events?page=/ui").status == 401
    assert secured.send("POST", "/ui/sign-out").status == 401
    assert not rest.asked


def test_signing_in_with_the_admin_token_and_out(secured: Browser) -> None:
    page = secured.get("/ui/sign-in?next=/ui%3Frange%3D1h")
    assert 'name="next" value="/ui?range=1h"' in page
    response = secured.send("POST", "/ui/sign-in", {"token": TOKEN, "next": "/ui?range=1h"})
    assert response.status == 303 and header(response, "Location") == "/ui?range=1h"
    assert "Sign out" in secured.get("/ui")
    copied = dict(secured.cookies)
    secured.post("/ui/sign-out")
    assert secured.send("GET", "/ui").status == 303
    secured.cookies = copied
    assert secured.send("GET", "/ui").status == 303


def test_signing_in_with_a_key_acts_as_that_key(secured: Browser, rest: FakeRest) -> None:
    secured.send("POST", "/ui/sign-in", {"key": "BATONKEY", "secret": "the-secret"})
    secured.get("/ui")
    assert rest.callers[-1] == Caller(ACCOUNT, "BATONKEY", WRITE, True)
    del secured.keys.keys["BATONKEY"]  # disabled meanwhile
    assert secured.send("GET", "/ui").status == 303


def test_a_server_that_cannot_check_keys_says_so(secured: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    secured.send("POST", "/ui/sign-in", {"key": "BATONKEY", "secret": "the-secret"})

    def unheard(access_key: str) -> None:
        raise Unavailable("The catalog cannot be reached. Retry.")

    monkeypatch.setattr(secured.keys, "find_key", unheard)
    assert "The catalog cannot be reached." in text_of(secured.get("/ui", 503))


def test_a_key_that_has_expired_signs_nobody_in(secured: Browser) -> None:
    secured.keys.add("OLD", expires_ms=int(NOW_S * 1000))
    assert secured.send("POST", "/ui/sign-in", {"key": "OLD", "secret": "the-secret"}).status == 403


def test_a_key_that_may_only_read_sees_no_forms_and_sends_none(secured: Browser) -> None:
    secured.keys.add("READER", role=READ)
    secured.send("POST", "/ui/sign-in", {"key": "READER", "secret": "the-secret"})
    response = secured.send("POST", "/ui/alarm-test", {"form_token": secured.form_token(), "name": "x"})
    assert response.status == 403 and b"Your key, READER, has the role read" in response.body
    secured.post("/ui/sign-out")  # but it may leave


def test_a_key_of_another_account_sees_its_queues_and_not_the_server(secured: Browser) -> None:
    secured.keys.add("OTHER", account="111111111111")
    secured.send("POST", "/ui/sign-in", {"key": "OTHER", "secret": "the-secret"})
    assert header(secured.send("GET", "/ui"), "Location") == "/ui/queues"
    page = secured.get("/ui/nothing", 404)
    assert 'href="/ui/queues"' in page and 'href="/ui/cluster"' not in page


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"token": "wrong"},
        {"key": "BATONKEY", "secret": "wrong"},
        {"key": "BATONKEY"},
        {"key": "NOKEY", "secret": ""},
        {"key": "", "secret": ""},
        {"token": "é"},
    ],
)
def test_wrong_credentials(secured: Browser, form: dict[str, str]) -> None:
    response = secured.send("POST", "/ui/sign-in", form)
    assert response.status == 403 and b"is not valid" in response.body and not secured.cookies


def test_attempts_are_limited(secured: Browser) -> None:
    for _ in range(SignInLimit.ATTEMPTS_MAX):
        secured.send("POST", "/ui/sign-in", {"token": "wrong"})
    response = secured.send("POST", "/ui/sign-in", {"token": TOKEN})
    assert response.status == 403 and b"Too many attempts" in response.body
    secured.peer = "127.0.0.2"
    assert secured.send("POST", "/ui/sign-in", {"token": TOKEN}).status == 303


def test_only_a_session_may_send_a_large_form(secured: Browser) -> None:
    limits = HttpLimits()
    gate = CredentialGate(limits, (), has_session=secured.app.has_session)

    def allowed(target: bytes, cookie: str) -> object:
        return gate({b"host": HOST.encode(), b"cookie": cookie.encode()}, target)

    assert allowed(b"/ui/queues/orders/try", "baton-session-9324=1.a.b") == limits.anonymous_body_bytes_max
    secured.send("POST", "/ui/sign-in", {"token": TOKEN})
    ((name, value),) = secured.cookies.items()
    assert allowed(b"/ui/queues/orders/try", f"{name}={value}") == limits.body_bytes_max
    assert allowed(b"/v1/queues", f"{name}={value}") == limits.anonymous_body_bytes_max


def test_a_session_of_a_secured_server_expires(secured: Browser) -> None:
    secured.send("POST", "/ui/sign-in", {"token": TOKEN})
    secured.get("/ui")
    secured.now_s += SESSION_S + 1
    assert secured.send("GET", "/ui").status == 303


def test_a_cookie_of_the_development_profile_opens_no_secured_server(rest: FakeRest) -> None:
    open_browser, secured = Browser(rest), Browser(rest, secured=True)
    open_browser.get("/ui")
    secured.cookies = open_browser.cookies
    assert secured.send("GET", "/ui").status == 303


def test_the_admin_token_as_a_bearer_reads_and_sends_no_forms(secured: Browser) -> None:
    assert secured.send("GET", "/ui", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert secured.send("GET", "/ui", headers={"Authorization": "Bearer wrong"}).status == 303
    assert secured.send("POST", "/ui/sign-out", headers={"Authorization": f"Bearer {TOKEN}"}).status == 401


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example", "/\\evil", "/ui/\\..\\x", "javascript:alert(1)", "", "/v1", "é"],
)
def test_signing_in_never_leads_elsewhere(secured: Browser, target: str) -> None:
    response = secured.send("POST", "/ui/sign-in", {"token": TOKEN, "next": target})
    assert header(response, "Location") == "/ui"


def test_the_development_profile_has_no_sign_in(browser: Browser) -> None:
    response = browser.send("GET", "/ui/sign-in")
    assert response.status == 303 and header(response, "Location") == "/ui"

"""What holds for every page: no error, nothing from elsewhere, accessible, readable without a script, safe."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import ViewportSize

from batonq.api.ui.pages import ROUTES
from tests.ui.axe import assert_accessible
from tests.ui.conftest import Open
from tests.ui.page_list import Shown, filled_server, is_listed, paths, wait_for_alarm
from tests.ui.servers import UiServer
from tests.ui.xss import PAYLOADS, SHORT, TIGHT, Planted, plant, plant_fanout, poke

NAMES = tuple(paths(Shown(*[""] * len(Shown._fields))))
Attacked = tuple[UiServer, Planted, str]
FANOUT = "attacked-fanout"
PHONE = ViewportSize(width=390, height=844)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UiServer, Shown]]:
    with filled_server(tmp_path_factory.mktemp("pages")) as filled:
        yield filled


def test_every_route_is_in_the_list() -> None:
    listed = paths(Shown(*[f"x{number}" for number in range(len(Shown._fields))]))
    missing = [
        route.path
        for route in ROUTES
        if route.show is not None and not route.path.startswith("/ui/data/") and not is_listed(route.path, listed)
    ]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_no_error_is_accessible_and_fits_on_a_phone(
    open_page: Open, filled: tuple[UiServer, Shown], name: str
) -> None:
    server, shown = filled
    page = open_page(server).go(paths(shown)[name])
    page.wait_for_load_state("load")
    assert page.title().endswith("· Baton")
    assert page.locator("h1").count() == 1
    assert_accessible(page)
    page.emulate_media(color_scheme="dark")
    assert_accessible(page, "color-contrast", "link-in-text-block")
    page.set_viewport_size(PHONE)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_read_without_a_script(open_page: Open, filled: tuple[UiServer, Shown], name: str) -> None:
    server, shown = filled
    plain = open_page(server, java_script_enabled=False).go(paths(shown)[name])
    assert len(plain.locator("main").inner_text()) > 20
    assert plain.locator("h1").inner_text().strip()


# --- texts of an attacker ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with UiServer(tmp_path_factory.mktemp("attacked")) as server:
        planted = plant(server.rest, "attacked")
        subscription = plant_fanout(server.rest, FANOUT)
        server.rest("POST", "/v1/keys", {"name": SHORT})
        alarm = wait_for_alarm(server.rest, planted.dead_letter_queue)
        server.rest("POST", f"/v1/alarms/{quote(alarm, safe='')}:acknowledge", {"note": SHORT})
        yield server, planted, subscription


def _places(planted: Planted, subscription: str) -> dict[str, str]:
    topic, kept = f"/ui/topics/{FANOUT}", f"/ui/queues/{FANOUT}"
    queue, dead = f"/ui/queues/{planted.queue}", f"/ui/queues/{planted.dead_letter_queue}"
    reflected = quote(PAYLOADS[1], safe="")
    return {
        "overview": "/ui",
        "queues": "/ui/queues",
        "searched": f"/ui/queues?search={reflected}&sort={reflected}",
        "queue": f"{queue}?range={reflected}",
        "messages": f"{queue}/messages",
        "messages-filtered": f"{queue}/messages?text={reflected}&group={reflected}&holder={reflected}",
        "send-receive": f"{queue}/try",
        "consumers": f"{queue}/consumers",
        "settings": f"{queue}/settings",
        "figures": f"/ui/figures?queue={planted.queue}&range={reflected}",
        "waiting": f"{queue}/messages/{planted.message_id}",
        "held": f"{queue}/messages/{planted.held_id}",
        "dead": f"{dead}/messages/{planted.dead_id}",
        "dead-letters": f"{dead}/dead-letters",
        "filtered": f"{dead}/dead-letters?text={reflected}&errorClass={reflected}",
        "dead-letter-queues": "/ui/dead-letters",
        "workers": "/ui/workers",
        "alarms": "/ui/alarms",
        "keys": "/ui/keys",
        "jobs": "/ui/jobs",
        "topics": "/ui/topics",
        "topic": topic,
        "topic-settings": f"{topic}/settings",
        "topic-waiting": f"{topic}/waiting",
        "subscription": f"{topic}/subscriptions/{subscription}",
        "history": f"{kept}/history",
        "group": f"{kept}/readers/{FANOUT}",
        "counters": f"{kept}/counters",
        "schedules": f"/ui/schedules?queue={FANOUT}",
        "schedule": f"/ui/schedules/{FANOUT}@{FANOUT}",
        "create-schedule": f"/ui/create-schedule?queue={reflected}",
    }


@pytest.mark.parametrize("name", list(_places(Planted("", "", "", "", ""), "")))
def test_no_planted_text_runs(open_page: Open, attacked: Attacked, name: str) -> None:
    server, planted, subscription = attacked
    page = open_page(server).go(_places(planted, subscription)[name])
    page.wait_for_load_state("load")
    poke(page)
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")
    poke(page)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("waiting", PAYLOADS[0]),
        ("held", SHORT),
        ("dead", PAYLOADS[0]),
        ("dead-letters", PAYLOADS[0]),
        ("workers", SHORT),
        ("keys", SHORT),
        ("alarms", SHORT),
        ("settings", PAYLOADS[0]),
        ("consumers", SHORT),
        ("topic", SHORT),
        ("topic-settings", PAYLOADS[0]),
        ("subscription", SHORT),
        ("topic-waiting", PAYLOADS[1]),
        ("history", PAYLOADS[0]),
        ("group", SHORT),
        ("group", TIGHT),
        ("schedule", PAYLOADS[0]),
    ],
)
def test_the_planted_text_is_shown_as_text(open_page: Open, attacked: Attacked, name: str, text: str) -> None:
    """Else the test above would show nothing."""
    server, planted, subscription = attacked
    page = open_page(server).go(_places(planted, subscription)[name])
    shown = page.locator("main").inner_text()
    fields = [field.input_value() for field in page.locator("main textarea").all()]
    assert any(text in one for one in (shown, *fields))


@pytest.mark.parametrize(
    "path", ["/ui/{}", "/ui/queues/{}", "/ui/queues/attacked/messages/{}", "/ui/jobs/{}", "/ui/topics/{}"]
)
def test_no_text_of_an_address_runs(open_page: Open, attacked: Attacked, path: str) -> None:
    server, _, _ = attacked
    opened = open_page(server)
    for payload in PAYLOADS:
        with opened.watch.expecting("the server responded with a status of 404"):
            opened.page.goto(server.url + path.format(quote(payload, safe="")))
        poke(opened.page)

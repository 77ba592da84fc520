"""Live updates: what a stream sends, when it ends, and how many there may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batonq.api.http import Request
from batonq.api.ui import live
from batonq.api.ui.backend import Problem
from batonq.api.ui.live import LiveStreams
from tests.dashboard import samples
from tests.dashboard.pages import HOST, TOKEN, Browser, FakeRest


async def _no_pause(seconds: float) -> None:
    assert seconds == live.INTERVAL_S


def parse(piece: bytes) -> tuple[str, Any]:
    name, data = piece.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def _events(render: Callable[[], Awaitable[live.Blocks | None]], count: int) -> list[tuple[str, Any]]:
    streams = LiveStreams(_no_pause, cpu_seconds=lambda: 0.0)
    stream = streams.events(render)
    assert await anext(stream) == live.RETRY
    assert streams.open == 1
    heard = []
    async for piece in stream:
        heard.append(parse(piece))
        if len(heard) == count:
            break
    await stream.aclose()
    assert streams.open == 0
    return heard


def rendering(*answers: live.Blocks | Problem | None) -> Callable[[], Awaitable[live.Blocks | None]]:
    waiting = [*answers]

    async def render() -> live.Blocks | None:
        answer = waiting.pop(0)
        if isinstance(answer, Problem):
            raise answer
        return answer

    return render


def test_only_what_changed_is_sent_and_a_beat_if_nothing_did() -> None:
    render = rendering({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"})
    assert asyncio.run(_events(render, 3)) == [
        ("update", {"a": "1", "b": "1"}),
        ("update", {"b": "2"}),
        ("beat", {}),
    ]


def test_a_problem_is_told_and_the_stream_goes_on() -> None:
    render = rendering(Problem(503, "unavailable", "Shard 1 is moving."), {"a": "1"}, None)
    assert asyncio.run(_events(render, 9)) == [
        ("problem", {"detail": "Shard 1 is moving."}),
        ("update", {"a": "1"}),
        ("over", {}),
    ]


def test_an_expensive_page_is_rendered_less_often() -> None:
    used_s = 0.0

    async def render() -> live.Blocks:
        nonlocal used_s
        used_s += 0.040  # 2.5 times what the share allows per interval
        return {"a": str(used_s)}

    async def heard(count: int) -> list[str]:
        stream = LiveStreams(_no_pause, cpu_seconds=lambda: used_s).events(render)
        await anext(stream)
        names = [parse(await anext(stream))[0] for _ in range(count)]
        await stream.aclose()
        return names

    names = asyncio.run(heard(60))
    assert names[:4] == ["update", "beat", "beat", "update"]
    assert used_s / (60 * live.INTERVAL_S) <= live.CPU_SHARE_MAX


def rest_with_status() -> FakeRest:
    return FakeRest(
        {"GET /v1/status": samples.status(), "GET /v1/queues:stats": samples.queue_stats(samples.summary("orders"))}
    )


def _stream_request(browser: Browser, page: str) -> Request:
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    return Request("GET", "/ui/events", f"page={page}", {b"host": HOST.encode(), b"cookie": cookie.encode()})


async def _first(browser: Browser, page: str, then: Callable[[], None] = lambda: None, count: int = 1) -> list[Any]:
    browser.app.streams = LiveStreams(_no_pause, cpu_seconds=lambda: 0.0)
    response = await browser.app.handle(_stream_request(browser, page))
    assert response.status == 200 and response.content_type == "text/event-stream", response.body
    assert response.stream is not None
    heard = []
    await anext(response.stream)
    for _ in range(count):
        heard.append(parse(await anext(response.stream)))
        then()
    await response.stream.aclose()
    return heard


def test_a_stream_updates_the_blocks_of_its_page() -> None:
    browser = Browser(rest_with_status())
    browser.get("/ui")
    ((name, blocks),) = asyncio.run(_first(browser, "/ui%3Frange%3D1h"))
    assert name == "update"
    assert {"verdict", "live_figures", "live_queues", "live_problems", "live_alarms"} == {*blocks}
    assert "All well: 14 queues" in blocks["verdict"] and "/ui/queues/orders" in blocks["live_queues"]
    assert "<html" not in "".join(blocks.values())


def test_a_stream_sends_what_the_page_shows() -> None:
    browser = Browser(rest_with_status())
    page = browser.get("/ui")
    ((_, blocks),) = asyncio.run(_first(browser, "/ui"))
    for block in blocks.values():
        assert block.strip() in page


@pytest.mark.parametrize("page", ["/nothing", "", "/ui/nothing", "https://evil.example/ui/x", "/ui/events"])
def test_a_stream_needs_a_page(page: str) -> None:
    browser = Browser(rest_with_status())
    assert browser.send("GET", f"/ui/events?page={page}").status == 404


def test_a_stream_ends_when_its_session_does() -> None:
    browser = Browser(rest_with_status(), secured=True)
    browser.send("POST", "/ui/sign-in", {"key": "BATONKEY", "secret": "the-secret"})

    def disable() -> None:
        browser.keys.keys.clear()

    heard = asyncio.run(_first(browser, "/ui", disable, 2))
    assert [name for name, _ in heard] == ["update", "over"]


def test_the_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Browser(rest_with_status(), secured=True)
    browser.send("POST", "/ui/sign-in", {"token": TOKEN})
    browser.app.streams.open = live.STREAMS_MAX
    assert browser.send("GET", "/ui/events?page=/ui").status == 503


def test_one_account_cannot_take_all_streams() -> None:
    async def main() -> None:
        streams = LiveStreams(_no_pause, cpu_seconds=lambda: 0.0)
        opened = []
        while not streams.full("111111111111"):
            opened.append(streams.events(rendering({"a": "1"}), "111111111111"))
            await anext(opened[-1])
        assert len(opened) == live.ACCOUNT_STREAMS_MAX < live.STREAMS_MAX
        assert not streams.full("222222222222") and not streams.full()
        await opened[0].aclose()
        assert not streams.full("111111111111")

    asyncio.run(main())

"""The webhook example: its parts, and a small run of the whole."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from batonq import Baton, Schedule
from batonq.client import Message
from batonq.idempotency import MemoryStore
from batonq.testing import memory, memory_async
from examples.harness.story import Story
from examples.webhooks import dispatcher, policy, run
from examples.webhooks.endpoints import Endpoint, Endpoints
from examples.webhooks.publish import publish
from examples.webhooks.receivers import Receiver
from examples.webhooks.reinstate import reinstate
from examples.webhooks.signing import TOLERANCE_S, problem, signature

SECRET = b"a secret that two know"
WAIT_S = 600.0


def test_every_event_is_delivered_once_or_given_up(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "STUCK_S", WAIT_S)
    monkeypatch.setattr(dispatcher, "TIMEOUT_S", WAIT_S)  # a receiver that is slow is not one that is down
    caplog.set_level(logging.ERROR, "batonq.worker")
    story = Story("a small run")
    asyncio.run(run.run(6, tmp_path, story))
    assert story.failures == []
    printed = capsys.readouterr().out
    assert "to silent@example.org: silent was disabled after 5 attempts: status 502" in printed
    assert "3 more events to 2 receivers" in printed


def test_a_signature_holds_for_its_event_body_and_time_only() -> None:
    header = signature(SECRET, "evt-1", b"{}", 1_000.0)
    assert problem(SECRET, "evt-1", b"{}", header, 1_000.0) is None
    assert problem(SECRET, "evt-1", b"{}", header, 1_000.0 + TOLERANCE_S + 1) == "the signature is too old"
    for other in (
        problem(b"another secret", "evt-1", b"{}", header, 1_000.0),
        problem(SECRET, "evt-2", b"{}", header, 1_000.0),
        problem(SECRET, "evt-1", b"[]", header, 1_000.0),
        problem(SECRET, "evt-1", b"{}", header.replace("t=1000", "t=1001"), 1_000.0),
        problem(SECRET, "evt-1", b"{}", "", 1_000.0),
    ):
        assert other == "the signature does not fit"


def test_a_receiver_absorbs_what_it_has_had_and_refuses_what_is_not_signed() -> None:
    receiver = Receiver(SECRET, lambda: True)
    header = signature(SECRET, "evt-1", b"{}", time.time())
    assert receiver.take("evt-1", b"{}", header) == 204
    assert receiver.take("evt-1", b"{}", header) == 204
    assert receiver.take("evt-1", b"{1}", header) == 401
    assert dict(receiver.handled) == {"evt-1": 1}
    assert (receiver.absorbed, receiver.refused) == (1, 1)


def test_dead_letters_are_not_delivered_by_the_pattern() -> None:
    assert not policy.DEAD.startswith(policy.PREFIX)
    assert not policy.OWNERS.startswith(policy.PREFIX)


def test_the_last_try_comes_after_the_last_delay() -> None:
    assert policy.tries(Schedule((1, 2, 3))) == 4
    # The one that comes back must be back before its events are given up, however the dice fall.
    shortest_s = sum(policy.DEMO.delays_seconds) * (1 - policy.DEMO.jitter)
    assert shortest_s > run.DOWN_S


def test_the_production_schedule_retries_over_three_days_and_ends_before_the_message_expires() -> None:
    total_s = sum(policy.REAL.delays_seconds)
    assert 3 * policy.DAY_S <= total_s < 4 * policy.DAY_S
    assert total_s * (1 + policy.REAL.jitter) < policy.RETENTION_S
    assert sorted(policy.REAL.delays_seconds) == list(policy.REAL.delays_seconds)


def test_an_event_that_was_accepted_is_not_posted_again_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts: list[str] = []

    def post(endpoint: Endpoint, message: Message) -> tuple[int, str]:
        posts.append(endpoint.name)
        return (503, "status 503") if len(posts) == 1 else (204, "status 204")

    monkeypatch.setattr(dispatcher, "_post", post)
    now_s = 1_000.0
    endpoints = Endpoints(tmp_path / "endpoints.db")
    for name in ("a", "b"):
        endpoints.add(Endpoint(name, f"http://{name}.example/", SECRET, f"{name}@example.org", None))
    with memory() as baton:
        deliver = dispatcher.Dispatcher(baton, endpoints, MemoryStore(lambda: now_s), tries=5).deliver
        with pytest.raises(dispatcher.DeliveryFailed):
            deliver(_event("a"))
        deliver(_event("a"))  # a failed delivery is retried
        deliver(_event("a"))
        deliver(_event("b"))
        assert posts == ["a", "a", "b"]
        now_s += policy.ONCE_FOR_S - 1
        deliver(_event("a"))
        assert posts == ["a", "a", "b"]
        now_s += 2
        deliver(_event("a"))
        assert posts == ["a", "a", "b", "a"]
    endpoints.close()


def _event(receiver: str) -> Message:
    return Message(id="m", receipt="r", queue=policy.PREFIX + receiver, body={"id": "evt-1"}, receive_count=1)


def test_a_disabled_endpoint_is_left_out_until_it_is_enabled(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path / "endpoints.db")
    endpoints.add(Endpoint("a", "http://a.example/", SECRET, "a@example.org", None))
    endpoints.disable("a", "status 502")
    endpoints.disable("a", "a later reason does not hide the first")
    found = endpoints.get("a")
    assert found is not None and found.disabled == "status 502"
    assert endpoints.enabled() == []
    endpoints.enable("a")
    assert [endpoint.name for endpoint in endpoints.enabled()] == ["a"]
    endpoints.close()


async def _given_up(baton: Baton, endpoints: Endpoints) -> None:
    """One event, which two receivers did not take."""
    await policy.create_queues(baton, ["a", "b"], policy.DEMO)
    for name in ("a", "b"):
        endpoints.add(Endpoint(name, f"http://{name}.example/", SECRET, f"{name}@example.org", None))
    assert await publish(baton, endpoints, {"id": "evt-1"}) == 2
    for message in await baton.receive([policy.PATTERN], 10, wait=0):
        endpoints.disable(message.queue.removeprefix(policy.PREFIX), "status 502")
        await message.nack(dead_letter=True, reason="gave up")


def test_a_receiver_that_is_back_gets_what_it_has_missed_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        endpoints = Endpoints(tmp_path / "endpoints.db")
        async with await memory_async() as baton:
            await _given_up(baton, endpoints)
            assert (await baton.queue(policy.DEAD).stats()).visible == 2
            job = await (await reinstate(baton, endpoints, "a")).wait(timeout=WAIT_S, every=0.01)
            assert (job.state, job.moved) == ("COMPLETED", 1)
            (message,) = await baton.queue("hooks-a").receive(wait=0)
            assert message.body == {"id": "evt-1"}
            assert (await baton.queue(policy.DEAD).stats()).visible == 1
        assert [endpoint.name for endpoint in endpoints.enabled()] == ["a"]
        endpoints.close()

    asyncio.run(scenario())

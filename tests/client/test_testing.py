"""Queues in memory for users' tests: the real thing, with a clock that a test moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq.errors import InvalidInput
from batonq.testing import DATA, memory, memory_async
from tests.client.support import Blocking, run


def test_the_clock_brings_what_is_due(form: str) -> None:
    async def body() -> None:
        async with await memory_async() if form == "async" else Blocking(memory()) as baton:
            queue = await baton.create_queue("jobs", visibility=30, retention=3_600)
            started = baton.clock.now()
            await queue.send("leased")
            await queue.receive(wait=0)
            await queue.send("delayed", delay=100)
            await baton.clock.advance(31)
            assert [message.body for message in await queue.receive(wait=0)] == ["leased"]
            await baton.clock.advance(70)
            assert sorted(message.body for message in await queue.receive(wait=0)) == ["delayed", "leased"]
            await baton.clock.advance(2 * 3_600)
            assert (await queue.stats()).depth == 0
            assert 7_301 <= baton.clock.now() - started < 7_400
            with pytest.raises(InvalidInput):
                await baton.clock.advance(-1)

    run(body())


def test_each_is_a_world_of_its_own() -> None:
    with memory() as one, memory() as other:
        one.create_queue("q").send("x")
        other.create_queue("q")
        assert (one.queue("q").stats().visible, other.queue("q").stats().visible) == (1, 0)


def test_much_fits(form: str) -> None:
    async def body() -> None:
        async with await memory_async() if form == "async" else Blocking(memory()) as baton:
            queue = await baton.create_queue("large")
            await queue.send_many(["x" * 200_000] * 100)
            seen = 0
            while messages := await queue.receive(10, wait=0):
                assert all(len(message.body) == 200_000 for message in messages)
                seen += len(messages)
                assert await queue.ack_many([message.receipt for message in messages]) == [None] * len(messages)
            assert seen == 100

    run(body())


def test_nothing_is_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with memory() as baton:
        baton.create_queue("q").send("x")
    assert list(tmp_path.iterdir()) == []
    assert not Path(DATA).exists()

"""The cached depth: read in the background, not known when it is too old, and never a reason to fail."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from batonq.client import Baton, Outgoing
from batonq.errors import InvalidInput, Unavailable
from batonq.sync import Baton as BlockingBaton
from batonq.web import AsyncDepth, Depth
from tests.support.server import TestServer


class Source:
    """A depth to read, which may fail; `seen(n)` waits until it was read so often."""

    def __init__(self, depth: int = 7) -> None:
        self.depth = depth
        self.problem: Exception | None = None
        self._reads = 0
        self._changed = threading.Condition()

    def __call__(self) -> int:
        with self._changed:
            self._reads += 1
            self._changed.notify_all()
        if self.problem is not None:
            raise self.problem
        return self.depth

    async def awaited(self) -> int:
        await asyncio.sleep(0)
        return self()

    def seen(self, reads: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._reads >= reads, 120)


def test_the_first_request_waits_for_the_first_reading() -> None:
    depth = Depth(Source(7), refresh=3_600)
    assert depth.current() == 7
    assert depth.reads == 1
    depth.close()


def test_it_is_read_in_the_background() -> None:
    source = Source(1)
    depth = Depth(source, refresh=0.001, stale=3_600)
    assert depth.current() == 1
    source.depth = 2
    source.seen(depth.reads + 3)
    assert depth.current() == 2
    depth.close()


def test_requests_do_not_read() -> None:
    source = Source(1)
    depth = Depth(source, refresh=3_600)
    for _ in range(100):
        depth.current()
    assert depth.reads == 1
    depth.close()


def test_a_reading_that_is_too_old_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    source = Source(5)
    depth = Depth(source, refresh=0.001, stale=20, clock=lambda: now[0])
    assert depth.current() == 5
    source.problem = Unavailable("no server answers")
    source.seen(depth.reads + 3)  # one may have been under way
    now[0] = 20.0
    assert depth.current() == 5
    now[0] = 20.1
    assert depth.current() is None
    source.problem = None
    source.seen(depth.reads + depth.failures + 3)
    assert depth.current() == 5
    assert [record.getMessage() for record in caplog.records] == [
        "The queue's depth cannot be read: no server answers"  # once for an outage
    ]
    depth.close()


def test_a_source_that_fails_from_the_start() -> None:
    source = Source()
    source.problem = OSError()
    depth = Depth(source, refresh=3_600)
    assert depth.current() is None
    depth.close()


def test_the_same_for_tasks() -> None:
    async def main() -> None:
        source = Source(3)
        depth = AsyncDepth(source.awaited, refresh=0.001, stale=3_600)
        assert await depth.current() == 3
        source.depth = 4
        await asyncio.to_thread(source.seen, depth.reads + 3)
        assert await depth.current() == 4
        source.problem = Unavailable()
        await asyncio.to_thread(source.seen, depth.reads + 3)
        assert await depth.current() == 4
        assert depth.failures > 0
        await depth.close()
        reads = depth.reads + depth.failures
        await asyncio.sleep(0)
        assert depth.reads + depth.failures == reads

    asyncio.run(main())


def test_another_loop_gets_a_task_of_its_own() -> None:
    depth = AsyncDepth(Source(3).awaited, refresh=3_600)
    assert asyncio.run(depth.current()) == 3
    assert asyncio.run(depth.current()) == 3
    assert depth.reads == 2


def test_of_queues_that_are_there(tmp_path: Path) -> None:
    with TestServer(str(tmp_path)) as server, BlockingBaton(server.url) as baton:
        first, second = baton.create_queue("first"), baton.create_queue("second")
        first.send_many([*range(3), Outgoing("later", delay=60)])
        second.send_many(range(4))
        assert len(second.receive(2)) == 2
        depth = Depth.of(first, second, refresh=3_600)
        assert depth.current() == 7  # what is in flight is work, what is delayed is not yet
        depth.close()

        async def main() -> int | None:
            async with Baton(server.url) as other:
                both = AsyncDepth.of(other.queue("first"), other.queue("second"))
                found = await both.current()
                await both.close()
                return found

        assert asyncio.run(main()) == 7


def test_a_refresh_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Depth(Source(), refresh=0)

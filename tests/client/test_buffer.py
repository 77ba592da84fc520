"""The local buffer: bounded, in order, never a silent drop; for tasks and for threads, in memory and in a file."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from batonq.client import Baton, tracing
from batonq.client.backlog import Backlog, Batch, Limits
from batonq.client.breaker import Breaker
from batonq.client.buffer import BlockingSendBuffer, Buffered, BufferFull, SendBuffer, Unsent
from batonq.client.models import Outgoing, Sent
from batonq.client.spill import FileStore, MemoryStore, Store
from batonq.errors import AccessDenied, BatonError, InvalidInput, OverLimit, Unavailable
from tests.support.server import TestServer

NEVER_OPEN = Breaker(failures=10**9)  # the breaker has tests of its own
WAIT_S = 120.0


class Server:
    """Takes messages as the broker does: one of a producer whose number is not above the last is a duplicate. `down`
    makes every request fail; `loses` takes the messages and loses the answer; `refuses` are bodies it does not like."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.last: dict[str, int] = {}
        self.requests = 0
        self.down: Exception | None = None
        self.loses = False
        self.stays_down = False  # after it lost an answer
        self.refuses: dict[str, BatonError] = {}
        self.answered = threading.Event()

    def send_many(self, messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        self.requests += 1
        self.answered.set()
        if self.down is not None:
            raise self.down
        results: list[Sent | BatonError] = []
        stopped: BatonError | None = None
        for number, message in enumerate(messages, producer[1]):
            if number <= self.last.get(producer[0], 0):
                results.append(Sent("", 0, duplicate=True))
            elif stopped is not None or str(message.body) in self.refuses:
                stopped = stopped or OverLimit("an earlier message of this producer was refused")
                results.append(self.refuses.get(str(message.body), stopped))
            else:
                self.last[producer[0]] = number
                self.taken.append(message.body)
                results.append(Sent(str(number), number))
        if self.loses:
            self.loses = False
            self.down = Unavailable("down again") if self.stays_down else None
            raise Unavailable("the answer was lost")
        return results

    async def asend_many(self, messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        await asyncio.sleep(0)
        return self.send_many(messages, producer=producer)


def stores(tmp_path: Path) -> list[Store]:
    return [MemoryStore(), FileStore(tmp_path / "spill.db")]


def next_batch(backlog: Backlog) -> Batch:
    batch = backlog.batch()
    assert batch is not None
    return batch


# --- without waiting or sending ------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "file"])
def test_a_full_buffer_refuses_and_says_what_to_do(tmp_path: Path, which: int) -> None:
    backlog = Backlog(stores(tmp_path)[which], Limits(messages=3, bytes=1_000))
    for number in range(3):
        backlog.put(Outgoing(number))
    with pytest.raises(BufferFull, match=r"3 messages.*was not accepted\. Slow down, or refuse"):
        backlog.put(Outgoing(3))
    backlog.store.remove([1])
    with pytest.raises(BufferFull, match="the limits are 3 and 1,000"):
        backlog.put(Outgoing("x" * 1_000))
    backlog.put(Outgoing(3))
    counters = backlog.counters()
    assert (counters.put, counters.full, counters.waiting) == (4, 2, 3)
    backlog.store.close()


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "file"])
def test_batches_are_in_order_and_numbered(tmp_path: Path, which: int) -> None:
    backlog = Backlog(stores(tmp_path)[which], Limits(batch=4))
    for number in range(10):
        backlog.put(Outgoing(number, group="g", attributes={"a": b"\xff", "n": 2}))
    batch = next_batch(backlog)
    assert [message.body for message in batch.messages] == [0, 1, 2, 3]
    assert batch.messages[0] == Outgoing(0, group="g", attributes={"a": b"\xff", "n": 2})
    assert batch.producer == (backlog.store.producer, 1)
    backlog.settle(batch, [Sent("", 1), OverLimit(), Sent("", 2), Sent("", 3)])
    assert [message.body for message in next_batch(backlog).messages] == [1]  # numbers of one request have no gap
    backlog.settle(next_batch(backlog), [Sent("", 4)])
    assert [message.body for message in next_batch(backlog).messages] == [4, 5, 6, 7]
    backlog.store.close()


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "file"])
def test_what_the_server_never_takes_is_kept_apart(tmp_path: Path, which: int) -> None:
    backlog = Backlog(stores(tmp_path)[which], Limits(messages=2))
    backlog.put(Outgoing("good"))
    backlog.put(Outgoing("bad"))
    backlog.settle(next_batch(backlog), [Sent("", 1), InvalidInput("not like this")])
    assert (backlog.waiting, backlog.counters().refused) == (0, 1)
    backlog.put(Outgoing("more"))
    with pytest.raises(BufferFull, match="The server refused 1 of them"):
        backlog.put(Outgoing("too much"))  # what was refused still takes its place
    ((message, error),) = backlog.take_refused()
    assert (message.body, error) == ("bad", "not like this")
    backlog.put(Outgoing("now there is room"))
    backlog.store.close()


def test_one_bad_message_that_spoils_whole_requests_is_found() -> None:
    backlog = Backlog(MemoryStore(), Limits(batch=64))
    for number in range(64):
        backlog.put(Outgoing(number))
    requests, done = 0, []
    while backlog.waiting:
        requests += 1
        batch = next_batch(backlog)
        bodies = [message.body for message in batch.messages]
        if 37 in bodies:
            backlog.fail(batch, InvalidInput("413"))
        else:
            done += bodies
            backlog.settle(batch, [Sent("", 1)] * len(bodies))
    assert done == [number for number in range(64) if number != 37]
    assert [each.message.body for each in backlog.take_refused()] == [37]
    assert requests < 64


def test_pauses_grow_while_it_fails() -> None:
    backlog = Backlog(MemoryStore(), Limits(), chance=lambda: 1.0)
    backlog.put(Outgoing(1))
    pauses = []
    for _ in range(12):
        backlog.fail(next_batch(backlog), Unavailable())
        pauses.append(backlog.pause_s())
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == 30
    backlog.settle(next_batch(backlog), [Sent("", 1)])
    assert backlog.pause_s() == 0


def test_a_key_that_may_not_send_loses_nothing() -> None:
    """Not the message's fault: it waits for somebody to mend the key."""
    backlog = Backlog(MemoryStore(), Limits())
    backlog.put(Outgoing(1))
    backlog.fail(next_batch(backlog), AccessDenied())
    assert backlog.waiting == 1


# --- tasks ---------------------------------------------------------------------------------------


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, WAIT_S))


async def failed(buffer: SendBuffer | BlockingSendBuffer) -> None:
    """Until a request has failed: what a buffer says of the last error, it says after one."""
    async with asyncio.timeout(WAIT_S):
        while not buffer.counters.failures:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


def test_tasks_put_and_the_end_flushes() -> None:
    server = Server()

    async def main() -> None:
        async with SendBuffer(server.asend_many, batch=100) as buffer:
            for number in range(1_000):
                buffer.put(number, group="g")
        assert buffer.counters.sent == 1_000

    run(main())
    assert server.taken == list(range(1_000))


def test_each_message_is_in_its_sender_s_trace() -> None:
    """Not in that of whoever came first, whose task or thread happens to send them."""
    server = Server()
    seen: dict[str, str | None] = {}

    def send_many(messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        found = list(messages)
        seen.update({message.body: message.traceparent for message in found})
        assert tracing.outgoing() is None
        return server.send_many(found, producer=producer)

    async def asend_many(messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        return send_many(messages, producer=producer)

    first, second = tracing.start(), tracing.start()

    async def main() -> None:
        with tracing.within(first):
            buffer = SendBuffer(asend_many)
            buffer.put("first")
        with tracing.within(second):
            buffer.put("second")
        buffer.put("third")
        await buffer.close()

    run(main())
    with tracing.within(first), BlockingSendBuffer(send_many) as buffer:
        buffer.put("fourth")
    ids = {body: trace[3:35] if trace else None for body, trace in seen.items()}
    assert ids == {"first": first.trace_id, "second": second.trace_id, "third": None, "fourth": first.trace_id}


def test_a_send_tells_whether_the_server_has_it() -> None:
    server = Server()

    async def main() -> None:
        async with SendBuffer(server.asend_many, breaker=NEVER_OPEN) as buffer:
            assert await buffer.send("first") == Sent("1", 1)
            server.down = Unavailable("down")
            assert await buffer.send("second", wait=0.01) == Buffered(2)
            server.down = None
            await buffer.flush(WAIT_S)
            server.refuses["third"] = InvalidInput("no")
            with pytest.raises(InvalidInput, match="no"):
                await buffer.send("third")
            assert buffer.counters.refused == 0  # its sender was told

    run(main())
    assert server.taken == ["first", "second"]


def test_an_outage_ends_and_everything_arrives_once_and_in_order() -> None:
    server = Server()
    server.down = ConnectionError("refused")

    async def main() -> None:
        async with SendBuffer(server.asend_many, batch=10, breaker=NEVER_OPEN) as buffer:
            for number in range(100):
                buffer.put(number)
            await failed(buffer)
            with pytest.raises(Unsent, match=r"100 messages could not be sent.*refused") as caught:
                await buffer.flush(0.05)
            assert caught.value.waiting == 100
            server.down = None
            server.loses = True
            await buffer.flush(WAIT_S)
            counters = buffer.counters
            assert (counters.sent, counters.duplicates, counters.waiting) == (100, 10, 0)
            assert counters.failures >= 2

    run(main())
    assert server.taken == list(range(100))


def test_leaving_with_messages_unsent_is_an_exception() -> None:
    server = Server()
    server.down = Unavailable("down")

    async def main() -> None:
        async with SendBuffer(server.asend_many, close_seconds=0.05, breaker=NEVER_OPEN) as buffer:
            buffer.put("lost")

    with pytest.raises(Unsent, match=r"1 messages could not be sent, and when the process ends they are lost"):
        run(main())


def test_the_block_s_own_error_is_the_one_to_see(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.down = Unavailable("down")

    async def main() -> None:
        async with SendBuffer(server.asend_many, close_seconds=0.05, breaker=NEVER_OPEN) as buffer:
            buffer.put("lost")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main())
    assert "1 messages could not be sent" in caplog.text


def test_refused_messages_are_an_exception_at_the_end() -> None:
    server = Server()
    server.refuses["bad"] = InvalidInput("never")

    async def main() -> SendBuffer:
        buffer = SendBuffer(server.asend_many)
        buffer.put("good")
        buffer.put("bad")
        buffer.put("after")
        with pytest.raises(Unsent, match=r"the server refused 1 messages: get them with take_refused\(\)"):
            await buffer.flush(WAIT_S)
        assert [each.message.body for each in buffer.take_refused()] == ["bad"]
        await buffer.close()
        return buffer

    buffer = run(main())
    assert server.taken == ["good", "after"]
    with pytest.raises(InvalidInput, match="closed"):
        buffer.put("late")


def test_a_full_buffer_raises_to_whoever_puts() -> None:
    server = Server()
    server.down = Unavailable("the broker is away")

    async def main() -> None:
        buffer = SendBuffer(server.asend_many, max_messages=5, breaker=NEVER_OPEN)
        for number in range(5):
            buffer.put(number)
        await failed(buffer)
        with pytest.raises(Unsent):
            await buffer.flush(0.05)
        with pytest.raises(BufferFull, match=r"Slow down, or refuse.*Last error: the broker is away"):
            buffer.put(5)
        server.down = None
        await buffer.close()

    run(main())
    assert server.taken == [0, 1, 2, 3, 4]


def test_an_open_breaker_is_not_asked_but_a_flush_tries() -> None:
    server = Server()
    server.down = Unavailable("down")
    breaker = Breaker(failures=1, pause=3_600, pause_max=3_600)

    async def main() -> None:
        async with SendBuffer(server.asend_many, breaker=breaker) as buffer:
            buffer.put("message")
            await asyncio.to_thread(server.answered.wait, WAIT_S)
            server.down = None
            assert breaker.wait() > 1_000
            assert await buffer.send("second", wait=0.01) == Buffered(2)
            assert server.requests == 1
            await buffer.flush(WAIT_S)

    run(main())
    assert server.taken == ["message", "second"]


@pytest.mark.parametrize("settings", [{"max_messages": 0}, {"batch": 0}, {"batch": 1_001}, {"max_bytes": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        BlockingSendBuffer(Server().send_many, **settings)


def test_a_sender_that_breaks_its_word_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in what sends is no reason to stop: the messages stay, and the log says why."""
    server = Server()
    broken = [True, True]

    async def send_many(messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        if broken:
            broken.pop()
            return [] if broken else [][1]  # too few results; then an IndexError
        return server.send_many(messages, producer=producer)

    async def main() -> None:
        async with SendBuffer(send_many, breaker=NEVER_OPEN) as buffer:
            buffer.put("message")

    run(main())
    assert server.taken == ["message"]
    assert "but the response has" in caplog.text


def test_a_server_that_does_not_like_some_of_them(tmp_path: Path) -> None:
    """Too large for the queue; wrong in a way that spoils the whole request; and a queue that is not there."""

    async def main(url: str) -> None:
        async with Baton(url, retries=0) as baton:
            queue = await baton.create_queue("jobs", max_message_bytes=2_000)
            buffer = SendBuffer(queue.send_many, breaker=NEVER_OPEN)
            for body in (0, 1, "x" * 3_000, 2, Outgoing("wrong", priority=999), 3):
                buffer.put(body)
            with pytest.raises(Unsent, match="the server refused 2 messages"):
                await buffer.flush(WAIT_S)
            refused = [(str(each.message.body)[0], each.error) for each in buffer.take_refused()]
            assert [body for body, _ in refused] == ["x", "w"]
            assert "accepts at most 2000" in refused[0][1]
            assert "priority" in refused[1][1]
            await buffer.close()
            assert [message.body for message in await queue.receive(100, wait=0)] == [0, 1, 2, 3]
            late = SendBuffer(baton.queue("late").send_many, breaker=NEVER_OPEN)
            late.put("early")
            await failed(late)
            with pytest.raises(Unsent, match="Queue 'late' does not exist"):
                await late.flush(0.05)
            await baton.create_queue("late")
            await late.close(WAIT_S)
            assert len(await baton.queue("late").receive(100, wait=0)) == 1

    with TestServer(str(tmp_path)) as server:
        run(main(server.url))


# --- threads -------------------------------------------------------------------------------------


def test_threads_put_and_each_keeps_its_order() -> None:
    server = Server()

    def work(name: int) -> None:
        for number in range(200):
            buffer.put((name, number))

    with BlockingSendBuffer(server.send_many, batch=50) as buffer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(4):
        assert [number for other, number in server.taken if other == name] == list(range(200))
    assert buffer.counters.sent == 800


def test_a_thread_s_send_waits_for_the_answer() -> None:
    server = Server()
    with BlockingSendBuffer(server.send_many, breaker=NEVER_OPEN) as buffer:
        assert buffer.send("first") == Sent("1", 1)
        server.down = Unavailable("down")
        assert buffer.send("second", wait=0.01) == Buffered(2)
        server.refuses["third"] = InvalidInput("no")
        server.down = None
        with pytest.raises(InvalidInput, match="no"):
            buffer.send("third", wait=WAIT_S)
    assert server.taken == ["first", "second"]


def test_threads_meet_an_outage_too() -> None:
    server = Server()
    server.down = ConnectionError("refused")
    with BlockingSendBuffer(server.send_many, batch=10, breaker=NEVER_OPEN) as buffer:
        for number in range(100):
            buffer.put(number)
        with pytest.raises(Unsent, match="100 messages"):
            buffer.flush(0.05)
        server.down = None
        server.loses = True
        buffer.flush(WAIT_S)
    assert server.taken == list(range(100))


def test_leaving_with_messages_unsent_is_an_exception_for_threads_too() -> None:
    server = Server()
    server.down = Unavailable("down")
    with pytest.raises(Unsent), BlockingSendBuffer(server.send_many, close_seconds=0.05, breaker=NEVER_OPEN) as buffer:
        buffer.put("lost")


# --- the file ------------------------------------------------------------------------------------


def test_a_spill_file_outlives_the_buffer(tmp_path: Path) -> None:
    """With the same numbers, so that a message whose answer was lost is not taken again."""
    path = tmp_path / "spill.db"
    server = Server()
    server.down = Unavailable("down")
    first = BlockingSendBuffer(server.send_many, spill=path, batch=5, breaker=NEVER_OPEN)
    for number in range(20):
        first.put(number)
    with pytest.raises(Unsent, match=r"they stay in .*spill.db, and the next buffer that opens it sends them"):
        first.close(0.05)
    server.down = None
    server.loses = server.stays_down = True
    second = BlockingSendBuffer(server.send_many, spill=path, batch=5, breaker=NEVER_OPEN)
    asyncio.run(failed(second))
    with pytest.raises(Unsent, match="20 messages"):
        second.close(0.05)
    assert server.taken == [0, 1, 2, 3, 4]
    server.down = None
    with BlockingSendBuffer(server.send_many, spill=path, breaker=NEVER_OPEN) as third:
        third.put(20)
    assert server.taken == list(range(21))
    assert third.counters.duplicates == 5


def test_a_file_is_for_one_process(tmp_path: Path) -> None:
    path = tmp_path / "spill.db"
    first = FileStore(path)
    with pytest.raises(InvalidInput, match=r"in use by another process\. Use a separate spill file per process"):
        FileStore(path)
    first.close()
    FileStore(path).close()


def test_a_file_that_cannot_be_read_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    buffer = BlockingSendBuffer(server.send_many, spill=tmp_path / "spill.db", breaker=NEVER_OPEN)
    store = buffer._backlog.store
    read, failures = store.first, [sqlite3.OperationalError("disk I/O error")] * 2

    def first(count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        if failures:
            raise failures.pop()
        return read(count, bytes_max)

    store.first = first  # type: ignore[method-assign]
    buffer.put("message")
    buffer.close(WAIT_S)
    assert server.taken == ["message"]
    assert "disk I/O error" in caplog.text


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to be looked at" * 30)
    with pytest.raises(InvalidInput, match="cannot be used"):
        FileStore(path)
    with pytest.raises(InvalidInput, match="cannot be used"):
        FileStore(tmp_path / "missing" / "spill.db")


def test_numbers_are_not_used_again_by_a_file_that_was_empty(tmp_path: Path) -> None:
    first = FileStore(tmp_path / "spill.db")
    assert first.put(b"a") == 1
    first.remove([1])
    producer = first.producer
    first.close()
    second = FileStore(tmp_path / "spill.db")
    assert second.producer != producer
    assert second.put(b"b") == 2
    second.close()


KILLED = """
import os, sys
from batonq.client.buffer import BlockingSendBuffer
from batonq.errors import Unavailable

def down(messages, *, producer):
    raise Unavailable("down")

buffer = BlockingSendBuffer(down, spill=sys.argv[1])
for number in range(500):
    buffer.put(number)
os.kill(os.getpid(), 9)
"""

LEFT = """
import logging, sys
from batonq.client.buffer import BlockingSendBuffer
from batonq.client.models import Sent

logging.basicConfig()

def slow(messages, *, producer):
    if sys.argv[1] == "down":
        raise ConnectionError("away")
    print(*(message.body for message in messages), flush=True)
    return [Sent("", 1)] * len(messages)

buffer = BlockingSendBuffer(slow, close_seconds=0.2 if sys.argv[1] == "down" else 60)
for number in range(3):
    buffer.put(number)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_a_killed_process_leaves_its_messages_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spill.db"
    assert python(KILLED, str(path)).returncode == -9
    server = Server()
    with BlockingSendBuffer(server.send_many, spill=path):
        pass
    assert server.taken == list(range(500))


def test_a_program_that_just_ends_has_its_messages_sent() -> None:
    left = python(LEFT, "up")
    assert left.stdout.split() == ["0", "1", "2"]
    assert (left.returncode, left.stderr) == (0, "")


def test_a_program_that_ends_during_an_outage_says_what_is_lost() -> None:
    left = python(LEFT, "down")
    assert "3 messages could not be sent, and when the process ends they are lost" in left.stderr


def test_a_forked_child_has_to_make_its_own() -> None:
    server = Server()
    with BlockingSendBuffer(server.send_many) as buffer:
        buffer._pid = os.getpid() + 1  # as a child sees it
        with pytest.raises(InvalidInput, match="after the fork"):
            buffer.put(1)
        buffer._pid = os.getpid()


def test_an_async_buffer_that_was_not_closed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> SendBuffer:
        server = Server()
        server.down = Unavailable("down")
        buffer = SendBuffer(server.asend_many, breaker=NEVER_OPEN)
        buffer.put("left")
        return buffer

    buffer = run(main())
    with caplog.at_level(logging.ERROR):
        buffer._tell_at_exit()
    atexit.unregister(buffer._tell_at_exit)
    assert "unclosed buffer: 1 messages could not be sent" in caplog.text

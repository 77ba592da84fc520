"""Group commit apart from shards: where a sync is done, and that everybody is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from batonq.core.commands import Receive, Send, Sent
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, LogError, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.frames import Frame
from batonq.log.interface import Done
from batonq.node.settings import Settings
from batonq.node.shard_host.group_commit import (
    INLINE_TRIAL_EVERY,
    NOTE_AFTER_S,
    CommitStatistics,
    GroupCommit,
    SyncChoice,
)
from batonq.node.shard_host.host import COMMAND_BYTES_MAX, committed
from tests.node.support import DEAD, ORDERS, Bench, VirtualLoop, open_bench, policies, run_virtual, settle
from tests.support.ask import batch, message
from tests.support.memory_log import MemoryLog

QUICK_S = 0.0001
SLOW_S = 0.005


def test_a_quick_disk_is_synced_on_the_loop_s_own_thread() -> None:
    choice = SyncChoice(0.001)
    for _ in range(1_000):
        assert not choice.in_thread()
        choice.measured(QUICK_S)


def test_a_few_slow_syncs_on_a_quick_disk_change_nothing() -> None:
    choice = SyncChoice(0.001)
    for at in range(1_000):
        assert not choice.in_thread()
        choice.measured(SLOW_S if at % 3 == 0 else QUICK_S)


def test_a_slow_disk_is_synced_on_a_thread_and_tried_again_now_and_then() -> None:
    choice = SyncChoice(0.001)
    for _ in range(50):
        choice.measured(SLOW_S)
    answers = [choice.in_thread() for _ in range(2 * INLINE_TRIAL_EVERY)]
    assert answers.count(False) == 2
    while choice.in_thread():
        choice.measured(QUICK_S)  # the disk is quick again
    choice.measured(QUICK_S)
    assert not choice.in_thread()


class ThreadedLog(MemoryLog):
    """Calls back from another thread, as a log may that commits over a network."""

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        super().append(frame, lambda problem: threading.Thread(target=done, args=(problem,)).start())


def test_a_log_may_call_back_from_any_thread() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        shard = Shard(0)
        log = ThreadedLog(0)
        told: list[int] = []
        commit = GroupCommit(
            loop=loop,
            machine=shard,
            log=log,
            cluster=1,
            region=0,
            before_seal=lambda: None,
            after_commit=lambda: told.append(threading.get_ident()),
            on_failure=lambda problem: pytest.fail(str(problem)),
            statistics=CommitStatistics(),
            inline_max_s=1.0,
            clock=loop.time,
        )
        shard.take_ownership(1, 1_000, 0)
        for at in range(20):
            shard.set_policy(policies()[0], 1_000 + at)
            point = commit.point()
            assert point is not None
            await point
        assert told == [threading.get_ident()] * 20 and commit.committed == 20

    asyncio.run(main())


class FarLog(MemoryLog):
    """Commits somewhere else: when the test says so."""

    far = True

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.waiting: list[tuple[Frame, Done]] = []
        self.begun: list[int] = []

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        self.begun.append(frame.number)
        self.waiting.append((frame, done))

    def commit(self) -> None:
        frame, done = self.waiting.pop(0)
        super().append(frame, done)


def test_a_log_that_commits_elsewhere_has_the_next_frame_before_the_replies_are_written() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        shard, log, seen = Shard(0), FarLog(0), list[tuple[int, list[int]]]()
        commit = GroupCommit(
            loop=loop,
            machine=shard,
            log=log,
            cluster=1,
            region=0,
            before_seal=lambda: None,
            after_commit=lambda: seen.append((commit.committed, list(log.begun))),
            on_failure=lambda problem: pytest.fail(str(problem)),
            statistics=CommitStatistics(),
            inline_max_s=1.0,
            clock=loop.time,
        )
        shard.take_ownership(1, 1_000, 0)
        replies: list[tuple[int, list[int]]] = []
        for at in range(3):
            shard.set_policy(policies()[0], 1_000 + at)
            commit.call(lambda problem: replies.append((commit.committed, list(log.begun))))
            await asyncio.sleep(0)
        assert log.begun == [1], "one at a time"
        log.commit()
        assert seen == [(1, [1])], "what is committed is told before anything else is sealed"
        assert (replies, log.begun) == ([], [1, 2]), "the log has the frame, and a turn of the loop to send it"
        await asyncio.sleep(0)
        assert replies == [(1, [1, 2])]
        log.commit()
        assert replies[1:] == [(2, [1, 2])] * 2 and commit.idle
        commit.stop("over")

    asyncio.run(main())


def test_one_reply_that_cannot_be_written_does_not_keep_the_others_from_being_told() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[BatonError | None] = []

        def broken(problem: BatonError | None) -> None:
            raise RuntimeError("the client's socket is odd")

        bench.put("a")
        bench.host.commit.call(broken)
        bench.host.commit.call(told.append)
        await settle()
        assert told == [None]
        bench.put("b")
        bench.host.commit.call(broken)
        bench.host.commit.call(told.append)
        bench.host.close("over")
        assert isinstance(told[1], Unavailable)

    run_virtual(main)


def test_what_is_open_when_the_log_has_failed_is_refused_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[BatonError | None] = []
        bench.put("a")
        bench.host.commit.abandon(RuntimeError("the disk is gone"))
        assert bench.host.shard.frame.rows, "what was decided is still there, and will never be committed"
        bench.host.commit.call(told.append)
        assert [type(problem) for problem in told] == [Unavailable]
        point = bench.host.commit.point()
        assert point is not None and isinstance(point.exception(), Unavailable)
        waiting = loop.create_future()
        bench.host.commit.release(waiting)
        assert isinstance(waiting.exception(), Unavailable)
        assert not bench.host.commit.pending

    run_virtual(main)


async def _with_a_frame_under_way(loop: VirtualLoop) -> tuple[Bench, FarLog]:
    log = FarLog(0)
    bench = Bench(loop, loop.clock(), log, Settings())
    starting = loop.create_task(bench.host.start())
    await settle()
    log.commit()
    await starting
    bench.host.set_policy(policies()[1])
    bench.host.commit.kick()
    await settle()
    log.commit()
    await settle()
    bench.put("under way")
    bench.host.commit.kick()
    await settle()
    assert bench.host.commit.appending and not bench.shard.frame.filled
    return bench, log


@pytest.mark.parametrize("end", ["close", "fail"])
@pytest.mark.parametrize("filled", [False, True])
def test_a_host_that_is_over_answers_at_once(end: str, filled: bool) -> None:
    """Those who hold it still are answered with a retryable error, whether or not a frame was under way."""

    async def main(loop: VirtualLoop) -> None:
        bench, _ = await _with_a_frame_under_way(loop)
        if filled:
            bench.put("in the open frame")
        if end == "close":
            bench.host.close("over")
        else:
            bench.host.commit.abandon(RuntimeError("the disk is gone"))
        for _ in range(2):
            commit = bench.host.commit
            point = bench.host.point()
            assert point is not None and isinstance(point.exception(), Unavailable)
            waiting = loop.create_future()
            commit.release(waiting)
            assert isinstance(waiting.exception(), Unavailable)
            told: list[BatonError | None] = []
            commit.call(told.append)
            assert [type(problem) for problem in told] == [Unavailable]
            assert commit.under_way() is None and not commit.pending
            with pytest.raises(Unavailable):
                await committed(bench.host)
            await settle()
            commit.kick()
            with pytest.raises(Unavailable):
                await asyncio.wait_for(bench.host.drain(), 1)

    run_virtual(main)


def test_what_is_committed_is_told_although_the_host_ends_before_that() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, log = await _with_a_frame_under_way(loop)
        told: list[BatonError | None] = []
        bench.host.commit.call(told.append)
        point = bench.host.point()
        bench.put("in the open frame")
        bench.host.commit.call(told.append)
        log.commit()
        assert not told, "the log has the next frame first"
        bench.host.close("over")
        assert told[0] is None and isinstance(told[1], Unavailable)
        assert point is not None and point.done() and point.exception() is None
        await settle()
        assert len(told) == 2

    run_virtual(main)


@pytest.mark.parametrize("far", [False, True])
def test_what_is_committed_is_told_whatever_raises_around_it(far: bool) -> None:
    """Also when everything that is done before a frame is sealed, and after it is committed, breaks off."""

    async def main(loop: VirtualLoop) -> None:
        log = FarLog(0) if far else MemoryLog(0)
        shard = Shard(0)

        def break_off() -> None:
            raise RuntimeError("broken by the test")

        commit = GroupCommit(
            loop=loop,
            machine=shard,
            log=log,
            cluster=1,
            region=0,
            before_seal=break_off,
            after_commit=break_off,
            on_failure=lambda problem: pytest.fail(str(problem)),
            statistics=CommitStatistics(),
            inline_max_s=1.0,
            clock=loop.time,
        )
        shard.take_ownership(1, 1_000, 0)
        told: list[BatonError | None] = []
        for at in range(3):
            shard.set_policy(policies()[0], 1_000 + at)
            commit.call(told.append)
            await settle()
        for _ in range(3):
            if isinstance(log, FarLog) and log.waiting:
                log.commit()
            await settle()
        assert told == [None] * 3 and commit.idle

    run_virtual(main)


def test_a_frame_that_cannot_be_sealed_ends_the_host() -> None:
    """It is opened again from its log; a frame that is tried for ever would hold up everybody for ever."""

    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[BatonError | None] = []

        def break_off() -> tuple[bytes, bytes]:
            raise MemoryError

        bench.shard.seal = break_off
        bench.put("a")
        bench.host.commit.call(told.append)
        await settle()
        assert [type(problem) for problem in told] == [Unavailable] and not bench.host.serving
        assert [type(failure) for failure in bench.failures] == [MemoryError]

    run_virtual(main)


def test_work_that_is_left_for_later_goes_on_after_the_commit_and_when_nothing_is_written() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        before_seal = bench.host.commit._before_seal
        left = [3]

        def some() -> None:
            before_seal()
            if left[0]:
                left[0] -= 1
                if left[0] == 2:
                    bench.put("b")
                bench.host.commit.resume()

        bench.host.commit._before_seal = some
        bench.put("a")
        await bench.committed()
        await settle()
        assert left == [0] and bench.host.commit.idle

    run_virtual(main)


def test_timers_go_on_after_a_step_that_failed() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a", delay_ms=1_000)
        advance, failing = bench.shard.advance, [True]

        def refuse(now: int) -> None:
            if failing.pop() if failing else False:
                raise OverLimit("refused by the test")
            advance(now)

        bench.shard.advance = refuse
        assert len(await bench.receive(wait_ms=20_000)) == 1
        assert not failing and loop.time() < 5

    run_virtual(main)


def test_frames_stay_within_what_the_log_takes() -> None:
    """Many large requests while one frame is under way: they go into several frames, and are told in their order."""

    async def main(loop: VirtualLoop) -> None:
        log = MemoryLog(0, segment_bytes=1 << 30, frame_bytes_max=COMMAND_BYTES_MAX + 100_000)
        bench = await open_bench(loop, log, settings=Settings(frame_bytes_max=1 << 30))
        for policy in policies():
            bench.host.set_policy(policy)
        await bench.committed()
        log.hold = True
        told: list[int] = []
        bench.put("the frame that is under way")
        bench.host.commit.kick()
        await settle()
        waiting = loop.create_task(bench.receive(10, 60_000, queue=DEAD))
        await settle()
        for number in range(6):
            bench.put("x" * 90_000)
            bench.host.commit.call(lambda problem, number=number: told.append(number))  # type: ignore[misc]
        bench.put("somebody waits for this", queue=DEAD)
        for _ in range(6):
            bench.put("y" * 90_000)
        last = bench.host.point()
        frames = 0
        while log._pending is not None:
            assert told == [0, 1, 2, 3, 4, 5][: len(told)], "each when its own frame is committed"
            assert last is not None and (not last.done() or len(told) == 6)
            log.release()
            frames += 1
            await settle()
        assert last is not None and last.done() and frames >= 6 and told == [0, 1, 2, 3, 4, 5]
        assert max(frame.size for frame in log.frames(1)) <= log.frame_bytes_max
        assert len(await waiting) == 1
        log.hold = False
        assert bench.host.commit.idle
        assert (await open_bench(loop, log)).shard.counters(ORDERS).visible == 13

    run_virtual(main)


def test_a_frame_that_was_finished_is_committed_although_nothing_follows_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        bench.put("a")
        bench.shard.frame.roll()
        assert not bench.host.commit.idle, "what is finished counts"
        point = bench.host.point()
        assert point is not None
        await point
        assert bench.shard.counters(ORDERS).visible == 1
        assert bench.log.next == bench.shard.frame.number

    run_virtual(main)


def test_a_reply_waits_for_its_own_frame_and_not_for_those_behind_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log, commit = bench.log, bench.host.commit
        assert isinstance(log, MemoryLog)
        log.hold = True
        told: list[str] = []
        for name in ("first", "second", "third"):
            bench.put(name)
            commit.call(lambda problem, name=name: told.append(name))  # type: ignore[misc]
            point = bench.host.point()
            assert point is not None
            point.add_done_callback(lambda _, name=name: told.append(f"{name} too"))  # type: ignore[misc]
            bench.shard.frame.roll()
        assert commit.pending == 6
        for count in (2, 4, 6):
            await settle()
            log.release()
            await settle()
            assert len(told) == count and commit.pending == 6 - count
        assert {name.removesuffix(" too") for name in told[:2]} == {"first"}

    run_virtual(main)


def test_replies_to_finished_frames_are_refused_when_the_log_fails() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        assert isinstance(bench.log, MemoryLog)
        bench.log.hold = True
        problems: list[BatonError | None] = []
        for name in ("first", "second", "third"):
            bench.put(name)
            bench.host.commit.call(problems.append)
            bench.shard.frame.roll()
        await settle()
        bench.log.release(LogError("refused by the test"))
        await settle()
        assert len(problems) == 3 and all(isinstance(problem, Unavailable) for problem in problems)
        assert bench.host.commit.pending == 0

    run_virtual(main)


def test_a_disk_that_turns_quick_while_many_are_served_ends_no_shard() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop, settings=Settings(frame_rows_max=2))
        assert isinstance(bench.log, MemoryLog)
        count = 400
        polls = [asyncio.create_task(bench.receive(wait_ms=20_000)) for _ in range(count)]
        await settle()
        bench.log.hold = True  # as an append in a thread
        bench.put("x", queue=DEAD)
        bench.host.commit.kick()
        await settle()
        bench.put(*["m"] * count)
        bench.log.hold = False
        bench.log.release()
        assert [len(leases) for leases in await asyncio.gather(*polls)] == [1] * count
        assert not bench.failures

    run_virtual(main)


def test_what_breaks_off_before_the_seal_is_not_sealed() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[object] = []

        def break_off(commands: Sequence[Send], now: int) -> list[Sent]:
            raise RuntimeError("half of it is there")

        before = bench.log.next
        bench.put("a")
        bench.host.commit.call(told.append)
        bench.shard.send = break_off
        bench.host.submit(batch(ORDERS, [message("b")]), told.append)
        bench.host.submit(Receive(ORDERS, 1, None, "tester"), told.append)
        await settle()
        assert [type(problem) for problem in told] == [Unavailable] * 3
        assert bench.log.next == before

    run_virtual(main)


def test_commands_of_one_turn_are_decided_just_before_the_frame_is_sealed() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[object] = []

        def odd(outcome: object) -> None:
            raise RuntimeError("one that cannot be told keeps no other from hearing")

        before = bench.log.next
        for done in (odd, told.append, told.append):
            bench.host.submit(batch(ORDERS, [message("a")]), done)
        bench.host.submit(batch(99, [message("to a queue that does not exist")]), odd)
        bench.host.submit(batch(99, [message("to a queue that does not exist")]), told.append)
        assert not bench.shard.frame.filled
        await settle()
        assert isinstance(told[0], QueueDoesNotExist), "a refusal waits for nothing"
        assert [type(outcome) for outcome in told[1:]] == [Sent, Sent] and bench.log.next == before + 1
        assert bench.shard.counters(ORDERS).visible == 3
        bench.host.submit(batch(ORDERS, [message("too late")]), told.append)
        bench.host.close("over")
        await settle()
        assert [type(outcome) for outcome in told[3:]] == [Unavailable]
        bench.host.submit(batch(ORDERS, [message("later still")]), told.append)
        await settle()
        assert [type(outcome) for outcome in told[4:]] == [Unavailable]

    run_virtual(main)


def test_whoever_asks_again_when_answered_is_answered_again() -> None:
    """Also if the answer needs no commit, and comes while the commands of a turn are executed."""

    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[object] = []

        def again(outcome: object) -> None:
            told.append(outcome)
            if len(told) < 5:
                bench.host.submit(Receive(ORDERS, 1, None, "tester"), again)

        bench.host.submit(Receive(ORDERS, 1, None, "tester"), again)
        await settle()
        assert len(told) == 5
        assert await asyncio.wait_for(bench.send("a"), 1), "and nobody else is held up"

    run_virtual(main)


def test_a_call_waits_like_a_future_does() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        told: list[BatonError | None] = []
        bench.host.commit.call(told.append)
        assert told == [None]
        log.hold = True
        bench.put("a")
        bench.host.commit.call(told.append)
        await settle()
        bench.host.commit.call(told.append)
        assert told == [None]
        log.release()
        assert told == [None] * 3

    run_virtual(main)


def test_a_note_of_what_is_committed_follows_soon() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        noted: list[int] = []
        bench.log.note = lambda: noted.append(bench.log.next - 1)  # type: ignore[method-assign]
        await asyncio.sleep(1)
        noted.clear()
        for _ in range(3):
            bench.put("a")
            point = bench.host.point()
            assert point is not None
            await point
        last = bench.log.next - 1
        assert not noted, "not at once: several commits share one"
        await asyncio.sleep(NOTE_AFTER_S)
        assert noted == [last]
        await asyncio.sleep(1)
        assert noted == [last], "once, and no more until there is something new"

    run_virtual(main)

"""The host: replies wait for what they read, limits refuse, failures answer everybody, timers fire on time."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

import pytest

from batonq.core.commands import ChangeVisibility, Delete, Failing, Leases, Nack, Receive, Sent
from batonq.core.limits import REQUEST_MESSAGES_MAX, ROLL_ROWS, ShardLimits
from batonq.core.records import Type
from batonq.core.shard.machine import Shard
from batonq.errors import DiskFull, LogError, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.interface import Room
from batonq.node.settings import Settings
from batonq.node.shard_host.host import COMMAND_BYTES_MAX
from batonq.node.shard_host.long_polls import TURN_MAX
from batonq.node.shard_host.recovery import replay_log
from tests.node.support import DEAD, FIFO, ORDERS, Bench, VirtualLoop, open_bench, policies, run_virtual, settle
from tests.support.ask import batch, message
from tests.support.memory_log import MemoryLog


def record_types(log: MemoryLog, number: int) -> list[int]:
    words: array[int] = log.frame(number).words()
    return [word & 0xFF for word in words[0::8]]


# --- speculate, then release ------------------------------------------------------------------


def test_a_reply_leaves_when_its_frame_is_committed() -> None:
    async def main(loop: VirtualLoop) -> None:
        log = MemoryLog(0)
        bench = await open_bench(loop, log=None)
        log = bench.log  # type: ignore[assignment]
        log.hold = True
        sending = loop.create_task(bench.send("a"))
        await settle()
        assert not sending.done()
        log.release()
        await settle()
        assert sending.done()

    run_virtual(main)


def test_nothing_open_and_nothing_under_way_means_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        assert bench.host.point() is None
        assert await bench.receive() == []

    run_virtual(main)


def test_draining_executes_what_has_arrived() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[object] = []
        bench.host.submit(batch(ORDERS, [message("a")]), told.append)
        bench.host.stop_waiting()
        await bench.host.drain()
        bench.host.submit(Receive(ORDERS, 1, None, "tester", wait_ms=5_000), told.append)
        await bench.host.drain()
        bench.host.close()
        await settle()
        assert [type(outcome) for outcome in told] == [Sent, Leases]

    run_virtual(main)


def test_while_a_frame_is_written_the_next_one_fills() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        first = log.next
        log.hold = True
        tasks = [loop.create_task(bench.send(f"first {n}")) for n in range(3)]
        await settle()
        tasks += [loop.create_task(bench.send(f"second {n}")) for n in range(50)]
        await settle()
        assert log.next == first
        log.release()
        await settle()
        assert [task.done() for task in tasks] == [True] * 3 + [False] * 50
        log.release()
        await settle()
        assert all(task.done() for task in tasks)
        assert log.frame(first).row_count == 3
        assert log.frame(first + 1).row_count == 50

    run_virtual(main)


def test_replies_are_released_in_the_order_of_their_decisions() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        order: list[int] = []

        async def client(number: int) -> None:
            await bench.send(str(number))
            order.append(number)

        await asyncio.gather(*(client(number) for number in range(20)))
        assert order == list(range(20))

    run_virtual(main)


def test_a_duplicate_of_a_send_that_is_not_committed_waits_for_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        log.hold = True
        first = loop.create_task(bench.send("a", queue=FIFO, group="g", dedup_id="d"))
        await settle()
        second = loop.create_task(bench.send("a", queue=FIFO, group="g", dedup_id="d"))
        await settle()
        assert not first.done() and not second.done()
        log.release()
        await settle()
        assert first.result()[0].message_id == second.result()[0].message_id
        assert second.result()[0].duplicate
        assert log.next == bench.shard.frame.number  # the duplicate wrote nothing

    run_virtual(main)


def test_a_duplicate_of_a_send_that_failed_is_not_acknowledged() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        log.hold = True
        tasks = [loop.create_task(bench.send("a", queue=FIFO, group="g", dedup_id="d")) for _ in range(2)]
        await settle()
        log.release(LogError("the disk is gone"))
        await settle()
        assert all(isinstance(task.exception(), Unavailable) for task in tasks)

    run_virtual(main)


def test_a_lease_on_a_message_that_is_not_committed_is_told_after_both() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        log.hold = True
        sending = loop.create_task(bench.send("a"))
        receiving = loop.create_task(bench.receive())
        await settle()
        assert not sending.done() and not receiving.done()
        log.release()
        await settle()
        assert len(receiving.result()) == 1

    run_virtual(main)


# --- long polls -------------------------------------------------------------------------------


def test_a_long_poll_gets_what_is_sent_in_the_same_frame() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        polling = loop.create_task(bench.receive(wait_ms=20_000))
        await settle()
        frame = log.next
        await bench.send("a")
        assert len(await polling) == 1
        assert record_types(log, frame) == [Type.SENT, Type.LEASED]

    run_virtual(main)


def test_long_polls_are_served_first_come_first_served() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        polls = [loop.create_task(bench.receive(wait_ms=20_000)) for _ in range(5)]
        await settle()
        await bench.send("a", "b", "c")
        await settle()
        assert [poll.done() for poll in polls] == [True] * 3 + [False] * 2
        assert [poll.result()[0].sequence for poll in polls[:3]] == [1, 2, 3]
        for poll in polls:
            poll.cancel()

    run_virtual(main)


def test_a_poll_that_comes_later_does_not_overtake_one_that_waits() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        waiting = loop.create_task(bench.receive(wait_ms=20_000))
        await settle()
        sent: list[object] = []
        bench.host.submit(batch(ORDERS, [message("a")]), sent.append)
        assert await bench.receive() == [] and len(sent) == 1
        assert len(await waiting) == 1

    run_virtual(main)


def test_many_that_come_at_once_do_not_overtake_the_many_that_wait() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        count = 3 * TURN_MAX
        waiting = [loop.create_task(bench.receive(wait_ms=20_000)) for _ in range(count)]
        await settle()
        sending = bench.submit(batch(ORDERS, [message(f"{at}") for at in range(count)]))
        late = [loop.create_task(bench.receive()) for _ in range(count)]
        assert [len(leases) for leases in await asyncio.gather(*waiting)] == [1] * count
        assert await asyncio.gather(*late) == [[]] * count and sending.done()

    run_virtual(main)


def test_a_long_poll_ends_empty_when_its_time_is_over() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        began_s = loop.time()
        assert await bench.receive(wait_ms=20_000) == []
        assert loop.time() - began_s == pytest.approx(20)
        assert bench.host.polls.total == 0

    run_virtual(main)


def test_a_client_that_goes_leaves_no_waiter_behind() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        for _ in range(10):
            polling = loop.create_task(bench.receive(wait_ms=20_000))
            await settle()
            assert bench.host.polls.waiting(ORDERS) == 1
            polling.cancel()
            await settle()
        assert bench.host.polls.total == 0
        await bench.send("a")
        assert len(await bench.receive()) == 1

    run_virtual(main)


def test_a_client_that_goes_before_its_answer_gives_the_message_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        for wait_ms in (0, 20_000):
            polling = loop.create_task(bench.receive(wait_ms=wait_ms))
            if not wait_ms:
                polling.cancel()
                polling = loop.create_task(asyncio.sleep(0, []))
            await settle()
            log.hold = True
            sending = loop.create_task(bench.send("a"))
            if not wait_ms:
                polling = loop.create_task(bench.receive())
            await settle()
            polling.cancel()
            await settle()
            log.hold = False
            log.release()
            await sending
            leases = await bench.receive()
            assert len(leases) == 1 and leases[0].receive_count == 1
            await bench.delete(leases[0])

    run_virtual(main)


def test_a_message_whose_delay_ends_wakes_a_long_poll() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a", delay_ms=5_000)
        began_s = loop.time()
        assert len(await bench.receive(wait_ms=20_000)) == 1
        assert 5 <= loop.time() - began_s < 5.2

    run_virtual(main)


def test_a_lease_that_runs_out_wakes_a_long_poll() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        assert len(await bench.receive(visibility_ms=3_000)) == 1
        began_s = loop.time()
        leases = await bench.receive(wait_ms=20_000)
        assert leases[0].receive_count == 2
        assert 3 <= loop.time() - began_s < 3.2

    run_virtual(main)


def test_a_fifo_group_that_is_free_again_wakes_a_long_poll() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a", "b", queue=FIFO, group="g")
        first = await bench.receive(queue=FIFO)
        polling = loop.create_task(bench.receive(queue=FIFO, wait_ms=20_000))
        await settle()
        assert not polling.done()
        await bench.delete(first[0], queue=FIFO)
        await settle()
        assert polling.done() and polling.result()[0].sequence == first[0].sequence + 1

    run_virtual(main)


def test_a_nacked_message_wakes_a_long_poll() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        first = await bench.receive()
        polling = loop.create_task(bench.receive(wait_ms=20_000))
        await settle()
        assert await bench.submit(Nack(ORDERS, [first[0][:3]], [Failing()])) == [None]
        await settle()
        assert polling.done() and len(polling.result()) == 1

    run_virtual(main)


@pytest.mark.parametrize("end", ["deleted", "closed", "stopping", "time over"])
def test_a_long_poll_that_cannot_be_told_keeps_no_other_from_hearing(end: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        told: list[object] = []

        def odd(outcome: object) -> None:
            raise RuntimeError("the client's socket is odd")

        for done in (odd, told.append):
            bench.host.submit(Receive(ORDERS, 1, None, "tester", wait_ms=5_000), done)
        await settle()
        assert bench.host.polls.total == 2
        if end == "deleted":
            bench.host.close_queue(ORDERS, 2)
        elif end == "closed":
            bench.host.close()
        elif end == "stopping":
            bench.host.stop_waiting()
        else:
            await asyncio.sleep(6)
        await settle()
        expected = {"deleted": QueueDoesNotExist, "closed": Unavailable}.get(end, Leases)
        assert [type(outcome) for outcome in told] == [expected]
        assert bench.host.polls.total == 0 and not bench.failures

    run_virtual(main)


def test_commands_are_refused_when_serving_those_who_wait_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that comes while others wait has them served first. If the shard breaks off then, everybody hears."""

    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        waiting = loop.create_task(bench.receive(wait_ms=20_000))
        await settle()

        def break_off(*arguments: object) -> None:
            raise RuntimeError("broken by the test")

        monkeypatch.setattr(bench.shard, "receive_at", break_off)
        tasks = [
            bench.submit(batch(ORDERS, [message("a")])),
            bench.submit(Receive(ORDERS, 1, None, "tester")),
            bench.submit(Receive(DEAD, 1, None, "tester")),
            bench.submit(Delete(ORDERS, [(1, 1, 1)])),
        ]
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, waiting, return_exceptions=True), 5)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 5
        assert [str(problem) for problem in bench.failures] == ["broken by the test"]

    run_virtual(main)


def test_deleting_a_queue_tells_those_who_wait_on_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        polling = loop.create_task(bench.receive(wait_ms=20_000))
        await settle()
        bench.host.close_queue(ORDERS, 2)
        await bench.committed()
        await settle()
        assert isinstance(polling.exception(), QueueDoesNotExist)

    run_virtual(main)


def test_idle_long_polls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        polls = [loop.create_task(bench.receive(wait_ms=20_000)) for _ in range(1000)]
        await settle()
        commits = bench.commits
        with monkeypatch.context() as patch:
            looks: list[int] = []
            patch.setattr(bench.shard, "advance", looks.append)
            await asyncio.sleep(19)
            assert looks == [] and bench.commits == commits
        assert await asyncio.gather(*polls) == [[]] * 1000

    run_virtual(main)


# --- late replies -----------------------------------------------------------------------------


def test_a_lease_is_extended_when_its_commit_took_long() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        await bench.send("a")
        log.hold = True
        receiving = loop.create_task(bench.receive(visibility_ms=10_000))
        await asyncio.sleep(4)
        log.hold = False
        log.release()
        leases = await receiving
        assert leases[0].deadline_ms == bench.clock.now_ms() + 10_000
        await asyncio.sleep(9)
        assert await bench.receive() == []
        assert await bench.delete(leases[0], strict=True) == [None]

    run_virtual(main)


def test_such_an_extension_leaves_the_attempt_of_its_receive_as_it_is() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        await bench.send("a", queue=FIFO, group="g", dedup_id="a")
        log.hold = True
        receiving = loop.create_task(bench.receive(1, 0, FIFO, 10_000, "attempt"))
        await asyncio.sleep(4)
        log.hold = False
        log.release()
        (lease,) = await receiving
        assert lease.deadline_ms == bench.clock.now_ms() + 10_000
        (again,) = await bench.receive(1, 0, FIFO, 10_000, "attempt")
        assert (again.sequence, again.epoch) == (lease.sequence, lease.epoch)

    run_virtual(main)


def test_a_lease_that_ran_out_before_its_commit_is_not_handed_over() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        await bench.send("a")
        log.hold = True
        receiving = loop.create_task(bench.receive(visibility_ms=2_000))
        await asyncio.sleep(4)
        log.hold = False
        log.release()
        assert await receiving == []
        assert (await bench.receive())[0].receive_count == 2

    run_virtual(main)


def test_a_late_receive_that_has_lost_a_lease_keeps_each_body_with_its_message() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        sent = await bench.send("a", "b", "c", "d", "e", "f")
        log.hold = True
        receives = [bench.submit(Receive(ORDERS, 3, 10_000, "tester")) for _ in range(2)]
        await asyncio.sleep(4)
        bench.host.purge(ORDERS, sent[3].sequence)
        log.hold = False
        log.release()
        lost, kept = await asyncio.gather(*receives)
        assert not lost
        assert [*zip(kept.leases.sequences, kept.bodies, strict=True)] == [
            (sent[4].sequence, b"e"),
            (sent[5].sequence, b"f"),
        ]

    run_virtual(main)


def test_a_quick_commit_extends_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        began_ms = bench.clock.now_ms()
        frame = bench.log.next
        leases = await bench.receive()
        assert leases[0].deadline_ms == began_ms + 30_000
        assert bench.log.next == frame + 1

    run_virtual(main)


# --- limits -----------------------------------------------------------------------------------


async def _full_frame(loop: VirtualLoop, settings: Settings, texts: list[str]) -> Bench:
    bench = await open_bench(loop, settings=settings)
    assert isinstance(bench.log, MemoryLog)
    bench.log.hold = True
    tasks = [loop.create_task(bench.send("under way"))]
    await settle()
    tasks += [loop.create_task(bench.send(text)) for text in texts]
    await settle()
    with pytest.raises(OverLimit):
        await bench.send("one more")
    bench.log.hold = False
    bench.log.release()
    await asyncio.gather(*tasks)
    await bench.send("room again")
    return bench


def test_rows_in_the_open_frame_are_limited() -> None:
    run_virtual(lambda loop: _full_frame(loop, Settings(frame_rows_max=10), ["x"] * 11))


def test_bytes_in_the_open_frame_are_limited() -> None:
    run_virtual(lambda loop: _full_frame(loop, Settings(frame_bytes_max=5_000), ["x" * 6_000]))


def test_requests_that_wait_for_a_commit_are_limited() -> None:
    run_virtual(lambda loop: _full_frame(loop, Settings(pending_max=5), ["x"] * 4))


def test_large_requests_of_one_turn_fit_into_frames() -> None:
    """A frame has room for 65,535 records: requests that arrive together are not put into one beyond that."""

    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop, settings=Settings(frame_rows_max=ROLL_ROWS))
        large = batch(ORDERS, [message("x")] * REQUEST_MESSAGES_MAX)
        sent = await asyncio.gather(*(bench.submit(large) for _ in range(100)), return_exceptions=True)
        taken = [one for one in sent if isinstance(one, Sent)]
        assert {type(one) for one in sent} == {Sent, OverLimit} and len(taken) > ROLL_ROWS / REQUEST_MESSAGES_MAX
        receive = Receive(ORDERS, REQUEST_MESSAGES_MAX, None, "tester")
        received = await asyncio.gather(*(bench.submit(receive) for _ in taken))
        assert [len(one) for one in received] == [REQUEST_MESSAGES_MAX] * len(taken)
        deletes = [Delete(ORDERS, one.leases.claims()) for one in received]
        results = await asyncio.gather(*map(bench.submit, deletes))
        assert not any(problem for some in results for problem in some)
        assert bench.shard.counters(ORDERS).deleted == REQUEST_MESSAGES_MAX * len(taken) and not bench.failures

    run_virtual(main)


def test_attributes_count_towards_the_bytes_of_a_frame() -> None:
    async def main(loop: VirtualLoop) -> None:
        log = MemoryLog(0, segment_bytes=1 << 30, frame_bytes_max=COMMAND_BYTES_MAX + 100_000)
        bench = await open_bench(loop, log)
        for policy in policies():
            bench.host.set_policy(policy)
        command = batch(ORDERS, [message("x", attributes=bytes(250_000)) for _ in range(4)])
        await asyncio.gather(*(bench.submit(command) for _ in range(16)))
        assert max(frame.size for frame in log.frames(1)) <= log.frame_bytes_max
        assert bench.shard.counters(ORDERS).visible == 64 and not bench.failures

    run_virtual(main)


def test_receives_of_one_turn_give_up_no_more_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they find expired is written before their leases; the rest is looked at later."""

    async def main(loop: VirtualLoop) -> None:
        limits = ShardLimits(timer_records_max=1, given_up_max=3)
        bench = await open_bench(loop, settings=Settings(shard_limits=limits))
        await bench.send(*["x"] * 40, ttl_ms=1_000)
        bench.host.polls.answers_at_once = True
        monkeypatch.setattr(bench.host, "_tick", lambda: None)
        await asyncio.sleep(2)
        frame = bench.log.next
        log = bench.log
        assert isinstance(log, MemoryLog)
        assert await asyncio.gather(*(bench.receive() for _ in range(10))) == [[]] * 10
        assert log.frame(frame).row_count <= 1 + 3

    run_virtual(main)


def test_long_polls_are_limited_for_each_queue_and_in_all() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop, settings=Settings(waiters_per_queue_max=2, waiters_max=3))
        polls = [loop.create_task(bench.receive(wait_ms=1_000)) for _ in range(2)]
        await settle()
        with pytest.raises(OverLimit):
            await bench.receive(wait_ms=1_000)
        polls.append(loop.create_task(bench.receive(wait_ms=1_000, queue=DEAD)))
        await settle()
        with pytest.raises(OverLimit):
            await bench.receive(wait_ms=1_000, queue=FIFO)
        await asyncio.gather(*polls)

    run_virtual(main)


# --- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_sends_and_takes_the_rest() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a", "b")
        room = Room.RESERVE
        bench.log.room = lambda: room  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await bench.send("c")
        leases = await bench.receive(2)
        assert await bench.delete(leases[0]) == [None]
        assert await bench.submit(ChangeVisibility(ORDERS, [leases[1][:3]], [0])) == [0]
        room = Room.NONE
        with pytest.raises(DiskFull):
            await bench.delete(leases[1])
        room = Room.PLENTY
        await bench.send("c")
        assert len(await bench.receive(10)) == 2

    run_virtual(main)


def test_timers_wait_while_nothing_can_be_written() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        await bench.receive(visibility_ms=1_000)
        room = Room.NONE
        bench.log.room = lambda: room  # type: ignore[method-assign]
        frame = bench.log.next
        await asyncio.sleep(5)
        assert bench.log.next == frame
        room = Room.PLENTY
        await asyncio.sleep(1.1)
        assert bench.log.next == frame + 1
        assert len(await bench.receive()) == 1

    run_virtual(main)


# --- failure ----------------------------------------------------------------------------------


def test_a_failed_append_answers_everybody_and_ends_the_host() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        polling = loop.create_task(bench.receive(queue=DEAD, wait_ms=20_000))
        log.hold = True
        tasks = [loop.create_task(bench.send("a"))]
        await settle()
        tasks.append(loop.create_task(bench.send("b")))
        await settle()
        log.release(LogError("the disk is gone"))
        await settle()
        for task in (*tasks, polling):
            problem = task.exception()
            assert isinstance(problem, Unavailable) and problem.retryable
        assert [str(problem) for problem in bench.failures] == ["the disk is gone"]
        with pytest.raises(Unavailable):
            await bench.send("c")
        shard = Shard(0)
        replay_log(shard, log)
        assert shard.counters(ORDERS).sent == 0  # nothing of it is in the log

    run_virtual(main)


def test_a_failure_while_starting_is_raised() -> None:
    async def main(loop: VirtualLoop) -> None:
        log = MemoryLog(0)
        log.hold = True
        starting = loop.create_task(open_bench(loop, log))
        await settle()
        log.release(LogError("the disk is gone"))
        with pytest.raises(Unavailable):
            await starting

    run_virtual(main)


# --- shutdown and recovery --------------------------------------------------------------------


def test_stopping_answers_long_polls_at_once_and_lets_no_other_wait() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        polls = [loop.create_task(bench.receive(wait_ms=20_000)) for _ in range(3)]
        await settle()
        began_s = loop.time()
        bench.host.stop_waiting()
        assert await asyncio.gather(*polls) == [[], [], []]
        assert await bench.receive(wait_ms=20_000) == []
        assert loop.time() == began_s

    run_virtual(main)


def test_draining_commits_what_was_decided() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        log.hold = True
        tasks = [loop.create_task(bench.send("a"))]
        await settle()
        tasks.append(loop.create_task(bench.send("b")))
        await settle()
        draining = loop.create_task(bench.host.drain())
        await settle()
        assert not draining.done()
        log.hold = False
        log.release()
        await draining
        assert bench.host.commit.idle
        await asyncio.gather(*tasks)

    run_virtual(main)


def test_the_log_alone_gives_the_same_state() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop, max_receives=2, dead_letter_queue=DEAD)
        await bench.send(*(f"message {number}" for number in range(20)))
        await bench.send(*(f"message {number}" for number in range(5)), queue=FIFO, group="g", dedup_id="d")
        for _ in range(4):
            leases = await bench.receive(7, visibility_ms=1_000)
            await bench.delete(*leases[:2])
            await asyncio.sleep(2)
        await bench.receive(3)
        await bench.host.drain()
        now_ms = bench.clock.now_ms()
        again = Shard(0)
        replay_log(again, bench.log)
        again.validate()
        assert again.dump(now_ms) == bench.shard.dump(now_ms)

    run_virtual(main)


def test_a_new_owner_gives_running_leases_grace_for_the_outage() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        leases = await bench.receive(visibility_ms=10_000)
        bench.host.close()
        await asyncio.sleep(25)
        again = await open_bench(loop, bench.log)
        assert again.shard.epoch == bench.shard.epoch + 1
        assert await again.receive() == []
        assert await again.delete(leases[0], strict=True) == [None]

    run_virtual(main)


def test_timers_go_on_after_a_restart() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        await bench.send("a")
        await bench.receive(visibility_ms=10_000)
        await bench.send("b", delay_ms=15_000)
        bench.host.close()
        again = await open_bench(loop, bench.log)
        assert len(await again.receive(10, wait_ms=12_000)) == 1
        assert len(await again.receive(10, wait_ms=12_000)) == 1

    run_virtual(main)


def test_the_status_of_a_queue_is_told_once_it_is_committed() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        log.hold = True
        sending = loop.create_task(bench.send("a"))
        await settle()
        counters = bench.host.counters(ORDERS)
        point = bench.host.point()
        assert counters.visible == 1 and point is not None and not point.done()
        log.release()
        await point
        await sending

    run_virtual(main)


# --- cold bodies --------------------------------------------------------------------------------


def test_who_is_answered_first_does_not_read_what_the_disk_has_yet_to_give_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        await bench.send("a")
        await bench.send("b")
        warm: set[int] = set()
        cold_reads: list[int] = []
        section = log.section

        def read(number: int) -> bytes | None:
            if number not in warm:
                cold_reads.append(number)
            return section(number)

        async def read_aside(_: object, work: Callable[[Sequence[int]], None], numbers: Sequence[int]) -> None:
            await asyncio.sleep(min(numbers))  # the second one's takes longer
            warm.update(numbers)

        monkeypatch.setattr(log, "is_cold", lambda number: number not in warm)
        monkeypatch.setattr(log, "section", read)
        monkeypatch.setattr(loop, "run_in_executor", read_aside)
        receives = [bench.submit(Receive(ORDERS, 1, 1_000_000, "tester")) for _ in range(2)]
        received = await asyncio.gather(*receives)
        assert [one.bodies for one in received] == [[b"a"], [b"b"]]
        assert not cold_reads

    run_virtual(main)

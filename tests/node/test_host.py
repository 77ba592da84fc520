"""The host: replies wait for what they read, limits refuse, failures answer everybody, timers fire on time."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from batonq.core.commands import Claim, Lease, Nack
from batonq.core.records import Type
from batonq.core.shard.machine import Shard
from batonq.errors import DiskFull, LogError, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.interface import Room
from batonq.node.recovery import fold_log
from batonq.node.settings import Settings
from tests.node.support import DEAD, FIFO, ORDERS, Bench, VirtualLoop, message, open_bench, run_virtual, settle
from tests.support.memory_log import MemoryLog


def claim(lease: Lease) -> Claim:
    return Claim(lease.slot, lease.sequence, lease.epoch)


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
        bench.host.send(ORDERS, [message("a")])
        late = await bench.receive()
        assert late == []
        assert len(await waiting) == 1

    run_virtual(main)


def test_a_long_poll_ends_empty_when_its_time_is_over() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        began_s = loop.time()
        assert await bench.receive(wait_ms=20_000) == []
        assert loop.time() - began_s == pytest.approx(20)
        assert bench.host.waiting_total == 0

    run_virtual(main)


def test_a_client_that_goes_leaves_no_waiter_behind() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        for _ in range(10):
            polling = loop.create_task(bench.receive(wait_ms=20_000))
            await settle()
            assert bench.host.waiting(ORDERS) == 1
            polling.cancel()
            await settle()
        assert bench.host.waiting_total == 0
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
            bench.host.delete(ORDERS, [claim(leases[0])])
            await bench.committed()

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
        bench.host.delete(FIFO, [claim(first[0])])
        await bench.committed()
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
        assert bench.host.nack(ORDERS, [Nack(claim(first[0]))]) == [None]
        await bench.committed()
        await settle()
        assert polling.done() and len(polling.result()) == 1

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
        assert bench.host.delete(ORDERS, [claim(leases[0])], strict=True) == [None]

    run_virtual(main)


def test_such_an_extension_leaves_the_attempt_of_its_receive_as_it_is() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop)
        log = bench.log
        assert isinstance(log, MemoryLog)
        await bench.send("a", queue=FIFO, group="g", dedup_id="a")
        log.hold = True
        receiving = loop.create_task(bench.host.receive(FIFO, 1, 10_000, 0, "tester", "attempt"))
        await asyncio.sleep(4)
        log.hold = False
        log.release()
        (lease,) = await receiving
        assert lease.deadline_ms == bench.clock.now_ms() + 10_000
        (again,) = await bench.host.receive(FIFO, 1, 10_000, 0, "tester", "attempt")
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
        bench.host.send(ORDERS, [message("one more")])
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
            bench.host.send(ORDERS, [message("c")])
        leases = await bench.receive(2)
        assert bench.host.delete(ORDERS, [claim(leases[0])]) == [None]
        assert bench.host.change_visibility(ORDERS, [(claim(leases[1]), 0)]) == [None]
        await bench.committed()
        room = Room.NONE
        with pytest.raises(DiskFull):
            bench.host.delete(ORDERS, [claim(leases[1])])
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
            bench.host.send(ORDERS, [message("c")])
        shard = Shard(0)
        fold_log(shard, log)
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
            bench.host.delete(ORDERS, [claim(lease) for lease in leases[:2]])
            await bench.committed()
            await asyncio.sleep(2)
        await bench.receive(3)
        await bench.host.drain()
        now_ms = bench.clock.now_ms()
        again = Shard(0)
        fold_log(again, bench.log)
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
        assert again.host.delete(ORDERS, [claim(leases[0])], strict=True) == [None]
        await again.committed()

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

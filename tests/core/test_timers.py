"""Time: what becomes due, in which order, how much at once, and that an owner is never told too late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batonq.core.limits import STEP_BYTES_MAX
from batonq.core.records import Reason, State, Type
from tests.core.rig import T0, Bench, claim, make_send
from tests.support import ask

DAY_MS = 86_400_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1)
    yield made
    made.check()


def go_by_timer(bench: Bench, end: int) -> list[int]:
    """Advance only when `next_due` says so, as a host does; the times at which records were written."""
    written = []
    while (due := bench.shard.next_due()) is not None and due <= end:
        bench.now = max(bench.now, due)
        bench.shard.advance(bench.now)
        written += [row.time for row in bench.check() if row.type is not Type.POLICY_SET]
    return written


def test_a_host_that_follows_next_due_is_never_late(bench: Bench) -> None:
    for ms in (1, 999, 30_000, 65_536, 70_000, 3_600_000, 43_200_000):
        bench.send(1, str(ms))
        bench.receive(1, visibility_ms=ms)
    bench.check()
    assert go_by_timer(bench, T0 + DAY_MS) == [
        T0 + ms for ms in (1, 999, 30_000, 65_536, 70_000, 3_600_000, 43_200_000)
    ]


def test_delays_need_no_record_but_wake_who_waits(bench: Bench) -> None:
    bench.send(1, "a", delay_ms=900_000)
    bench.shard.woken.clear()
    bench.check()
    assert go_by_timer(bench, T0 + 899_999) == []
    assert bench.shard.woken == set()
    assert go_by_timer(bench, T0 + 900_000) == []
    assert bench.shard.woken == {1}
    assert bench.shard.counters(1).visible == 1


def test_expiry_happens_in_the_second_that_it_should(bench: Bench) -> None:
    bench.send(1, "a", ttl_ms=5_000)
    bench.send(1, "b", ttl_ms=14 * DAY_MS)
    bench.check()
    assert go_by_timer(bench, T0 + 15 * DAY_MS) == [T0 + 5_000, T0 + 14 * DAY_MS]
    assert bench.shard.next_due() is None


def test_a_lease_that_was_extended_runs_out_at_its_new_deadline(bench: Bench) -> None:
    bench.send(1, "a")
    (lease,) = bench.receive(1)
    ask.change_visibility(bench.shard, 1, [(claim(lease), 3_600_000)], bench.now)
    bench.check()
    assert go_by_timer(bench, T0 + DAY_MS) == [T0 + 3_600_000]


def test_a_lease_that_was_shortened_runs_out_at_its_new_deadline(bench: Bench) -> None:
    bench.send(1, "a")
    (lease,) = bench.receive(1, visibility_ms=3_600_000)
    ask.change_visibility(bench.shard, 1, [(claim(lease), 1_000)], bench.now)
    bench.check()
    assert go_by_timer(bench, T0 + DAY_MS) == [T0 + 1_000]


def test_the_timers_of_a_slot_that_is_used_again_are_those_of_the_new_message(bench: Bench) -> None:
    bench.send(1, "old", ttl_ms=10_000)
    bench.delete(1, *bench.receive(1, visibility_ms=5_000))
    bench.send(1, "new", ttl_ms=60_000)
    bench.receive(1, visibility_ms=20_000)
    bench.check()
    assert go_by_timer(bench, T0 + DAY_MS) == [T0 + 20_000, T0 + 60_000]


def test_time_does_not_go_back(bench: Bench) -> None:
    bench.later(10_000)
    ask.send(bench.shard, 1, [], bench.now)
    bench.now -= 5_000
    bench.send(1, "a")
    bench.now += 5_000
    assert [row.time for row in bench.check() if row.type is Type.SENT] == [T0 + 10_000]


def test_what_is_due_at_once_is_bounded(bench: Bench) -> None:
    bench.limit(timer_records_max=3)
    bench.send(1, *"abcdefg")
    leases = bench.receive(1, visibility_ms=1_000)
    bench.check()
    bench.now += 1_000
    counts = []
    for _ in range(3):
        bench.shard.advance(bench.now)
        counts.append(sum(row.type is Type.RETURNED for row in bench.check()))
    assert counts == [3, 3, 1]
    assert len(leases) == 7


def test_a_lease_whose_end_is_not_yet_written_is_over_all_the_same(bench: Bench) -> None:
    bench.limit(timer_records_max=0)
    bench.queue(2, fifo=True)
    bench.send(1, "a")
    bench.send(2, "b", group="g")
    (standard,), (fifo,) = bench.receive(1), bench.receive(2)
    bench.now += 30_000
    assert bench.delete(2, fifo)[0] is not None
    assert bench.delete(1, standard) == [None]
    rows = bench.check()
    assert [row.reason for row in rows if row.type is Type.DELETED] == [Reason.LATE_ACK]


@pytest.mark.parametrize("how", ["follower", "snapshot", "replay", "base"])
def test_timers_go_on_under_another_owner(bench: Bench, how: str) -> None:
    bench.queue(2, fifo=True, max_receives=1, dead_letter_queue=9, dead_letter_on_failure=True)
    bench.send(1, "leased")
    bench.receive(1)
    bench.send(1, "delayed", delay_ms=40_000)
    bench.send(1, "short", ttl_ms=50_000)
    bench.send(2, "refused", group="g")
    bench.receive(2, visibility_ms=1_000)
    bench.later(1_000)  # its dead-letter queue is missing: tried again after one second
    bench.check()
    if how == "base":
        bench.truncate(bench.next_frame)
    successor = {"follower": bench.follower, "snapshot": bench.loaded()}.get(how) or bench.replayed()
    bench.restart(successor)
    bench.check()
    bench.later(1_000)
    assert [row.type for row in bench.check() if row.queue == 2] == [Type.OWED, Type.SETTLED]
    bench.later(28_000)
    assert [row.type for row in bench.check() if row.queue == 1] == [Type.RETURNED]
    bench.later(10_000)
    assert bench.shard.counters(1).delayed == 0
    bench.later(10_000)
    assert [row.type for row in bench.check() if row.queue == 1] == [Type.DELETED]
    assert [State(view.state) for view in bench.messages(1)] == [State.VISIBLE, State.VISIBLE]


def test_grace_is_given_to_running_leases_only(bench: Bench) -> None:
    bench.send(1, "a", "b")
    bench.receive(1, 1)
    bench.send(1, "c", delay_ms=30_000)
    bench.commit()
    bench.now += 20_000
    bench.restart(bench.follower, grace_ms=20_000)
    assert [view.until_ms - T0 for view in bench.messages(1)] == [50_000, 0, 30_000]
    assert bench.messages(1)[0].receive_count == 1
    bench.later(29_999)
    assert bench.shard.counters(1).in_flight == 1
    bench.later(1)
    assert bench.shard.counters(1).in_flight == 0


@pytest.mark.parametrize("fifo", [False, True])
def test_an_expired_message_is_not_given_out_even_when_very_many_expire_at_once(bench: Bench, fifo: bool) -> None:
    queue = bench.queue(2, retention_ms=60_000, fifo=fifo)
    count = 2 * bench.shard.journal.limits.timer_records_max
    sends = [make_send("old", group=f"g{number % 50}" if fifo else "") for number in range(count)]
    ask.send(bench.shard, queue, sends, bench.now)
    bench.commit()
    bench.now += 61_000
    assert bench.receive(queue) == []
    while bench.shard.queues[queue].messages:
        assert bench.receive(queue) == []
        bench.commit()
    assert bench.shard.queues[queue].expired_messages == count
    bench.check()


def test_a_receive_is_not_given_again_once_its_leases_ran_out(bench: Bench) -> None:
    queue = bench.queue(2, fifo=True, visibility_ms=30_000)
    count = 2 * bench.shard.journal.limits.timer_records_max
    ask.send(bench.shard, queue, [make_send("one", group=f"g{number}") for number in range(count)], bench.now)
    bench.receive(queue, count - 5)
    first = bench.receive(queue, 5, attempt="again")
    bench.now += 30_000
    assert len(first) == 5 and not {lease.sequence for lease in first} & {
        lease.sequence for lease in bench.receive(queue, 5, attempt="again") if lease.epoch == 1
    }
    bench.check()


# --- a step is bounded -------------------------------------------------------------------------------


def reversed_slots(bench: Bench, count: int) -> None:
    """Free slots that new messages get from the highest to the lowest."""
    queue = bench.queue(9)
    ask.send(bench.shard, queue, [make_send("x") for _ in range(count)], bench.now)
    for lease in bench.receive(queue, count):
        assert ask.delete(bench.shard, queue, [claim(lease)], bench.now) == [None]
    bench.commit()


@pytest.mark.parametrize("records_max", [1, 2, 3])
@pytest.mark.parametrize("by_expiry", [False, True])
def test_dead_letters_of_a_group_arrive_in_order_however_few_a_step_ends(
    bench: Bench, records_max: int, by_expiry: bool
) -> None:
    reversed_slots(bench, 5)
    bench.limit(timer_records_max=records_max)
    bench.queue(
        2,
        fifo=True,
        max_receives=1,
        dead_letter_queue=3,
        dead_letter_on_failure=True,
        expiry_to_dead_letter=True,
        retention_ms=60_000,
    )
    bench.queue(3, fifo=True)
    for letter in "abcde":
        bench.send(2, letter, group="g")
    slots = [view.slot for view in bench.messages(2)]
    assert slots == sorted(slots, reverse=True)
    if not by_expiry:
        assert len(bench.receive(2, 10, visibility_ms=30_000)) == 5
    bench.check()
    go_by_timer(bench, T0 + 61_000)
    bench.now = T0 + 61_000
    leases = bench.receive(3, 10)
    bench.commit()
    assert [bench.payload(lease).body.decode() for lease in leases] == list("abcde")


def test_a_step_writes_a_bounded_number_of_bytes(bench: Bench) -> None:
    """Dead letters take their past along; what does not fit into one step stays due."""
    count = 1_500
    bench.queue(2, max_receives=2, dead_letter_queue=3, dead_letter_on_failure=True)
    bench.queue(3)
    ask.send(bench.shard, 2, [make_send("x") for _ in range(count)], bench.now)
    nacks = [ask.Nack(claim(lease), 0, "r" * 500, "e" * 100) for lease in bench.receive(2, count)]
    assert not any(ask.nack(bench.shard, 2, nacks, bench.now))
    bench.commit()
    assert len(bench.receive(2, count, visibility_ms=30_000)) == count
    bench.check()
    bench.now += 30_000
    steps = 0
    while (due := bench.shard.next_due()) is not None and due <= bench.now:
        assert bench.shard.frame.size == 0
        bench.shard.advance(bench.now)
        assert bench.shard.frame.size <= STEP_BYTES_MAX + 4_096
        bench.check()
        steps += 1
    assert steps > 2
    assert bench.shard.counters(3).visible == count and not bench.shard.queues[2].messages


@pytest.mark.parametrize("fifo", [False, True])
def test_one_command_ends_a_bounded_number_of_delays(bench: Bench, fifo: bool) -> None:
    """Very many delays can be over at the same moment. What one command leaves stays due, and keeps its order."""
    bench.limit(timer_records_max=3)
    queue = bench.queue(2, fifo=fifo, delay_ms=10_000)
    bodies = [f"{number}" for number in range(20)]
    ask.send(bench.shard, queue, [make_send(body, group="g" if fifo else "") for body in bodies], bench.now)
    bench.commit()
    bench.now += 10_000
    steps = 0
    while (due := bench.shard.next_due()) is not None and due <= bench.now:
        before = bench.shard.queues[queue].delayed
        bench.shard.advance(bench.now)
        assert before - bench.shard.queues[queue].delayed <= 3
        bench.shard.validate()
        steps += 1
    assert steps >= 7 and bench.shard.queues[queue].delayed == 0
    leases = bench.receive(queue, 20)
    bench.commit()
    assert [bench.payload(lease).body.decode() for lease in leases] == bodies
    bench.check()


def test_a_receive_while_delays_are_left_over_is_replayed(bench: Bench) -> None:
    """Replay ends all delays that are over. What was decided while some of them were not is the same there."""
    bench.limit(timer_records_max=1)
    queue = bench.queue(2)
    ask.send(bench.shard, queue, [make_send(f"{number}", delay_ms=5_000) for number in range(5)], bench.now)
    bench.commit()
    bench.now += 5_000
    for number in range(5):
        ask.send(bench.shard, queue, [make_send(f"new {number}")], bench.now)
        (lease,) = bench.receive(queue, 1)
        assert ask.delete(bench.shard, queue, [claim(lease)], bench.now) == [None]
        bench.shard.validate()
        if number == 0:
            assert bench.shard.queues[queue].delayed > 0
    assert bench.shard.queues[queue].messages == 5
    bench.check()  # also ends what is left over

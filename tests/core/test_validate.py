"""`validate()` sees it when the state is not what it must be: each kind of damage is planted and found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batonq.core.records import State
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.columns import NIL
from tests.core.rig import Bench


def furnished() -> Bench:
    """Messages in every state: in a standard queue (1), a FIFO queue (2), and on the way to another shard."""
    bench = Bench()
    bench.queue(1, max_receives=1, dead_letter_on_failure=True)
    bench.queue(2, fifo=True, dedup_lives=True)
    bench.queue(3, max_receives=1, dead_letter_on_failure=True, dead_letter_queue=9, dead_letter_shard=1)
    bench.send(1, "dead")
    bench.send(3, "owed")
    bench.receive(1)
    bench.receive(3)
    bench.later(30_000)
    bench.send(1, "held")
    bench.receive(1)
    bench.send(1, "visible", "too")
    bench.send(1, "grouped", group="g")
    bench.send(1, "delayed", delay_ms=60_000)
    bench.send(2, "first", "second", group="g")
    bench.send(2, "keyed", group="h", dedup_id="k")
    bench.check()
    return bench


def slot_of(shard: Shard, state: State, queue: int = 1) -> int:
    columns = shard.columns
    return next(s for s in shard.live_slots() if columns.state[s] == state and columns.queue[s] == queue)


def set_state(state: State, to: State) -> Callable[[Shard], None]:
    def plant(shard: Shard) -> None:
        shard.columns.state[slot_of(shard, state)] = to

    return plant


def second_sequence(shard: Shard) -> None:
    one, other = (slot_of(shard, state) for state in (State.VISIBLE, State.DELAYED))
    shard.columns.sequence[one] = shard.columns.sequence[other]


def unborn_sequence(shard: Shard) -> None:
    shard.columns.sequence[slot_of(shard, State.DELAYED)] = shard.next_sequence


def lost_slot(shard: Shard) -> None:
    shard.columns.take(shard.columns.used)


def two_holders(shard: Shard) -> None:
    shard.messages.holders[slot_of(shard, State.VISIBLE)] = "somebody"


def no_holder(shard: Shard) -> None:
    del shard.messages.holders[slot_of(shard, State.IN_FLIGHT)]


def no_lease_timer(shard: Shard) -> None:
    shard.columns.timer[slot_of(shard, State.IN_FLIGHT)] = NIL << 32


def no_epoch(shard: Shard) -> None:
    shard.columns.epoch[slot_of(shard, State.IN_FLIGHT)] = 0


def no_expiry_timer(shard: Shard) -> None:
    shard.columns.expiry_timer[slot_of(shard, State.VISIBLE)] = NIL


def no_delay_timer(shard: Shard) -> None:
    shard.timers.delays.clear()


def miscounted(shard: Shard) -> None:
    shard.queues[1].visible += 1


def wrong_bytes(shard: Shard) -> None:
    shard.queues[1].bytes -= 1


def leases_miscounted(shard: Shard) -> None:
    shard.queues[1].ready.in_flight_total += 1


def out_of_line(shard: Shard) -> None:
    shard.messages.lines.unlink(slot_of(shard, State.VISIBLE))


def order_of_arrival(shard: Shard) -> None:
    shard.queues[1].head = shard.columns.queue_next[shard.queues[1].head]


def ring_without_a_group(shard: Shard) -> None:
    ready = shard.queues[2].ready
    (lane,) = ready.lanes.values()
    shard.messages.lines.leave_ring(lane, lane.quiet)


def group_out_of_order(shard: Shard) -> None:
    columns = shard.columns
    first = slot_of(shard, State.VISIBLE, 2)
    second = columns.line_next[first]
    columns.sequence[first], columns.sequence[second] = columns.sequence[second], columns.sequence[first]


def owed_to_nobody(shard: Shard) -> None:
    shard.transfers.owed_to.clear()


def owed_twice(shard: Shard) -> None:
    channel = shard.transfers.channels[1]
    channel.last += 1
    channel.unsettled[channel.last] = slot_of(shard, State.OWED, 3)
    shard.transfers.owed_to[slot_of(shard, State.OWED, 3)] = (1, channel.last, 9, 20)


def settled_too_far(shard: Shard) -> None:
    shard.transfers.channels[1].settled = shard.transfers.channels[1].last


def key_of_another(shard: Shard) -> None:
    ((slot, (key, end)),) = shard.dedup.living.items()
    shard.dedup.living = {slot_of(shard, State.VISIBLE, 2): (key, end)}
    assert slot not in shard.dedup.living


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (second_sequence, "one sequence"),
        (unborn_sequence, "was not given out"),
        (lost_slot, "slot is lost"),
        (two_holders, "has a holder"),
        (no_holder, "has no holder"),
        (no_lease_timer, "a lease has no timer"),
        (no_epoch, "a lease without an epoch"),
        (no_expiry_timer, "will not expire"),
        (no_delay_timer, "a delay has no timer"),
        (miscounted, "counters are not its messages'"),
        (wrong_bytes, "bytes are not its messages'"),
        (leases_miscounted, "leases are miscounted"),
        (out_of_line, "is or is not ready"),
        (order_of_arrival, "order of arrival"),
        (ring_without_a_group, "a group is open though"),
        (group_out_of_order, "in order of arrival"),
        (owed_to_nobody, "on no channel"),
        (owed_twice, "names another message|on two"),
        (settled_too_far, "settled already"),
        (key_of_another, "a living key names another message"),
        (set_state(State.VISIBLE, State.IN_FLIGHT), "has no holder"),
        (set_state(State.IN_FLIGHT, State.VISIBLE), "has a holder"),
        (set_state(State.DELAYED, State.VISIBLE), "is or is not ready"),
        (set_state(State.DEAD, State.OWED), "on no channel"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_seen(plant: Callable[[Shard], None], says: str) -> None:
    shard = furnished().shard
    shard.validate()
    plant(shard)
    with pytest.raises(AssertionError, match=says):
        shard.validate()

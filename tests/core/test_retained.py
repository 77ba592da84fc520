"""Retained history: the index of a queue, what it costs, when it ends, and that a log gives it back exactly."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from batonq.core.policy import QueuePolicy
from batonq.core.records import PLAIN_VERSION, RETAINING_VERSION, Type
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.retained import CHUNK, NOTHING, Retained
from tests.core.rig import T0, Bench

HOUR_MS = 3_600_000
S_MS = 1000


class Naive:
    """The same index, as plainly as possible."""

    def __init__(self, retain_ms: int) -> None:
        self.retain_ms = retain_ms
        self.entries: list[tuple[int, int]] = []

    def end_old(self, now_ms: int) -> None:
        ended_s = (now_ms - self.retain_ms) // 1000
        self.entries = [entry for entry in self.entries if entry[1] > ended_s]


@pytest.mark.parametrize("seed", range(4))
def test_the_index_is_as_a_plain_list_would_be(seed: int) -> None:
    random = Random(seed)
    retained, naive = Retained(60_000), Naive(60_000)
    position, now = 5, T0
    for _ in range(120):
        now += random.choice((0, 1, 500, 1000, 7000))
        done = random.random()
        if done < 0.3:
            position += random.randrange(1, 5)
            retained.append(position, now)
            naive.entries.append((position, -(-now // 1000)))
        elif done < 0.7:
            count = random.choice((1, 3, 200, CHUNK - 1, CHUNK, CHUNK + 1))
            retained.extend(range(position + 1, position + 1 + count), now)
            naive.entries += [(position + 1 + at, -(-now // 1000)) for at in range(count)]
            position += count
        elif done < 0.8:
            retained.end_old(now)
            naive.end_old(now)
        elif done < 0.85 and naive.entries:
            below = random.choice(naive.entries)[0]
            retained.drop_below(below)
            naive.entries = [entry for entry in naive.entries if entry[0] >= below]
        elif done < 0.9:
            again = Retained(retained.retain_ms)
            again.load(retained.facts(), retained.save())
            retained = again
        positions = [entry[0] for entry in naive.entries]
        assert len(retained) == len(positions)
        assert retained.first == (positions[0] if positions else NOTHING)
        assert retained.last == (positions[-1] if positions else 0)
        asked = random.choice(positions) + random.choice((-1, 0, 1)) if positions else position
        after = [one for one in positions if one > asked]
        assert retained.count_after(asked) == len(after)
        assert retained.has(asked) == (asked in positions)
        assert [*retained.positions(retained.index_after(asked), 50)] == after[:50]
        at_ms = now - random.randrange(80_000)
        later = [entry for entry in naive.entries if entry[1] * 1000 >= at_ms]
        assert len(retained) - retained.index_at_time(at_ms) == len(later)
        if later:
            assert retained.time_at(retained.index_at_time(at_ms)) == later[0][1] * 1000
    retained.validate()
    assert retained.entries() == naive.entries


def test_a_retained_message_costs_at_most_16_bytes() -> None:
    count = 1_000_000
    tracemalloc.start()
    retained = Retained(HOUR_MS)
    before = tracemalloc.get_traced_memory()[0]
    for at in range(0, count, 100):
        retained.extend(range(at, at + 100), T0 + at)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(retained) == count
    assert used / count <= 16, f"{used / count:.1f} bytes per message"


def test_what_is_old_leaves_the_index_and_frees_its_memory() -> None:
    retained = Retained(HOUR_MS)
    for at in range(100):
        retained.extend(range(at * CHUNK, (at + 1) * CHUNK), T0 + at * 60_000)
    retained.end_old(T0 + 59 * 60_000)
    assert len(retained) == 100 * CHUNK
    retained.end_old(T0 + HOUR_MS + 50 * 60_000)
    assert len(retained) == 49 * CHUNK and len(retained.save()["positions"]) == 49 * CHUNK * 8
    retained.end_old(T0 + 10 * HOUR_MS)
    assert len(retained) == 0 and retained.front() == NOTHING and not retained.save()["positions"]


# --- in a shard -------------------------------------------------------------------------------------


def positions(rig: Bench, queue: int = 1) -> list[int]:
    return [position for position, _ in rig.shard.retained_of(queue, rig.now).entries()]


def sent_rows(rig: Bench, queue: int = 1) -> list[int]:
    """Positions of the records with which messages entered a queue, read from the log."""
    rows = [row for number in sorted(rig.frames) for row in rig.frames[number].rows()]
    return [row.position for row in rows if row.type in (Type.SENT, Type.ARRIVED) and row.queue == queue]


def test_messages_stay_in_the_history_after_they_are_deleted() -> None:
    rig = Bench()
    rig.queue(1, retain_ms=HOUR_MS)
    rig.send(1, "a", "b", "c")
    rig.commit()
    rig.delete(1, *rig.receive(1))
    rig.send(1, "d")
    rig.shard.purge(1, rig.now)
    rig.check()
    assert len(positions(rig)) == 4 and positions(rig) == sent_rows(rig)
    assert rig.shard.queue_state(1).messages == 0


def test_a_queue_without_retention_pays_nothing() -> None:
    rig = Bench()
    rig.queue(1)
    rig.send(1, "a")
    rig.check()
    assert rig.shard.queue_state(1).retained is None and not rig.shard.messages.retaining
    assert rig.shard.format == PLAIN_VERSION
    assert b"retain" not in QueuePolicy(1, "tenant", "q1").encode()
    rig.queue(1, retain_ms=1000)
    rig.check()
    assert rig.shard.format == rig.follower.format == RETAINING_VERSION


def test_retention_ends() -> None:
    rig = Bench()
    rig.queue(1, retain_ms=10 * S_MS)
    rig.send(1, "a")
    rig.commit()
    rig.later(6 * S_MS)
    rig.send(1, "b")
    rig.check()
    front = positions(rig)[0] >> 16
    assert rig.shard.retained_front(rig.now) == front
    rig.later(4 * S_MS)
    rig.check()
    assert positions(rig) == sent_rows(rig)[1:]
    assert rig.shard.retained_front(rig.now) > front
    rig.later(6 * S_MS)
    rig.check()
    assert positions(rig) == []
    assert rig.shard.retained_front(rig.now) == NOTHING >> 16


def test_a_longer_retention_does_not_bring_back_what_has_ended() -> None:
    rig = Bench()
    rig.queue(1, retain_ms=10 * S_MS)
    rig.send(1, "a")
    rig.later(20 * S_MS)
    rig.queue(1, retain_ms=HOUR_MS)  # the owner has not looked at the history meanwhile
    rig.send(1, "b")
    rig.check()
    assert positions(rig) == sent_rows(rig)[1:]
    rig.queue(1)
    rig.queue(1, retain_ms=HOUR_MS)
    rig.check()
    assert positions(rig) == []


def test_the_history_of_a_deleted_queue_ends_at_once() -> None:
    rig = Bench()
    rig.queue(1, retain_ms=HOUR_MS)
    rig.send(1, "a")
    rig.commit()
    rig.shard.close_queue(1, 2, rig.now)
    rig.check()
    assert rig.shard.retained_front(rig.now) == NOTHING >> 16
    rig.shard.purge(1, rig.now)
    rig.check()


def test_a_message_that_moves_within_the_shard_keeps_the_frame_of_its_payload() -> None:
    rig = Bench()
    rig.queue(2, retain_ms=HOUR_MS)
    rig.queue(1, max_receives=1, dead_letter_queue=2, dead_letter_on_failure=True)
    rig.send(1, "a")
    rig.commit()
    payload_frame = sent_rows(rig)[0] >> 16
    (lease,) = rig.receive(1, visibility_ms=S_MS)
    rig.commit()
    rig.later(S_MS)
    rig.check()
    assert positions(rig, 2) == sent_rows(rig, 2) and len(positions(rig, 2)) == 1
    assert rig.shard.retained_front(rig.now) == payload_frame < positions(rig, 2)[0] >> 16
    rig.delete(2, *rig.receive(2))
    rig.check()
    for successor in (rig.replayed(), rig.loaded()):
        assert successor.retained_front(rig.now) == payload_frame
    assert lease


@pytest.mark.parametrize("seed", range(10))
def test_replay_snapshots_and_truncation_give_the_same_history(seed: int) -> None:
    random = Random(seed)
    rig = Bench()
    rig.queue(1, retain_ms=30 * S_MS)
    rig.queue(2, retain_ms=20 * S_MS, fifo=True)
    rig.queue(4, retain_ms=20 * S_MS)
    rig.queue(3, max_receives=1, dead_letter_queue=4)
    for step in range(60):
        done = random.random()
        if done < 0.4:
            queue = random.choice((1, 2, 3))
            fields = {"group": random.choice("xyz"), "dedup_id": f"{step}"} if queue == 2 else {}
            for at in range(random.choice((1, 5))):
                rig.send(queue, f"{step} {at}", **({**fields, "dedup_id": f"{step} {at}"} if queue == 2 else {}))
        elif done < 0.6:
            for queue in (1, 2, 3, 4):
                leases = rig.receive(queue, random.randrange(1, 6), visibility_ms=2 * S_MS)
                rig.commit()
                rig.delete(queue, *leases[: random.randrange(len(leases) + 1)])
        elif done < 0.75:
            rig.later(random.choice((1, 700, 5_000)))
        elif done < 0.8:
            rig.queue(random.choice((1, 4)), retain_ms=random.choice((0, 5, 30, 100)) * S_MS)
            rig.queue(2, retain_ms=random.choice((5, 20)) * S_MS, fifo=True)
        elif done < 0.9:
            rig.commit()
            boundary = min(rig.shard.retained_front(rig.now), rig.next_frame - 1)
            if boundary > min(rig.frames):
                rig.truncate(boundary)
        else:
            rig.commit()
            rig.restart(random.choice((rig.replayed, rig.loaded))())
        rig.check()
        entered = {queue: sent_rows(rig, queue) for queue in rig.shard.messages.retaining}
        for queue, rows in entered.items():
            kept = positions(rig, queue)
            assert kept == rows[len(rows) - len(kept) :]


def test_a_policy_of_an_older_release_has_no_retention() -> None:
    old = QueuePolicy(1, "tenant", "q1").encode()
    assert QueuePolicy.decode(old).retain_ms == 0
    new = QueuePolicy(1, "tenant", "q1", retain_ms=5)
    assert QueuePolicy.decode(new.encode()) == new
    shard = Shard(0)
    shard.begin_frame(1)
    shard.set_policy(new, T0)
    assert shard.format == RETAINING_VERSION

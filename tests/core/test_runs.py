"""Runs of plain records (runs.py): the same replies, records and state as one record at a time."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.commands import Claim, Send
from batonq.core.records import ArrivedFlag, Type
from batonq.core.shard.machine import Shard
from batonq.core.shard.queuestate import QueueState
from batonq.errors import LogCorrupt
from tests.core.rig import Bench, Row, make_send
from tests.support.doubles import double


@double()
class Plodding(Shard):
    """A shard that does everything one record at a time."""

    def _sends_are_plain(self, queue: QueueState, sends: Sequence[Send]) -> bool:
        return False

    def _held(self, *_: object) -> bool:
        return False

    def _any_expired(self, *_: object) -> bool:
        return True  # so that every message of a receive is looked at by itself

    def _fold_frame_of_sends(self, *_: object) -> bool:
        return False

    def _fold_run(self, *_: object) -> bool:
        return False


class Plod(Bench):
    """A bench whose owner and follower both plod."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Plodding(0)
        self.shard.begin_frame(1)
        self.follower = Plodding(0)
        self.shard.take_ownership(1, self.now, 0)
        self.frames.clear()
        self.next_frame = 1
        self.commit()


def play(bench: Bench, seed: int) -> list[object]:
    """A script of commands that depends on the seed alone; returns every reply."""
    dice = random.Random(seed)
    bench.queue(1, max_receives=dice.choice((0, 2)), dead_letter_queue=2)
    bench.queue(2)
    replies: list[object] = []
    held: list[Claim] = []
    for _ in range(dice.randint(5, 40)):
        bench.later(dice.choice((0, 0, 1, 1000, 31_000)))
        queue = dice.choice((1, 1, 1, 2))
        deed = dice.random()
        if deed < 0.4:
            plain = dice.random() < 0.8
            fields = (
                {} if plain else dice.choice(({"group": "g"}, {"ttl_ms": 5000}, {"priority": 3}, {"delay_ms": 500}))
            )
            sends = [make_send(f"{dice.random()}", **fields) for _ in range(dice.randint(1, 12))]
            replies += bench.shard.send(queue, sends, bench.now)
        elif deed < 0.75:
            leases = bench.receive(queue, dice.randint(1, 10), dice.choice((None, 5000)))
            replies += [lease._replace(slot=0) for lease in leases]
            held += [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]
        elif held:
            taken = [held.pop() for _ in range(min(len(held), dice.randint(1, 10)))]
            replies += map(str, bench.shard.delete(queue, taken, bench.now))
        if dice.random() < 0.5:
            bench.check()
    bench.check()
    return replies


def records(bench: Bench) -> list[Row]:
    """All that the log says, but for slots: which one a message gets is free."""
    rows = [row for number in sorted(bench.frames) for row in bench.frames[number].rows()]
    return [row._replace(slot=0, w5=0 if row.flags & ArrivedFlag.OVERLAY else row.w5) for row in rows]


@given(st.integers(min_value=0, max_value=1 << 32))
def test_both_ways_give_the_same(seed: int) -> None:
    quick, slow = Bench(), Plod()
    assert play(quick, seed) == play(slow, seed)
    assert records(quick) == records(slow)
    assert quick.shard.dump(quick.now) == slow.shard.dump(slow.now)


def test_a_time_to_live_of_its_own_in_the_middle_of_a_run() -> None:
    bench = Bench()
    bench.queue(1)
    bench.shard.send(1, [make_send("a"), make_send("b", ttl_ms=5000), make_send("c")], bench.now)
    bench.check()


def test_a_slot_that_the_free_list_names_twice_is_given_out_once() -> None:
    """The list of a shard that came up from a Base is in another order than that of the owner it followed."""
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b", "c")
    leases = bench.receive(1)
    bench.delete(1, leases[1], leases[2])
    bench.truncate(bench.next_frame)
    for _ in range(3):
        bench.send(1, "x")
        bench.delete(1, *bench.receive(1))
    bench.check()
    bench.restart(bench.follower)
    sent = bench.send(1, "d", "e", "f", "g")
    assert bench.waiting(1) == ["a", "d", "e", "f", "g"]
    assert len({accepted.message_id for accepted in sent}) == 4
    bench.check()


def test_a_run_of_nothing() -> None:
    bench = Bench()
    bench.queue(1)
    bench.check()
    assert bench.send(1) == bench.delete(1) == []
    assert bench.check() == []


def test_a_run_over_slots_that_are_used_again_and_new_ones() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a")
    bench.delete(1, *bench.receive(1))
    bench.send(1, "b", "c", "d")
    bench.check()


@pytest.mark.parametrize("kind", [Type.LEASED, Type.DELETED])
def test_a_run_that_names_another_message_is_damage(kind: Type) -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b", "c")
    leases = bench.receive(1)
    bench.delete(1, *leases)
    rows, variable = bench.shard.seal()
    words: array[int] = array("Q")
    words.frombytes(rows)
    at = next(index for index in range(0, len(words), 8) if words[index] & 0xFF == kind)
    words[at + 9] += 1  # the sequence in the second record of the run
    with pytest.raises(LogCorrupt, match="is not there"):
        bench.follower.apply_frame(bench.next_frame, words, variable)


# --- requests of one turn, together ---------------------------------------------------------------


def shares(dice: random.Random, bench: Bench, together: bool) -> list[object]:
    """A turn's requests, together or one after the other; what each of them was told."""
    requests = [
        (bodies, [md5(body, usedforsecurity=False).digest() for body in bodies], dice.choice((0, 1, 2, 3)) + at * 4)
        for at, bodies in enumerate([[b"%f" % dice.random()] * dice.randint(1, 9) for _ in range(dice.randint(1, 6))])
    ]
    wants = [(f"holder {at}", dice.randint(1, 9)) for at in range(dice.randint(1, 6))]
    shard = bench.shard
    told: list[object] = []
    if together:
        told += shard.send_together(1, requests, "me", bench.now)
        found = shard.receive_together(1, wants, 20_000, bench.now)
        leases, counts = found if found is not None else (None, [0] * len(wants))
        at = 0
        for count in counts:
            some = shard.expand(leases.part(at, at + count)) if leases is not None and count else []
            told.append([(lease.sequence, lease.deadline_ms, shard.holders[lease.slot]) for lease in some])
            at += count
        claims = [] if leases is None else [*zip(leases.slots, leases.sequences, [1] * at, strict=True)]
        dice.shuffle(claims)
        kept = dice.randint(0, len(claims))
        told.append(shard.delete_together(1, claims[kept:], bench.now) if claims[kept:] else True)
        return told
    for bodies, digests, invocation in requests:
        told.append(shard.send_plain(1, bodies, digests, "me", bench.now, invocation))
    all_claims: list[tuple[int, int, int]] = []
    for holder, count in wants:
        front = shard.receive_front(1, count, 20_000, bench.now, holder)
        some = [] if front is None else shard.expand(front)
        told.append([(lease.sequence, lease.deadline_ms, shard.holders[lease.slot]) for lease in some])
        all_claims += [(lease.slot, lease.sequence, lease.epoch) for lease in some]
    dice.shuffle(all_claims)
    kept = dice.randint(0, len(all_claims))
    told.append(not any(shard.delete(1, [Claim(*claim) for claim in all_claims[kept:]], bench.now)))
    return told


@given(st.integers(min_value=0, max_value=1 << 32), st.sampled_from((4, 1_000_000)))
def test_requests_of_one_turn_together_are_told_what_each_would_be_told(seed: int, in_flight_max: int) -> None:
    outcomes = []
    for together in (True, False):
        bench = Bench()
        bench.queue(1, in_flight_max=in_flight_max)
        dice = random.Random(seed)
        told: list[object] = []
        for _ in range(4):
            told += shares(dice, bench, together)
            bench.later(dice.choice((0, 1, 500, 21_000)))
            bench.check()
        outcomes.append((told, bench.shard.counters(1)))
    assert outcomes[0] == outcomes[1]


def test_a_repeated_invocation_among_the_requests_of_a_turn() -> None:
    bench = Bench()
    bench.queue(1)
    first = bench.shard.send_plain(1, [b"a", b"b"], [b"1" * 16, b"2" * 16], "me", bench.now, 77)
    firsts = bench.shard.send_together(
        1, [([b"a", b"b"], [b"1" * 16, b"2" * 16], 77), ([b"c"], [b"3" * 16], 78)], "me", bench.now
    )
    assert firsts == [first, first + 2]
    assert bench.shard.counters(1).duplicates == 2
    assert bench.shard.send_together(1, [([b"c"], [b"3" * 16], 78)], "me", bench.now) == [first + 2]
    bench.check()


def test_together_only_what_every_rule_allows() -> None:
    bench = Bench()
    bench.queue(1)
    bench.queue(2, delay_ms=1_000)
    bench.send(1, "a", "b")
    held, other = [(lease.slot, lease.sequence, lease.epoch) for lease in bench.receive(1, 2)]
    assert not bench.shard.delete_together(1, [held, held], bench.now)
    assert not bench.shard.delete_together(1, [held, (other[0], other[1], 2)], bench.now)
    assert bench.shard.counters(1).in_flight == 2
    assert bench.shard.send_together(2, [([b"a"], [b"1" * 16], 0)], "me", bench.now) == []
    assert bench.shard.receive_together(1, [("me", 1)], None, bench.now) is None
    assert bench.shard.delete_together(1, [other, held], bench.now)
    bench.check()

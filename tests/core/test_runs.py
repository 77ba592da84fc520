"""Columns and runs (message_runs.py, columnar_replay.py): the same replies, records and state as one by one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.commands import Accepted, Claim, Delete, Leases, Receive, Send, Sent
from batonq.core.ids import key_hash, message_id
from batonq.core.payload import content_mark
from batonq.core.records import ArrivedFlag, SentFlag, Type, encode_notes
from batonq.core.shard.commands.new_messages import NewMessages, Run
from batonq.core.shard.commands.receipts import ReceiptCommands
from batonq.core.shard.commands.receive import ReceiveCommands
from batonq.core.shard.commands.send import SendCommands
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.machine import Shard
from batonq.core.shard.recovery.columnar_replay import ColumnarReplay
from batonq.core.shard.state.attempts import ATTEMPT_WINDOW_MS
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.group_locks import lock_or_unlock
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import BatonError, DeduplicationConflict, LogCorrupt, OverLimit
from batonq.priorities import NORMAL_PRIORITY
from tests.core.rig import Bench, Row, make_send
from tests.support import ask
from tests.support.doubles import double


@double()
class OneByOneSends(SendCommands):
    def _joins(self, queue: QueueState, run: Run, command: Send, now: int) -> bool:
        return False


@double("_send")
class OneByOneMessages(NewMessages):
    def takes_runs(self, queue: QueueState) -> bool:
        return False

    def send_rows(self, queue: QueueState, command: Send, now: int, flags: int = 0) -> Sent:
        results = [self._send(queue, command, at, now, flags) for at in range(len(command.bodies))]
        return Sent(self.number, 0, len(results), results)

    def _send(self, queue: QueueState, command: Send, at: int, now: int, flags: int) -> Accepted | BatonError:
        policy = queue.policy
        payload = ask.payload_at(command, at, now)
        group = command.groups[at] if command.groups else ""
        dedup_id = command.dedup_ids[at] if command.dedup_ids else ""
        key = 0
        flags |= int(SentFlag.FIFO) if queue.fifo else 0
        if dedup_id:
            key = key_hash(queue.number, queue.dedup_generation, group if policy.dedup_per_group else "", dedup_id)
            known = self.dedup.known(queue, key, now)
            if known is not None:
                if command.strict and command.strict[at] and known.fingerprint != content_mark(payload):
                    return DeduplicationConflict()
                queue.duplicates += 1
                return Accepted(known.sequence, message_id(self.number, known.sequence), True)
            flags |= int(SentFlag.DEDUPLICATED | SentFlag.DEDUP_LIVES if policy.dedup_lives else SentFlag.DEDUPLICATED)
        if full := queue.full(len(payload)):
            return OverLimit(full)
        slot, sequence = self.columns.allocate(), self.journal.next_sequence
        delay_ms = command.delays_ms[at] if command.delays_ms else None
        ttl_ms = command.ttls_ms[at] if command.ttls_ms else None
        visible_ms = now + (policy.delay_ms if delay_ms is None else delay_ms)
        expires_s = -(-(visible_ms + (policy.retention_ms if ttl_ms is None else ttl_ms)) // 1000)
        tenant = key_hash(group) if group else 0
        maximum = command.max_receives[at] if command.max_receives else 0
        priority = command.priorities[at] if command.priorities else NORMAL_PRIORITY
        w0 = Type.SENT | flags << 8 | priority << 16 | maximum << 24 | queue.number << 32
        w6 = self.frame.put(payload)
        position = self.frame.add(w0, sequence, now, visible_ms, tenant, key, w6, slot | expires_s << 32)
        records = MessageRecords(self.messages, JobBook(self.journal))
        records.on_sent(queue, slot, sequence, now, visible_ms, tenant, expires_s, priority, maximum, position, w6)
        if key:
            self.dedup.put(queue, slot, sequence, now, key, content_mark(payload), policy.dedup_lives)
        return Accepted(sequence, message_id(self.number, sequence), False)


@double("_lease_one")
class OneByOneReceives(ReceiveCommands):
    def _front(self, queue: QueueState, wanted: int, now: int) -> Sequence[int]:
        return ()

    def _lease_standard(self, queue: QueueState, wanted: int, now: int, deadline: int, holder: str) -> list[int]:
        slots: list[int] = []
        w6 = 0
        while len(slots) < wanted:
            slot = queue.ready.next_standard(queue.policy.ageing_ms)
            if slot == NIL:
                break
            if self._is_over(queue, slot, now):
                self.given_up += 1
                if self.given_up > self.journal.limits.given_up_max:
                    self.messages.woken.add(queue.number)
                    break
                self._put_away(queue, slot, now)
                continue
            w6 = w6 or self.frame.put(encode_notes(holder, ""))
            self._lease_one(queue, slot, now, deadline, holder, w6, 0)
            slots.append(slot)
        return slots

    def _choose_fifo(self, queue: QueueState, wanted: int, now: int) -> list[int]:
        chosen = super()._choose_fifo(queue, wanted, now)
        for line in dict.fromkeys(self.columns.line[slot] for slot in chosen):
            lock_or_unlock(queue.ready, line)  # back to where it was; each lease takes it out again
        return chosen

    def _lease(
        self, queue: QueueState, slots: Sequence[int], now: int, deadline: int, holder: str, w6: int, flags: int
    ) -> None:
        queue.ready.in_flight_total -= len(slots)
        for slot in slots:
            self._lease_one(queue, slot, now, deadline, holder, w6, flags)

    def _lease_one(
        self, queue: QueueState, slot: int, now: int, deadline: int, holder: str, w6: int, flags: int
    ) -> None:
        columns = self.columns
        epoch, count = columns.epoch[slot] + 1, columns.count[slot] + 1
        position = self.frame.add(
            Type.LEASED | flags << 8 | columns.priority[slot] << 16 | queue.number << 32,
            columns.sequence[slot],
            now,
            deadline,
            epoch | count << 32,
            columns.last[slot],
            w6,
            slot | (ATTEMPT_WINDOW_MS << 32 if flags else 0),
        )
        self.records.on_leased(queue, slot, now, deadline, epoch, count, position, holder)


@double()
class OneByOneReceipts(ReceiptCommands):
    def _delete_held(self, queue: QueueState, claims: Sequence[tuple[int, int, int]], now: int) -> bool:
        return False


@double()
class OneByOneReplay(ColumnarReplay):
    def replay_frame_of_sends(
        self, number: int, words: array[int], heads: array[int], times: array[int], variable: bytes
    ) -> bool:
        return False

    def replay_run(self, position: int, rows: array[int], variable: bytes) -> bool:
        return False


@double()
class OneByOne(Shard):
    """The reference: a shard that does every step one request, one message and one record at a time."""

    new_messages_class = OneByOneMessages
    send_commands_class = OneByOneSends
    receive_commands_class = OneByOneReceives
    receipt_commands_class = OneByOneReceipts
    columnar_replay_class = OneByOneReplay


class SlowBench(Bench):
    """A bench whose owner and follower go one by one, and whose requests do not arrive together."""

    together = False

    def __init__(self) -> None:
        super().__init__()
        self.shard = OneByOne(0)
        self.shard.begin_frame(1)
        self.follower = OneByOne(0)
        self.shard.take_ownership(1, self.now, 0)
        self.frames.clear()
        self.next_frame = 1
        self.commit()


KINDS: tuple[dict[str, Any], ...] = (
    {"group": "g"},
    {"group": "h", "priority": 2},
    {"ttl_ms": 5000},
    {"priority": 3},
    {"delay_ms": 500},
    {"dedup_id": "k"},
    {"dedup_id": "l", "strict_content": True},
    {"max_receives": 1},
    {"attributes": b"attributes", "trace": "trace"},
)


def play(bench: Bench, together: bool, seed: int, names: Sequence[int] = (0,)) -> list[object]:
    """A script of requests that depends on the seed alone; returns every reply. Requests of one turn arrive together,
    or one after the other.
    """
    dice = random.Random(seed)
    limited: dict[str, Any] = dice.choice(({}, {}, {"messages_max": 30}, {"delay_ms": 700}, {"dedup_lives": True}))
    bench.queue(
        1, max_receives=dice.choice((0, 2)), dead_letter_queue=2, in_flight_max=dice.choice((8, 999)), **limited
    )
    bench.queue(2)
    bench.queue(3, fifo=True, dedup_per_group=dice.random() < 0.5)
    replies: list[object] = []
    held: dict[int, list[Claim]] = {1: [], 2: [], 3: []}
    for _ in range(dice.randint(5, 40)):
        bench.later(dice.choice((0, 0, 1, 1000, 31_000)))
        queue = dice.choice((1, 1, 1, 2, 3, 3))
        deed = dice.random()
        if deed < 0.4:
            replies += send_some(bench, queue, dice, together, names)
        elif deed < 0.7:
            visibility_ms = dice.choice((None, 5000))
            wants = [Receive(queue, dice.randint(1, 10), visibility_ms, f"h{at}") for at in range(dice.randint(1, 4))]
            groups = [wants] if together else [[want] for want in wants]
            for outcome in [outcome for group in groups for outcome in bench.shard.receive(group, bench.now)]:
                leases = [*outcome] if isinstance(outcome, Leases) else []
                replies.append(str(outcome) if isinstance(outcome, BatonError) else len(leases))
                holders = bench.shard.messages.holders
                replies += [(lease._replace(slot=0, position=0), holders[lease.slot]) for lease in leases]
                held[queue] += [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]
        elif deed < 0.95:
            dice.shuffle(held[queue])
            deletes = [
                Delete(queue, [held[queue].pop() for _ in range(min(len(held[queue]), dice.randint(1, 6)))])
                for _ in range(dice.randint(1, 3) if len(names) > 1 else 1)
            ]
            groups_of_deletes = [deletes] if together else [[delete] for delete in deletes]
            for told in [told for group in groups_of_deletes for told in bench.shard.delete(group, bench.now)]:
                replies += map(str, told)
        elif held[queue]:
            nacks = [ask.Nack(held[queue].pop(), dice.choice((0, 500, None)))]
            replies += map(str, ask.nack(bench.shard, queue, nacks, bench.now))
        if dice.random() < 0.5:
            bench.check()
    bench.check()
    return replies


def send_some(bench: Bench, queue: int, dice: random.Random, together: bool, names: Sequence[int]) -> list[object]:
    commands: list[Send] = []
    for _ in range(dice.randint(1, 5)):
        plain = dice.random() < 0.6
        messages = [
            make_send(str(dice.random()), **({} if plain else dict(dice.choice(KINDS))))
            for _ in range(dice.randint(1, 12))
        ]
        for message in messages:
            if queue == 3:
                message.delay_ms, message.group = None, message.group or dice.choice("abc")
        commands.append(ask.batch(queue, messages, request=dice.choice(names)))
    groups = [commands] if together else [[command] for command in commands]
    outcomes = [outcome for group in groups for outcome in bench.shard.send(group, bench.now)]
    return [str(result) for outcome in outcomes for result in outcome.results()]


def records(bench: Bench) -> list[Row]:
    """All that the log says, but for slots: which one a message gets is free."""
    rows = [row for number in sorted(bench.frames) for row in bench.frames[number].rows()]
    return [row._replace(slot=0, w5=0 if row.flags & ArrivedFlag.OVERLAY else row.w5) for row in rows]


def compare_ways(seed: int) -> None:
    """Everything is the same, but for the slots."""
    quick, slow = Bench(), SlowBench()
    assert play(quick, True, seed) == play(slow, False, seed)
    assert records(quick) == records(slow)
    assert quick.shard.dump(quick.now) == slow.shard.dump(slow.now)


def compare_named(seed: int) -> None:
    """What is remembered of requests that were written together comes behind their messages, and what they delete
    together is in the order of slots.
    """
    quick, slow = Bench(), SlowBench()
    names = (0, 0, 71, 72, 73)
    assert play(quick, True, seed, names) == play(slow, False, seed, names)
    assert sorted(unplaced(quick)) == sorted(unplaced(slow))
    assert [quick.shard.counters(queue) for queue in (1, 2, 3)] == [slow.shard.counters(queue) for queue in (1, 2, 3)]


def unplaced(bench: Bench) -> list[Row]:
    return [row._replace(position=0, w5=row.w5 if row.type == Type.REQUESTED else 0) for row in records(bench)]


@given(st.integers(min_value=0, max_value=1 << 32))
def test_both_ways_give_the_same(seed: int) -> None:
    compare_ways(seed)


@given(st.integers(min_value=0, max_value=1 << 32))
def test_named_requests_are_told_the_same_and_leave_the_same_behind(seed: int) -> None:
    compare_named(seed)


def test_a_time_to_live_of_its_own_in_the_middle_of_a_run() -> None:
    bench = Bench()
    bench.queue(1)
    ask.send(bench.shard, 1, [make_send("a"), make_send("b", ttl_ms=5000), make_send("c")], bench.now)
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


def test_neighbouring_slots_whose_messages_did_not_arrive_one_after_the_other() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b", "c", "d")
    first, second, *_ = bench.receive(1, 4)
    bench.delete(1, second)
    bench.send(1, "e")
    (last,) = bench.receive(1)
    assert last.slot == first.slot + 1
    bench.delete(1, first, last)
    assert bench.waiting(1) == ["c", "d"]
    bench.check()


@pytest.mark.parametrize("bench_type", [Bench, SlowBench])
def test_leases_that_ran_out_and_that_no_timer_has_ended_yet(bench_type: type[Bench]) -> None:
    bench = bench_type()
    bench.queue(1)
    bench.queue(2)
    bench.limit(timer_records_max=1)
    bench.send(2, "x")
    bench.receive(2, 1, 500)  # what the timers end first
    bench.send(1, "a", "b", "c")
    leases = bench.receive(1, 3, 1_000)
    bench.now += 2_000
    assert bench.delete(1, *leases) == [None] * 3
    assert bench.shard.counters(1).late_deletes == 3
    bench.check()


@pytest.mark.parametrize("bench_type", [Bench, SlowBench])
def test_messages_that_expired_and_that_no_timer_has_ended_yet(bench_type: type[Bench]) -> None:
    bench = bench_type()
    bench.queue(1)
    bench.queue(2)
    bench.limit(timer_records_max=1)
    bench.send(2, "x", ttl_ms=500)  # what the timers end first
    bench.send(1, "a", "b", "c", ttl_ms=1_000)
    bench.send(1, "d")
    bench.now += 5_000
    assert bench.bodies(bench.receive(1)) == ["d"]
    assert bench.shard.counters(1).expired_messages == 3
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


def test_a_repeated_invocation_among_the_requests_of_a_turn() -> None:
    bench = Bench()
    bench.queue(1)
    repeated, other = Send(1, [b"a", b"b"], request=77), Send(1, [b"c"], request=78)
    (first,) = bench.shard.send([repeated], bench.now)
    again, new, once_more = bench.shard.send([repeated, other, other], bench.now)
    assert [one.sequence for one in again if isinstance(one, Accepted) and one.duplicate] == [
        first.first,
        first.first + 1,
    ]
    assert (new.first, new.count) == (first.first + 2, 1)
    assert [one.sequence for one in once_more if isinstance(one, Accepted) and one.duplicate] == [new.first]
    assert bench.shard.counters(1).duplicates == 3
    assert bench.waiting(1) == ["a", "b", "c"]
    bench.check()


def test_one_claim_of_a_turn_that_is_not_a_lease_leaves_the_others_alone() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b")
    held, other = [Claim(lease.slot, lease.sequence, lease.epoch) for lease in bench.receive(1, 2)]
    wrong = other._replace(epoch=2)
    results = bench.shard.delete([Delete(1, [held], strict=True), Delete(1, [wrong], strict=True)], bench.now)
    assert [[problem is None for problem in told] for told in results] == [[True], [False]]
    assert bench.shard.counters(1).in_flight == 1
    assert bench.shard.delete([Delete(1, [other, other])], bench.now) == [[None, None]]
    assert bench.waiting(1) == []
    bench.check()

"""Bugs planted into the columns, the runs and the groups of a shard: each makes tests in test_runs.py fail, most of
them the comparison with one message and one record at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from batonq.core import records
from batonq.core.commands import Accepted, Delete, Leases, Receive, Send, Sent
from batonq.core.payload import payload_parts
from batonq.core.shard.commands import new_messages as sending
from batonq.core.shard.commands import receive as receiving
from batonq.core.shard.commands.new_messages import NewMessages, Run
from batonq.core.shard.commands.receipts import ReceiptCommands
from batonq.core.shard.commands.receive import ReceiveCommands
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.commands.send import SendCommands
from batonq.core.shard.effects import message_runs as runs
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.recovery import columnar_replay as folding
from batonq.core.shard.recovery import replay
from batonq.core.shard.recovery.columnar_replay import ColumnarReplay
from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.dedup_table import DedupTable, Known
from batonq.core.shard.state.deduplication import Deduplication
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.ready_order import Ready
from batonq.core.shard.state.timers import Timers
from batonq.errors import BatonError
from sim.patches import Patches, patched
from tests.core import test_runs
from tests.core.rig import Bench

SEEDS_MAX = 150

# --- requests that are executed together ----------------------------------------------------------


def outcomes_of_sends_permuted() -> Patches:
    """Of requests that were sent together, each is told what another one came to."""
    send = SendCommands.send

    def permuted(self: SendCommands, commands: Sequence[Send], now: int) -> list[Sent]:
        outcomes = send(self, commands, now)
        return [*outcomes[1:], *outcomes[:1]]

    return [(SendCommands, "send", permuted)]


def leases_to_the_wrong_request() -> Patches:
    receive = ReceiveCommands.receive

    def permuted(self: ReceiveCommands, commands: Sequence[Receive], now: int) -> list[Leases | BatonError]:
        outcomes = receive(self, commands, now)
        return [*outcomes[1:], *outcomes[:1]]

    return [(ReceiveCommands, "receive", permuted)]


def results_of_deletes_permuted() -> Patches:
    delete = ReceiptCommands.delete

    def permuted(self: ReceiptCommands, commands: Sequence[Delete], now: int) -> list[list[BatonError | None]]:
        return delete(self, commands, now)[::-1]

    return [(ReceiptCommands, "delete", permuted)]


def repeated_request_of_a_turn_executed_twice() -> Patches:
    """A request that comes again in the same turn is not known by its name."""
    send, others = SendCommands.send, count(1_000)

    def by_other_names(self: SendCommands, commands: Sequence[Send], now: int) -> list[Sent]:
        names: set[int] = set()
        named: list[Send] = []
        for command in commands:
            named.append(replace(command, request=next(others)) if command.request in names else command)
            names |= {command.request} - {0}
        return send(self, named, now)

    return [(SendCommands, "send", by_other_names)]


def known_request_executed_again() -> Patches:
    """Requests that arrive together are not looked up."""

    def is_new(self: RememberedRequests, queue: QueueState, request: int, now: int) -> bool:
        return True

    return [(RememberedRequests, "is_new", is_new)]


def requests_remembered_as_the_first() -> Patches:
    """Each request of a run is remembered with the first message of the run."""
    send_run, remember = SendCommands._send_run, RememberedRequests.remember

    def remember_first(self: SendCommands, queue: QueueState, run: Run, now: int) -> list[Sent]:
        first = self.messages.journal.next_sequence

        def as_first(self: RememberedRequests, number: int, key: int, sequence: int, count: int, now: int) -> None:
            remember(self, number, key, first, count, now)

        with patched([(RememberedRequests, "remember", as_first)]):
            return send_run(self, queue, run, now)

    return [(SendCommands, "_send_run", remember_first)]


def request_of_a_run_not_remembered() -> Patches:
    """Only the first request of a run is remembered."""
    send_run = SendCommands._send_run

    def remember_one(self: SendCommands, queue: QueueState, run: Run, now: int) -> list[Sent]:
        run.commands[1:] = [replace(command, request=0) for command in run.commands[1:]]
        return send_run(self, queue, run, now)

    return [(SendCommands, "_send_run", remember_one)]


def holder_of_the_second_request_lost() -> Patches:
    """What was leased together is held by the first who asked."""
    lease = MessageRuns.on_first_leases

    def to_the_first(
        self: MessageRuns,
        queue: QueueState,
        slots: Sequence[int],
        time: int,
        deadline: int,
        position: int,
        holders: Sequence[tuple[str, int]],
    ) -> None:
        lease(self, queue, slots, time, deadline, position, [(holders[0][0], len(slots))])

    return [(MessageRuns, "on_first_leases", to_the_first)]


def notes_of_the_second_holder_lost() -> Patches:
    """The records of leases made together name the first who asked."""
    encode = records.encode_notes
    return [(receiving, "encode_notes", lambda holder, attempt: encode("h0", attempt))]


def in_flight_limit_ignored_by_groups() -> Patches:
    """Requests that arrive together may have more messages than the queue lets be in flight."""
    receive = ReceiveCommands.receive

    def unlimited(self: ReceiveCommands, commands: Sequence[Receive], now: int) -> list[Leases | BatonError]:
        queue = self.messages.queues[commands[0].queue]
        policy = queue.policy
        if len(commands) > 1:
            queue.policy = replace(policy, in_flight_max=1 << 20)
        try:
            return receive(self, commands, now)
        finally:
            queue.policy = policy

    return [(ReceiveCommands, "receive", unlimited)]


def full_queue_answers_nothing() -> Patches:
    """Whoever finds too many messages in flight is told that there are none."""
    receive = ReceiveCommands.receive

    def silent(self: ReceiveCommands, commands: Sequence[Receive], now: int) -> list[Leases | BatonError]:
        outcomes = receive(self, commands, now)
        if len(commands) == 1:
            return outcomes
        return [Leases(now, now) if isinstance(outcome, BatonError) else outcome for outcome in outcomes]

    return [(ReceiveCommands, "receive", silent)]


# --- columns of sends -----------------------------------------------------------------------------


def digests_shifted() -> Patches:
    """In a run, each body has the digest of its neighbour."""

    def shifted(command: Send, now: int) -> tuple[list[bytes], list[int]]:
        digests = command.digests
        return payload_parts(replace(command, digests=[*digests[1:], *digests[:1]]), now)

    return [(sending, "payload_parts", shifted)]


def column_lost(**columns: Any) -> Patches:
    """Rows are written as if nobody had used these columns."""
    write = NewMessages._write

    def without(self: NewMessages, queue: QueueState, commands: Sequence[Send], *others: Any) -> int:
        return write(self, queue, [replace(command, **columns) for command in commands], *others)

    return [(NewMessages, "_write", without)]


def time_to_live_of_the_first() -> Patches:
    """All messages of a request live as long as the first of them."""
    write = NewMessages._write

    def first_of(command: Send) -> Send:
        ttls = [command.ttls_ms[0]] * len(command.bodies) if command.ttls_ms else ()
        return replace(command, ttls_ms=ttls)

    def of_the_first(self: NewMessages, queue: QueueState, commands: Sequence[Send], *others: Any) -> int:
        return write(self, queue, [*map(first_of, commands)], *others)

    return [(NewMessages, "_write", of_the_first)]


def expiry_timer_of_the_first() -> Patches:
    """The timer of a run is that of its first message."""
    arm = Timers.arm_run

    def arm_first(self: Timers, slots: range, expires: array[int]) -> None:
        arm(self, slots, array("I", expires[:1]) * len(expires))

    return [(Timers, "arm_run", arm_first)]


def dedup_key_of_later_rows_lost() -> Patches:
    """Only the first message of a request is known by its deduplication id."""
    keys_of = Deduplication.keys_of

    def of_the_first(self: Deduplication, queue: QueueState, command: Send) -> list[int]:
        keys = keys_of(self, queue, command)
        return [*keys[:1], *[0] * len(keys[1:])]

    return [(Deduplication, "keys_of", of_the_first)]


def sequences_skip_refused_rows() -> Patches:
    """A message behind a refused one is told the sequence of its place in the request."""
    send_rows = NewMessages.send_rows

    def by_place(self: NewMessages, queue: QueueState, command: Send, now: int) -> Sent:
        first = self.journal.next_sequence
        sent = send_rows(self, queue, command, now)
        each = [
            result._replace(sequence=first + at) if isinstance(result, Accepted) and not result.duplicate else result
            for at, result in enumerate(sent.results())
        ]
        return Sent(self.number, 0, len(each), each)

    return [(NewMessages, "send_rows", by_place)]


def slots_of_refused_rows_kept() -> Patches:
    """Slots that were taken for messages which are refused are not free again."""

    def keep(self: Columns, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot < self.used:
                self.state[slot] = 2

    return [(Columns, "give_back_run", keep)]


def duplicates_of_a_batch_not_counted() -> Patches:
    deduplicated = NewMessages.deduplicated

    def uncounted(self: NewMessages, queue: QueueState, known: Known, *others: Any) -> Accepted | BatonError:
        before = queue.duplicates
        result = deduplicated(self, queue, known, *others)
        queue.duplicates = before
        return result

    return [(NewMessages, "deduplicated", uncounted)]


def other_content_is_a_duplicate() -> Patches:
    """A strict message that reuses a deduplication id with another body is taken for a duplicate."""
    deduplicated = NewMessages.deduplicated

    def lenient(
        self: NewMessages, queue: QueueState, known: Known, command: Send, *others: Any
    ) -> Accepted | BatonError:
        return deduplicated(self, queue, known, replace(command, strict=()), *others)

    return [(NewMessages, "deduplicated", lenient)]


def bytes_of_a_run_not_counted() -> Patches:
    count_sends = MessageRuns.count_sends

    def weightless(self: MessageRuns, queue: QueueState, count: int, size: int, next_sequence: int) -> None:
        count_sends(self, queue, count, 0, next_sequence)

    return [(MessageRuns, "count_sends", weightless)]


def limits_of_a_queue_seen_once() -> Patches:
    """What a request brings does not count when the queue's limit is looked at for its next message."""
    full = QueueState.full

    def forgetful(self: QueueState, size: int, more: int = 0, more_bytes: int = 0) -> str:
        return full(self, size)

    return [(QueueState, "full", forgetful)]


# --- leases and acknowledgements ------------------------------------------------------------------


def front_out_of_order() -> Patches:
    """The newest of the messages at the front are leased first."""
    front = Ready.front

    def newest_first(self: Ready, wanted: int) -> Sequence[int]:
        slots = front(self, wanted)
        return [*slots][::-1]

    return [(Ready, "front", newest_first)]


def expired_messages_leased() -> Patches:
    """Messages whose time is over are leased with the others of the front."""

    def none(self: ReceiveCommands, slots: Sequence[int], now: int) -> bool:
        return False

    return [(ReceiveCommands, "_any_expired", none)]


def first_received_when_sent() -> Patches:
    """A run of leases does not say when its messages were received."""
    return [(runs, "pack_delta", lambda time, sent: 0)]


def lease_timer_not_set() -> Patches:
    """Leases of a run that are made after others do not run out."""
    return [(Timers, "arm_leases", lambda self, slots, deadline: None)]


def late_acknowledgement_is_in_time() -> Patches:
    """A lease that has run out counts as current where deletes are written as a run."""
    held = ReceiptCommands._held

    def of_any_time(self: ReceiptCommands, number: int, slots: Sequence[int], claims: Any, now: int) -> bool:
        return held(self, number, slots, claims, 0)

    return [(ReceiptCommands, "_held", of_any_time)]


def acknowledged_group_stays_locked() -> Patches:
    """A FIFO group is not looked at again when a run of its messages is deleted."""
    acknowledge = MessageRuns.on_acknowledged

    def without_unlocking(self: MessageRuns, queue: QueueState, slots: Sequence[int]) -> None:
        with patched([(runs, "lock_or_unlock", lambda ready, line: None)]):
            acknowledge(self, queue, slots)

    return [(MessageRuns, "on_acknowledged", without_unlocking)]


def any_neighbours_are_in_order() -> Patches:
    """Neighbouring slots are taken for neighbours in their queue's order of arrival."""
    return [(MessageRuns, "_are_neighbours", lambda self, run: True)]


def noted_messages_deleted_as_plain() -> Patches:
    """What is noted of messages stays behind when they are deleted as a run."""
    return [(Messages, "plain", lambda self, slots: True)]


# --- replay ---------------------------------------------------------------------------------------


def fold_skips_the_last_row() -> Patches:
    fold = ColumnarReplay.replay_run

    def shorter(self: ColumnarReplay, position: int, rows: array[int], variable: bytes) -> bool:
        return fold(self, position, rows[:-8], variable)

    return [(ColumnarReplay, "replay_run", shorter)]


def fold_forgets_requests() -> Patches:
    """Names of requests between the messages of a frame are passed over."""
    fold = ColumnarReplay.replay_frame_of_sends

    def forgetful(self: ColumnarReplay, *frame: Any) -> bool:
        with patched([(DedupTable, "put", lambda self, *entry: None)]):
            return fold(self, *frame)

    return [(ColumnarReplay, "replay_frame_of_sends", forgetful)]


def fold_loses_holders() -> Patches:
    return [(folding, "decode_notes", lambda part: ("", ""))]


def fold_takes_runs_of_several_holders() -> Patches:
    """A run of leases is folded as its first row says, whoever the others were leased to."""
    fold_leases = ColumnarReplay._replay_first_leases

    def fold(self: ColumnarReplay, queue: QueueState, position: int, rows: array[int], variable: bytes) -> bool:
        rows[6::8] = folding.same("Q", rows[6], len(rows) >> 3)
        return fold_leases(self, queue, position, rows, variable)

    def any_notes(column: array[int], start: int, stop: int) -> int:
        is_notes = bool(column[start] >> 32) and column[start] & 0xFFFFFFFF < 1 << 20
        return stop if is_notes else folding.alike_until(column, start, stop)

    return [(ColumnarReplay, "_replay_first_leases", fold), (replay, "alike_until", any_notes)]


def fold_ignores_delays() -> Patches:
    """Sends that are not visible at once are folded as if they were."""
    fold = ColumnarReplay._replay_sends

    def visible(self: ColumnarReplay, queue: QueueState, position: int, rows: array[int]) -> bool:
        rows[3::8] = rows[2::8]
        return fold(self, queue, position, rows)

    return [(ColumnarReplay, "_replay_sends", visible)]


BUGS: dict[str, Callable[[], Patches]] = {
    **{
        bug.__name__: bug
        for bug in (
            outcomes_of_sends_permuted,
            leases_to_the_wrong_request,
            results_of_deletes_permuted,
            repeated_request_of_a_turn_executed_twice,
            known_request_executed_again,
            requests_remembered_as_the_first,
            request_of_a_run_not_remembered,
            holder_of_the_second_request_lost,
            notes_of_the_second_holder_lost,
            in_flight_limit_ignored_by_groups,
            full_queue_answers_nothing,
            digests_shifted,
            time_to_live_of_the_first,
            expiry_timer_of_the_first,
            dedup_key_of_later_rows_lost,
            sequences_skip_refused_rows,
            slots_of_refused_rows_kept,
            duplicates_of_a_batch_not_counted,
            other_content_is_a_duplicate,
            bytes_of_a_run_not_counted,
            limits_of_a_queue_seen_once,
            front_out_of_order,
            expired_messages_leased,
            first_received_when_sent,
            lease_timer_not_set,
            late_acknowledgement_is_in_time,
            acknowledged_group_stays_locked,
            any_neighbours_are_in_order,
            noted_messages_deleted_as_plain,
            fold_skips_the_last_row,
            fold_forgets_requests,
            fold_loses_holders,
            fold_takes_runs_of_several_holders,
            fold_ignores_delays,
        )
    },
    "priorities_ignored": partial(column_lost, priorities=()),
    "delays_ignored": partial(column_lost, delays_ms=()),
    "maximum_of_receives_lost": partial(column_lost, max_receives=()),
    "groups_lost": partial(column_lost, groups=()),
}


# What a comparison meets too rarely has a test of its own.
FOCUSED: dict[str, Callable[[], None]] = {
    "any_neighbours_are_in_order": test_runs.test_neighbouring_slots_whose_messages_did_not_arrive_one_after_the_other,
    "late_acknowledgement_is_in_time": partial(
        test_runs.test_leases_that_ran_out_and_that_no_timer_has_ended_yet, Bench
    ),
    "expired_messages_leased": partial(test_runs.test_messages_that_expired_and_that_no_timer_has_ended_yet, Bench),
}


def fails(check: Callable[[], None]) -> bool:
    """Whether anything is not as it should be: an answer, a record, a state, or the follower's."""
    try:
        check()
    except Exception:
        return True
    return False


def is_found(seed: int) -> bool:
    return fails(lambda: test_runs.compare_ways(seed)) or fails(lambda: test_runs.compare_named(seed))


@pytest.mark.parametrize("bug", sorted(BUGS.keys() - FOCUSED.keys()))
def test_a_bug_planted_into_the_shard_is_found(bug: str) -> None:
    with patched(BUGS[bug]()):
        assert any(map(is_found, range(SEEDS_MAX))), f"{bug} was not found in {SEEDS_MAX} seeds"


@pytest.mark.parametrize("bug", sorted(FOCUSED))
def test_a_bug_that_is_seldom_met_is_found(bug: str) -> None:
    assert not fails(FOCUSED[bug])
    with patched(BUGS[bug]()):
        assert fails(FOCUSED[bug])


def test_without_a_bug_nothing_is_found() -> None:
    assert not any(map(is_found, range(30)))

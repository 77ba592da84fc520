"""The parts of a shard, each alone: attempts, deduplication ids, timers, the book of jobs, and the messages they are
about.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from batonq.core.commands import Failure, Job, Send
from batonq.core.ids import key_hash
from batonq.core.limits import DEFAULT_LIMITS
from batonq.core.policy import QueuePolicy
from batonq.core.records import State, Type
from batonq.core.shard.state.attempts import Attempts
from batonq.core.shard.state.columns import NIL, Columns
from batonq.core.shard.state.dedup_table import FOREVER_S
from batonq.core.shard.state.deduplication import Deduplication
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.timers import NO_EXPIRY_TIMER, NO_TIMER, Timers
from batonq.errors import LogCorrupt, QueueDoesNotExist

T0 = 1_700_000_000_000


@pytest.fixture
def journal() -> Journal:
    made = Journal(0, DEFAULT_LIMITS)
    made.last_time_ms = T0
    return made


@pytest.fixture
def columns() -> Columns:
    return Columns()


@pytest.fixture
def messages(journal: Journal, columns: Columns) -> Messages:
    made = Messages(journal, columns, Timers(columns), Attempts(journal), Deduplication(journal, columns))
    made.on_policy(QueuePolicy(1, "standard", "account"), T0)
    made.on_policy(QueuePolicy(2, "ordered.fifo", "account", fifo=True), T0)
    return made


def put(messages: Messages, queue: int, sequence: int, group: int = 0, expires_s: int = T0 // 1000 + 60) -> int:
    """A new VISIBLE message; returns its slot."""
    slot = messages.columns.allocate()
    state = messages.queues[queue]
    messages.insert(state, slot, sequence, sequence << 16, 100 << 32, 5, T0, expires_s)
    messages.join_group(state, slot, group)
    messages.enter(state, slot, State.VISIBLE, T0)
    return slot


# --- attempts -------------------------------------------------------------------------------------


def test_an_attempt_is_known_until_its_window_ends(journal: Journal) -> None:
    attempts = Attempts(journal)
    attempts.put(1, "a", T0 + 100, ((7, 70, 1), (8, 80, 1)))
    known = attempts.get(1, "a", T0 + 99)
    assert known is not None and [slot for slot, _, _ in known.leases] == [7, 8]
    assert attempts.get(1, "a", T0 + 100) is None
    assert attempts.get(2, "a", T0) is None


def test_an_attempt_ends_with_the_first_of_its_leases(journal: Journal) -> None:
    attempts = Attempts(journal)
    attempts.put(1, "a", T0 + 100, ((7, 70, 1), (8, 80, 1)))
    attempts.put(1, "b", T0 + 100, ((9, 90, 1),))
    attempts.end_of(8)
    attempts.end_of(123)
    assert list(attempts.by_key) == [(1, "b")] and attempts.of_slot == {9: (1, "b")}


def test_attempts_past_their_window_make_room_for_new_ones(journal: Journal) -> None:
    journal.limits = replace(DEFAULT_LIMITS, attempts_max=1)
    attempts = Attempts(journal)
    attempts.put(1, "old", T0 + 100, ((7, 70, 1),))
    assert attempts.full(T0) and not attempts.full(T0 + 100)
    journal.last_time_ms = T0 + 100
    attempts.put(1, "new", T0 + 200, ((8, 80, 1),))
    assert list(attempts.by_key) == [(1, "new")]


def test_attempts_are_loaded_as_they_were_saved(journal: Journal) -> None:
    attempts, loaded = Attempts(journal), Attempts(journal)
    attempts.put(1, "a", T0 + 100, ((7, 70, 1), (8, 80, 1)))
    loaded.put(3, "gone", T0 + 100, ((1, 1, 1),))
    loaded.load(attempts.facts())
    assert loaded.by_key == attempts.by_key and loaded.of_slot == attempts.of_slot


# --- deduplication ids ----------------------------------------------------------------------------


def test_a_deduplication_id_is_known_for_the_window_of_its_queue(messages: Messages) -> None:
    queue = messages.queues[1]
    queue.policy = replace(queue.policy, dedup_window_ms=5_000)
    messages.dedup.put(queue, put(messages, 1, 1), 1, T0, 99, 1234, lives=False)
    known = messages.dedup.known(queue, 99, T0 + 4_999)
    assert known is not None and (known.sequence, known.fingerprint) == (1, 1234)
    assert messages.dedup.known(queue, 99, T0 + 5_000) is None


def test_an_id_that_lives_with_its_message_ends_with_it(messages: Messages) -> None:
    queue = messages.queues[1]
    queue.policy = replace(queue.policy, dedup_window_ms=5_000)
    slot = put(messages, 1, 1)
    messages.dedup.put(queue, slot, 1, T0, 99, 1234, lives=True)
    known = messages.dedup.known(queue, 99, T0 + 3_600_000)
    assert known is not None and known.expires_s == FOREVER_S
    messages.remove(queue, slot, T0)
    assert not messages.dedup.living
    assert messages.dedup.known(queue, 99, T0) is None, "whatever the window"


def test_a_purge_forgets_the_ids_of_what_it_removed(messages: Messages) -> None:
    queue = messages.queues[1]
    for sequence in (1, 2):
        messages.dedup.put(queue, put(messages, 1, sequence), sequence, T0, sequence, 0, lives=False)
    messages.on_purged(queue, 2, T0, final=True, forgotten_below=2)
    assert messages.dedup.known(queue, 1, T0) is None
    assert messages.dedup.known(queue, 2, T0) is not None


def test_the_scope_of_an_id_is_the_queue_or_the_group(messages: Messages) -> None:
    queue = messages.queues[2]
    command = Send(2, [b"x", b"y"], dedup_ids=["id", "id"], groups=["g", "h"])
    first, second = messages.dedup.keys_of(queue, command)
    assert first == second
    queue.policy = replace(queue.policy, dedup_per_group=True)
    first, second = messages.dedup.keys_of(queue, command)
    assert first != second
    assert messages.dedup.keys_of(queue, Send(2, [b"x", b"y"], dedup_ids=["id", ""]))[1] == 0
    assert messages.dedup.keys_of(queue, Send(2, [b"x"])) == []


# --- timers ---------------------------------------------------------------------------------------


def test_a_lease_has_no_second_entry_in_the_wheel_when_it_is_extended(columns: Columns) -> None:
    timers = Timers(columns)
    slot = columns.allocate()
    columns.take(slot)
    timers.lease_until(slot, T0 + 100)
    timers.lease_until(slot, T0 + 500)
    assert columns.timer[slot] == T0 + 100 and len(timers.leases) == 1
    timers.lease_until(slot, T0 + 50)
    assert columns.timer[slot] == T0 + 50 and len(timers.leases) == 2


def test_every_message_of_a_run_expires_in_time(columns: Columns) -> None:
    timers = Timers(columns)
    slots = range(4)
    columns.use(0, 4)
    timers.arm_run(slots, array("I", (30, 10, 30, 20)))
    assert list(columns.expiry_timer[:4]) == [30, 10, 30, 20]
    timers.arm_run(slots, array("I", (20, 20, 20, 20)))
    assert list(columns.expiry_timer[:4]) == [20, 10, 20, 20], "an earlier entry stays"
    assert [slot for _, slot in timers.expiries.advance(20, columns.expiry_timer, 100)].count(1) == 1


def test_cleared_timers_leave_no_entry_in_the_columns(columns: Columns) -> None:
    timers = Timers(columns)
    columns.use(0, 2)
    timers.arm_leases([0, 1], T0)
    timers.arm_expiries([0, 1], 10)
    timers.clear()
    assert set(columns.timer) == {NO_TIMER} and set(columns.expiry_timer) == {NO_EXPIRY_TIMER}
    assert len(timers.leases) == len(timers.expiries) == 0


# --- the book of jobs -----------------------------------------------------------------------------


def job(name: str, source: int, state: str = "RUNNING") -> Job:
    return Job(name, source, 0, 0, 10, state, T0, 5, key=key_hash(name))


def test_a_job_is_found_by_its_queue_while_it_is_active(journal: Journal) -> None:
    book = JobBook(journal)
    book.set(job("a", 1), T0)
    active = book.active_on(1)
    assert active is not None and active.id == "a" and book.redriver(1) == key_hash("a")
    book.set(job("a", 1, "COMPLETED"), T0)
    assert book.active_on(1) is None and book.redriver(1) == 0, "what moves now is moved by an operator"
    assert book.redriver(2) == 0
    book.validate()


def test_each_state_of_a_job_is_a_record(journal: Journal) -> None:
    book, replica = JobBook(journal), JobBook(Journal(0, DEFAULT_LIMITS))
    book.set(job("a", 1), T0)
    book.set(replace(job("a", 1), moved=3), T0)
    assert list(journal.frame.rows[0::8]) == [Type.JOB_SET | 1 << 32] * 2
    replica.load(one.values() for one in book.values())
    assert list(replica.values()) == list(book.values())


def test_a_job_that_has_ended_keeps_no_list_of_ids_and_no_pace(journal: Journal) -> None:
    book = JobBook(journal)
    book.set(replace(job("a", 1), listed=2, selection="[1,2]"), T0)
    book.pace["a"], book.place["a"] = (T0, 1.0), (3, 4)
    assert book["a"].selection
    book.set(replace(book["a"], state="COMPLETED", ended_ms=T0), T0)
    assert not book["a"].selection and not book.pace and not book.place


def test_a_message_that_moves_frees_a_job_that_was_blocked_by_it(journal: Journal) -> None:
    book = JobBook(journal)
    book.set(replace(job("a", 1), tries=2, blocked=7, why="full"), T0)
    book.moved_one(1, 6)
    assert (book["a"].moved, book["a"].tries, book["a"].why) == (1, 2, "full")
    book.moved_one(1, 7)
    assert (book["a"].moved, book["a"].tries, book["a"].why) == (2, 0, "")
    book.moved_one(2, 7)
    book.died_again(key_hash("a"))
    book.died_again(12345)
    assert book["a"].died_again == 1


# --- messages -------------------------------------------------------------------------------------


def in_order(messages: Messages, queue: QueueState) -> list[int]:
    found, slot = [], queue.head
    while slot != NIL:
        found.append(messages.columns.sequence[slot])
        slot = messages.columns.queue_next[slot]
    return found


def test_messages_are_listed_in_order_of_arrival_and_counted(messages: Messages) -> None:
    queue = messages.queues[1]
    slots = [put(messages, 1, sequence) for sequence in (1, 2, 3)]
    assert in_order(messages, queue) == [1, 2, 3] and (queue.visible, queue.bytes) == (3, 300)
    messages.remove(queue, slots[1], T0)
    assert in_order(messages, queue) == [1, 3] and (queue.visible, queue.bytes) == (2, 200)
    messages.remove(queue, slots[0], T0)
    messages.remove(queue, slots[2], T0)
    assert queue.head == queue.tail == NIL and messages.living() == 0


def test_each_state_has_its_own_counter_and_timer(messages: Messages) -> None:
    queue, columns = messages.queues[1], messages.columns
    slot = put(messages, 1, 1)
    for state, counter in (
        (State.IN_FLIGHT, "in_flight"),
        (State.DELAYED, "delayed"),
        (State.OWED, "owed"),
        (State.DEAD, "dead"),
        (State.VISIBLE, "visible"),
    ):
        messages.leave(queue, slot, T0)
        assert queue.messages == 0
        messages.enter(queue, slot, state, T0 + 1_000)
        assert getattr(queue, counter) == 1 and columns.state[slot] == state
    assert columns.timer[slot] == T0 + 1_000
    due = messages.timers.delays.next_due()
    assert due is not None and due <= T0 + 1_000


def test_a_group_is_locked_while_its_first_message_is_leased(messages: Messages) -> None:
    queue = messages.queues[2]
    first, second = (put(messages, 2, sequence, group=5) for sequence in (1, 2))
    assert queue.ready.best_lane(0) is not None
    messages.leave(queue, first, T0)
    messages.enter(queue, first, State.IN_FLIGHT, T0 + 1_000)
    assert queue.ready.best_lane(0) is None, "the second message waits for the first"
    messages.remove(queue, first, T0)
    lane = queue.ready.best_lane(0)
    assert lane is not None and messages.lines.head[lane.quiet] == second


def test_what_is_noted_about_a_message_ends_with_it(messages: Messages) -> None:
    slot = put(messages, 1, 1)
    assert messages.plain([slot])
    messages.failures[slot] = Failure(T0, T0, "Error", "text")
    messages.maxima[slot] = 3
    other: dict[int, int] = {slot: 1}
    messages.notes.append(other)
    assert messages.plain([slot]), "what is noted is only dropped"
    messages.loose_groups[slot] = 7
    assert not messages.plain([slot]), "the fairness of its group counts it"
    messages.remove(messages.queues[1], slot, T0)
    assert not messages.failures and not messages.maxima and not other


def test_delays_end_in_order_of_time_and_at_most_so_many_at_once(messages: Messages) -> None:
    queue = messages.queues[1]
    for sequence, after_ms in ((1, 30), (2, 10), (3, 20)):
        slot = put(messages, 1, sequence)
        messages.leave(queue, slot, T0)
        messages.enter(queue, slot, State.DELAYED, T0 + after_ms)
    messages.end_delays(T0 + 30, limit=2)
    assert (queue.visible, queue.delayed) == (2, 1)
    messages.end_delays(T0 + 30)
    assert [messages.columns.sequence[slot] for slot in queue.ready.front(3)] == [2, 3, 1]


def test_a_record_that_does_not_fit_is_damage(messages: Messages) -> None:
    slot = put(messages, 1, 1)
    assert messages.expect(slot, 1, Type.LEASED) is messages.queues[1]
    with pytest.raises(LogCorrupt, match="cannot happen to message 1, which is VISIBLE"):
        messages.expect(slot, 1, Type.EXTENDED)
    with pytest.raises(LogCorrupt, match="names message 2, which is not there"):
        messages.expect(slot, 2, Type.LEASED)
    messages.journal.before_base = 10
    assert messages.expect(slot, 2, Type.LEASED) is None, "its first record was in the dropped front"


def test_a_closed_queue_is_forgotten_with_its_last_message(messages: Messages) -> None:
    put(messages, 1, 1)
    queue = messages.queues[1]
    queue.closed = True
    assert messages.closing() == [1] and messages.filled_queues() == [1]
    with pytest.raises(QueueDoesNotExist):
        messages.queue_state(1)
    messages.on_purged(queue, 2, T0, final=True)
    assert messages.closing() == messages.filled_queues() == [] and 1 not in messages.queues

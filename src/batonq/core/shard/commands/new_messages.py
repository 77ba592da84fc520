"""Accepting new messages: the decision about each one, and writing those that are accepted as columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from batonq.core.commands import Accepted, Send, Sent
from batonq.core.ids import key_hash, message_id
from batonq.core.payload import content_marks, is_unsafe, overhead_bytes, payload_parts, stored_keys
from batonq.core.records import REPLAYING_VERSION, SentFlag, Type
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.state.columns import counted, joined
from batonq.core.shard.state.dedup_table import Known
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.spread import parse, takes
from batonq.errors import BatonError, DeduplicationConflict, InvalidInput, NotOwner, OverLimit
from batonq.priorities import NORMAL_PRIORITY

if TYPE_CHECKING:
    from batonq.core.shard.commands.publish import Publishing

BYTE_MAX = 255  # a record stores each of these values in one byte
GROUPS_CACHED = 1_024
SHARD_FULL = "The shard's limit of stored messages is reached. Receive and delete some."
ELSEWHERE = "The message's key belongs to another shard now, because the queue was moved or got more shards. Retry."
_KEYS_FULL = "The limit of remembered deduplication keys is reached. Retry later, or shorten the window."
NOT_STORABLE = f"The maximum number of receives and the priority of a message must be 0 to {BYTE_MAX}."
UNSAFE = "The body is a pointer to an object in the payload store that may be deleted at any moment."
_SENT = int(Type.SENT)
_FIFO, _DEDUPLICATED, _STORED = int(SentFlag.FIFO), int(SentFlag.DEDUPLICATED), int(SentFlag.STORED)
_REPLAYED = int(SentFlag.REPLAYED)
_DEDUPLICATED_LIVES = _DEDUPLICATED | int(SentFlag.DEDUP_LIVES)

Results = list[Accepted | BatonError]


@lru_cache(maxsize=GROUPS_CACHED)
def group_hash(group: str) -> int:
    """The hash that identifies a message group within a shard; 0 for no group."""
    return key_hash(group) if group else 0


class NewMessages:
    def __init__(self, messages: Messages, runs: MessageRuns, arrivals: Arrivals) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.dedup = messages.dedup
        self.runs = runs
        self.arrivals = arrivals
        self.publishing: Publishing  # set by publish.py
        self._known_living = -1  # not counted yet

    def begin(self) -> None:
        """Begin a group of requests."""
        self._known_living = -1

    def _living(self) -> int:
        """The number of messages in the shard, which is expensive to count: once per group of requests."""
        if self._known_living < 0:
            self._known_living = self.messages.living()
        return self._known_living

    def takes_runs(self, queue: QueueState) -> bool:
        """Whether this shard accepts messages of the queue without a decision about each: the queue has no limits, and
        all its messages belong here.
        """
        policy = queue.policy
        if policy.messages_max or policy.bytes_max or queue.sends_paused or (policy.topic and queue.fifo):
            return False
        return not policy.spread or (not queue.fifo and takes(policy.spread, self.number))

    def joins(self, queue: QueueState, run: Run, command: Send) -> bool:
        """Add a request to a run, if all its messages will be accepted; returns whether they will. The queue takes
        runs.
        """
        if not is_storable(command) or (command.attributes and any(map(is_unsafe, command.contents))):
            return False
        if queue.policy.topic and (any(command.delays_ms) or any(command.ttls_ms)):
            return False
        keys = self.dedup.keys_of(queue, command)
        if keys:
            if queue.policy.topic:
                return False
            if queue.policy.spread:
                return False  # a deduplication id decides which shard of the queue a message belongs to
            unique = {*keys} - {0}
            if len(unique) < len(keys) - keys.count(0) or not run.taken.isdisjoint(unique):
                return False
            if not self.dedup.are_new(keys, len(run.taken)):
                return False
            run.taken |= unique
        run.add(command, keys)
        return True

    def belongs_elsewhere(self, queue: QueueState, command: Send, at: int) -> bool:
        """Whether the key of a new message belongs to another shard since the queue grew."""
        if queue.fifo:
            return self.arrivals.has_moved(
                queue, group_hash(command.groups[at] if command.groups else "") or key_hash("")
            )
        key = command.key_at(at, fifo=False)
        if not key:
            return not takes(queue.policy.spread, self.number)
        return parse(queue.policy.spread).of_key(key) != self.number

    def write_run(self, queue: QueueState, run: Run, now: int) -> int:
        """Write all messages of a run; returns the first sequence, or 0 if the shard has no room for all of them."""
        if queue.policy.topic:
            return self.publishing.publish_run(queue, run.commands, now)
        columns = self.columns
        count = run.count
        slots = columns.take_run(count)
        slots_max = self.journal.limits.slots_max
        if slots[-1] >= slots_max and self._living() + count > slots_max:
            columns.give_back_run(slots)
            return 0
        lengths = array("I")
        for command in run.commands:
            parts, sizes = payload_parts(command, now)
            self.frame.parts += parts
            lengths.extend(sizes)
        first = self._write(queue, run.commands, run.keys, slots, lengths, now)
        if run.taken:
            marks = [mark for command in run.commands for mark in content_marks(command)]
            self.dedup.put_run(queue, slots, first, now, run.keys, marks)
        return first

    def send_rows(self, queue: QueueState, command: Send, now: int, flags: int = 0) -> Sent:
        """Send the messages of a request: decide about each, then write those that are accepted, with these flags."""
        columns, policy = self.columns, queue.policy
        if policy.topic:
            return self.publishing.publish(queue, command, now)
        count = len(command.bodies)
        slots = columns.take_run(count)
        room, slots_max = count, self.journal.limits.slots_max
        if slots[-1] >= slots_max:
            room = max(sum([slot < slots_max for slot in slots]), slots_max - self._living())
        first = self.journal.next_sequence
        results: Results = []
        places: list[int] = []
        parts, sizes = payload_parts(command, now)
        keys = self.dedup.keys_of(queue, command)
        marks = content_marks(command) if keys else ()
        size = 0
        storable = is_storable(command)
        for at in range(count):
            problem: BatonError | None = None
            if not storable and not is_storable(command.pick([at])):
                problem = InvalidInput(NOT_STORABLE)
            key = keys[at] if keys else 0
            if problem is None and key:
                known = self.dedup.known(queue, key, now)
                if known is not None:
                    results.append(self.deduplicated(queue, known, command, at, marks[at]))
                    continue
                problem = self.no_key_more(key, now)
            if problem is None and policy.spread and self.belongs_elsewhere(queue, command, at):
                problem = NotOwner(ELSEWHERE)
            if problem is None and command.contents and is_unsafe(command.contents[at]):
                problem = InvalidInput(UNSAFE)
            taken = len(places)
            if problem is None:
                problem = queue.refusal(sizes[at], taken, size)
            if problem is None and taken >= room:
                problem = OverLimit(SHARD_FULL)
            if problem is not None:
                results.append(problem)
                continue
            sequence = first + taken
            if key:
                self.dedup.put(queue, slots[taken], sequence, now, key, marks[at], policy.dedup_lives)
            places.append(at)
            size += sizes[at]
            results.append(Accepted(sequence, message_id(self.number, sequence), False))
        if len(places) < count:
            columns.give_back_run(slots[len(places) :])
            slots = slots[: len(places)]
            each = len(parts) // count
            parts = [part for at in places for part in parts[at * each : (at + 1) * each]]
            sizes, keys = [sizes[at] for at in places], [keys[at] for at in places] if keys else []
        if places:
            self.frame.parts += parts
            self._write(queue, [command.pick(places)], keys, slots, array("I", sizes), now, flags)
        return Sent(self.number, first, count) if len(places) == count else outcome(self.number, results)

    def no_key_more(self, key: int, now: int) -> BatonError | None:
        """Why a new deduplication key cannot be remembered; None if it can."""
        table = self.dedup.table
        if table.full(now // 1000, self.journal.limits.dedup_entries_max) and table.has_none((key,)):
            return OverLimit(_KEYS_FULL)
        return None

    def deduplicated(self, queue: QueueState, known: Known, command: Send, at: int, mark: int) -> Accepted | BatonError:
        if command.strict and command.strict[at] and known.fingerprint != mark:
            return DeduplicationConflict()
        queue.duplicates += 1
        return taken_before(self.number, known.sequence)

    def _write(
        self,
        queue: QueueState,
        commands: Sequence[Send],
        keys: Sequence[int],
        slots: Sequence[int],
        lengths: array[int],
        now: int,
        flags: int = 0,
    ) -> int:
        """Write accepted messages, whose payloads are already in the frame, and apply them; returns the first
        sequence. A column that no message uses costs nothing.
        """
        policy, frame = queue.policy, self.frame
        count = len(slots)
        w0 = _SENT | flags << 8 | (_FIFO << 8 if queue.fifo else 0) | queue.number << 32
        if commands[0].lineages:  # a replay's messages are numbered, so their request is written alone
            w0 |= _REPLAYED << 8
            self.journal.use_format(REPLAYING_VERSION)
        # The rows start as copies of the shared values; the columns that differ are then written over them.
        rows = array("Q", (w0 | NORMAL_PRIORITY << 16, 0, now, now, 0, 0, 0, 0)) * count
        given = column_of(commands, "priorities", NORMAL_PRIORITY)
        priorities = array("B", given) if given else array("B", (NORMAL_PRIORITY,)) * count
        maxima = column_of(commands, "max_receives", 0)
        if keys or maxima or given:
            known = (_DEDUPLICATED_LIVES if policy.dedup_lives else _DEDUPLICATED) << 8
            none = bytes(count)
            rows[0::8] = array(
                "Q",
                [
                    w0 | (known if key else 0) | priority << 16 | maximum << 24
                    for key, priority, maximum in zip(keys or none, priorities, maxima or none, strict=True)
                ],
            )
        stored = stored_keys(commands)
        if stored:
            rows[0::8] = array(
                "Q", [head | (_STORED << 8 if one else 0) for head, one in zip(rows[0::8], stored, strict=True)]
            )
        if keys:
            rows[5::8] = array("Q", keys)
        groups = None
        if any(names := column_of(commands, "groups", "")):
            groups = rows[4::8] = array("Q", [*map(group_hash, names)])
        visibles = None
        delays = column_of(commands, "delays_ms", None)
        if delays or policy.delay_ms:
            own = [policy.delay_ms if delay is None else delay for delay in delays or [None] * count]
            if any(own):
                visibles = rows[3::8] = array("Q", [now + delay for delay in own])
        ttls = column_of(commands, "ttls_ms", None)
        if ttls or visibles is not None:
            lives = [policy.retention_ms if ttl is None else ttl for ttl in ttls or [None] * count]
            expires = array("I", [-(-(when + life) // 1000) for when, life in zip(rows[3::8], lives, strict=True)])
        else:
            expires = array("I", (-(-(now + policy.retention_ms) // 1000),)) * count
        if self._known_living >= 0:
            self._known_living += count
        first = self.journal.next_sequence
        position = frame.number << 16 | len(frame.rows) >> 3
        offset = frame.variable_bytes
        offsets = array("I", accumulate(lengths, initial=offset))
        frame.variable_bytes = offsets.pop()
        extents = joined(offsets, lengths)
        sequences = counted("Q", range(first, first + count))
        rows[1::8] = sequences
        rows[6::8] = extents
        rows[7::8] = joined(counted("I", slots) if isinstance(slots, range) else array("I", slots), expires)
        frame.extend(rows)
        size = frame.variable_bytes - offset
        self.runs.on_sends(
            queue, slots, sequences, now, expires, priorities, position, extents, size, visibles, groups, maxima
        )
        self._count_overhead(queue, commands)
        if stored:
            for slot, one in zip(slots, stored, strict=True):
                if one:
                    self.messages.stored.put(queue, slot, one, now)
        return first

    def _count_overhead(self, queue: QueueState, commands: Sequence[Send]) -> None:
        """Only bodies and attributes count as bytes sent; applying the records has counted all that is stored."""
        for command in commands:
            queue.sent_bytes -= overhead_bytes(command)


class Run:
    """Requests that are written together, because all their messages are accepted."""

    __slots__ = ("commands", "count", "keys", "names", "taken")

    def __init__(self) -> None:
        self.commands: list[Send] = []
        self.count = 0  # messages
        self.keys: list[int] = []  # hash of each message's deduplication id; empty if no message has one
        self.taken: set[int] = set()  # the same keys, without 0
        self.names: set[int] = set()  # hashes of the requests' names

    def add(self, command: Send, keys: Sequence[int]) -> None:
        count = len(command.bodies)
        if keys or self.keys:
            self.keys += [0] * (self.count - len(self.keys))
            self.keys += keys or [0] * count
        self.commands.append(command)
        self.count += count
        if command.request:
            self.names.add(command.request)


def is_storable(command: Send) -> bool:
    """Whether a record can store each message's priority and maximum of receives."""
    return all(
        not column or (min(column) >= 0 and max(column) <= BYTE_MAX)
        for column in (command.priorities, command.max_receives)
    )


def column_of(commands: Sequence[Send], name: str, default: Any) -> list[Any]:
    """One column of several commands, with `default` for commands that do not have it; empty if none has it."""
    columns = [getattr(command, name) for command in commands]
    if not any(columns):
        return []
    if len(columns) == 1:
        return list(columns[0])
    return [
        value
        for command, column in zip(commands, columns, strict=True)
        for value in column or [default] * len(command.bodies)
    ]


def outcome(shard: int, results: Sequence[Accepted | BatonError], replayed: bool = False) -> Sent:
    return Sent(shard, 0, len(results), results, replayed)


def refused(shard: int, command: Send, problem: BatonError) -> Sent:
    """The outcome of a request whose messages are all refused."""
    count = len(command.bodies)
    return Sent(shard, 0, count, [problem] * count)


def taken_before(shard: int, sequence: int) -> Accepted:
    """The result of a message that the shard has already."""
    return Accepted(sequence, message_id(shard, sequence), True)

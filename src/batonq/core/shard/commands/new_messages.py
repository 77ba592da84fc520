"""Accepting new messages: the decision about each one, and writing those that are accepted as columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from batonq.core.commands import Accepted, Send, Sent
from batonq.core.ids import key_hash, message_id
from batonq.core.payload import bare_parts, content_mark_of, head_of
from batonq.core.records import SentFlag, Type
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.state.columns import counted, joined
from batonq.core.shard.state.dedup_table import Known
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.spread import parse, takes
from batonq.errors import BatonError, DeduplicationConflict, InvalidInput, NotOwner, OverLimit
from batonq.priorities import NORMAL_PRIORITY

BYTE_MAX = 255  # a record stores each of these values in one byte
GROUPS_CACHED = 65_536
SHARD_FULL = "The shard's limit of stored messages is reached. Receive and delete some."
ELSEWHERE = "The message's key belongs to another shard now, because the queue was moved or got more shards. Retry."
_SENT = int(Type.SENT)
_FIFO, _DEDUPLICATED = int(SentFlag.FIFO), int(SentFlag.DEDUPLICATED)
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

    def takes_runs(self, queue: QueueState) -> bool:
        """Whether messages with only a body are accepted without a decision per message."""
        policy = queue.policy
        if queue.fifo or policy.delay_ms or policy.messages_max or policy.bytes_max:
            return False
        return takes(policy.spread, self.number)

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

    def write_bare(self, queue: QueueState, commands: Sequence[Send], now: int) -> int:
        """Write messages with only a body as one run; returns the first sequence, or 0 if the shard is full."""
        columns = self.columns
        count = sum([len(command.bodies) for command in commands])
        slots = columns.take_run(count)
        if (
            slots[-1] >= self.journal.limits.slots_max
            and self.messages.living() + count > self.journal.limits.slots_max
        ):
            columns.give_back_run(slots)
            return 0
        frame = self.frame
        lengths = array("I")
        for command in commands:
            parts, header_bytes = bare_parts(command, now)
            frame.parts += parts
            lengths.extend([header_bytes + length for length in map(len, command.bodies)])
        expires_s = -(-(now + queue.policy.retention_ms) // 1000)
        # The rows start as copies of the shared values; the columns that differ are then written over them.
        rows = array("Q", (_SENT | NORMAL_PRIORITY << 16 | queue.number << 32, 0, now, now, 0, 0, 0, 0)) * count
        expires = array("I", (expires_s,)) * count
        priorities = array("B", (NORMAL_PRIORITY,)) * count
        return self._write(queue, slots, rows, lengths, now, expires, priorities, None, None, None)

    def send_rows(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Send messages of any kind: decide per message, then write the accepted messages as columns."""
        columns, policy, bodies = self.columns, queue.policy, command.bodies
        count, now_s = len(bodies), now // 1000
        slots = columns.take_run(count)
        room = count
        if slots[-1] >= self.journal.limits.slots_max:
            below = sum([slot < self.journal.limits.slots_max for slot in slots])
            room = max(below, self.journal.limits.slots_max - self.messages.living())
        first = self.journal.next_sequence
        results: Results = []
        places: list[int] = []
        heads: list[bytes] = []
        keys: list[int] = []
        size = 0
        limited = bool(policy.messages_max or policy.bytes_max)
        priorities, maxima, spread = command.priorities, command.max_receives, policy.spread
        for at, body in enumerate(bodies):
            if (priorities and not 0 <= priorities[at] <= BYTE_MAX) or (maxima and not 0 <= maxima[at] <= BYTE_MAX):
                text = f"The maximum number of receives and the priority of a message must be 0 to {BYTE_MAX}."
                results.append(InvalidInput(text))
                continue
            key = self.dedup.key_of(queue, command, at)
            mark = 0
            if key:
                mark = content_mark_of(command, at)
                known = self.dedup.known(queue, key, now)
                if known is not None:
                    results.append(self._deduplicated(queue, known, command, at, mark))
                    continue
                if self.dedup.table.full(now_s, self.journal.limits.dedup_entries_max):
                    text = "The limit of remembered deduplication keys is reached. Retry later, or shorten the window."
                    results.append(OverLimit(text))
                    continue
            if spread and self.belongs_elsewhere(queue, command, at):
                results.append(NotOwner(ELSEWHERE))
                continue
            head = head_of(command, at, now)
            if limited:
                full = queue.full(len(head) + len(body), len(places), size)
                if full:
                    results.append(OverLimit(full))
                    continue
            taken = len(places)
            if taken >= room:
                results.append(OverLimit(SHARD_FULL))
                continue
            sequence = first + taken
            if key:
                self.dedup.put(queue, slots[taken], sequence, now, key, mark, policy.dedup_lives)
            places.append(at)
            heads.append(head)
            keys.append(key)
            size += len(head) + len(body)
            results.append(Accepted(sequence, message_id(self.number, sequence), False))
        if len(places) < count:
            columns.give_back_run(slots[len(places) :])
            slots = slots[: len(places)]
        if places:
            self._write_rows(queue, command.pick(places), slots, heads, keys, now)
        return Sent(self.number, first, count) if len(places) == count else outcome(self.number, results)

    def _deduplicated(
        self, queue: QueueState, known: Known, command: Send, at: int, mark: int
    ) -> Accepted | BatonError:
        if command.strict and command.strict[at] and known.fingerprint != mark:
            return DeduplicationConflict()
        queue.duplicates += 1
        return taken_before(self.number, known.sequence)

    def _write_rows(
        self,
        queue: QueueState,
        command: Send,
        slots: Sequence[int],
        heads: Sequence[bytes],
        keys: Sequence[int],
        now: int,
    ) -> None:
        """Write accepted messages, in the order of their slots."""
        policy, bodies = queue.policy, command.bodies
        count = len(bodies)
        parts = [b""] * (2 * count)
        parts[0::2] = heads
        parts[1::2] = bodies
        self.frame.parts += parts
        lengths = array("I", [len(head) + len(body) for head, body in zip(heads, bodies, strict=True)])
        w0 = _SENT | (_FIFO << 8 if queue.fifo else 0) | queue.number << 32
        rows = array("Q", (w0 | NORMAL_PRIORITY << 16, 0, now, now, 0, 0, 0, 0)) * count
        priorities = array("B", command.priorities or (NORMAL_PRIORITY,) * count)
        maxima = command.max_receives if any(command.max_receives) else None
        has_keys = any(keys)
        if has_keys or maxima or command.priorities:
            known = (_DEDUPLICATED_LIVES if policy.dedup_lives else _DEDUPLICATED) << 8
            heads_column = [
                w0 | (known if key else 0) | priority << 16 | maximum << 24
                for key, priority, maximum in zip(keys, priorities, maxima or bytes(count), strict=True)
            ]
            rows[0::8] = array("Q", heads_column)
        if has_keys:
            rows[5::8] = array("Q", keys)
        groups = None
        if any(command.groups):
            groups = array("Q", map(group_hash, command.groups))
            rows[4::8] = groups
        delays = [policy.delay_ms if delay is None else delay for delay in command.delays_ms]
        visibles = None
        if any(delays) or (policy.delay_ms and not delays):
            visibles = array("Q", [now + delay for delay in delays] or [now + policy.delay_ms] * count)
            rows[3::8] = visibles
        ttls = [policy.retention_ms if ttl is None else ttl for ttl in command.ttls_ms] or [policy.retention_ms] * count
        expires = array("I", [-(-(when + ttl) // 1000) for when, ttl in zip(rows[3::8], ttls, strict=True)])
        self._write(queue, slots, rows, lengths, now, expires, priorities, visibles, groups, maxima)

    def _write(
        self,
        queue: QueueState,
        slots: Sequence[int],
        rows: array[int],
        lengths: array[int],
        now: int,
        expires: array[int],
        priorities: array[int],
        visibles: array[int] | None,
        groups: array[int] | None,
        maxima: Sequence[int] | None,
    ) -> int:
        """Complete the rows of new messages, whose payloads are already in the frame, and apply them; returns the
        first sequence.
        """
        frame = self.frame
        first, count = self.journal.next_sequence, len(slots)
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
        return first


def outcome(shard: int, results: Sequence[Accepted | BatonError], replayed: bool = False) -> Sent:
    return Sent(shard, 0, len(results), results, replayed)


def refused(shard: int, command: Send, problem: BatonError) -> Sent:
    """The outcome of a request whose messages are all refused."""
    count = len(command.bodies)
    return Sent(shard, 0, count, [problem] * count)


def taken_before(shard: int, sequence: int) -> Accepted:
    """The result of a message that the shard has already."""
    return Accepted(sequence, message_id(shard, sequence), True)

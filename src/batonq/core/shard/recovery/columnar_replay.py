"""Replaying runs of uniform records, one column at a time: most of the work of a follower and of a recovering node.

Records that do not fit this path are left to `replay.py`, which applies them one by one and reports errors.
"""

from __future__ import annotations

from array import array

from batonq.core.records import Reason, Type, decode_notes, part_of
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.effects.message_runs import FIRST_LEASE, FREES, IN_FLIGHTS, RUN_MAX, MessageRuns
from batonq.core.shard.state.columns import as_run, counted, halves_of
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState

RUN_MIN = 3
RUN_TYPES = (int(Type.SENT), int(Type.LEASED), int(Type.DELETED))
_LOW32 = 0xFFFFFFFF


class ColumnarReplay:
    def __init__(
        self, messages: Messages, runs: MessageRuns, numbered: NumberedSends, requests: RememberedRequests
    ) -> None:
        self.journal = messages.journal
        self.messages = messages
        self.columns = messages.columns
        self.timers = messages.timers
        self.runs = runs
        self.numbered = numbered
        self.requests = requests

    def replay_frame_of_sends(
        self, number: int, words: array[int], heads: array[int], times: array[int], variable: bytes
    ) -> bool:
        """Apply a whole frame of plain sends to one queue into new slots, with the records of their requests and
        producers.

        The log of a backlog consists of such frames, so recovery spends most of its time here.
        """
        row = 1 if heads[0] & 0xFF == Type.REQUESTED and len(heads) > 1 else 0
        w0, slot = heads[row], words[(row << 3) + 7] & _LOW32
        if w0 & 0xFF00FFFF != Type.SENT or slot != self.columns.used:
            return False
        if self.journal.before_base or times[-1] >= self.timers.delays.due:
            return False
        queue = self.messages.named_queue(w0 >> 32)
        if queue.fifo:
            return False
        others: list[int] = []
        if heads != same("Q", w0, len(heads)):
            beside = (Type.REQUESTED | queue.number << 32, Type.PRODUCED | queue.number << 32)
            if heads.count(w0) + sum(map(heads.count, beside)) != len(heads):
                return False
            others = [row for row, head in enumerate(heads) if head != w0]
        count = len(heads) - len(others)
        first_position = number << 16
        kept, positions = words, counted("Q", range(first_position, first_position + len(heads)))
        if others:
            every, kept, positions = positions, array("Q"), array("Q")
            start = 0
            for row in (*others, len(heads)):
                kept += words[start << 3 : row << 3]
                positions += every[start:row]
                start = row + 1
        sequences, sent, visible, groups, extents, tails = (kept[k::8] for k in (1, 2, 3, 4, 6, 7))
        halves = halves_of(tails)
        slots = range(slot, slot + count)
        if (
            count > RUN_MAX
            or sent != visible
            or groups != same("Q", 0, count)
            or halves[0::2] != counted("I", slots)
            or sequences != counted("Q", range(sequences[0], sequences[0] + count))
        ):
            return False
        priorities = same("B", w0 >> 16 & 0xFF, count)
        self.runs.fill_range(queue, slots, sequences, sent, halves[1::2], priorities, positions, extents)
        self.runs.enter_ready(queue, slots, priorities)
        self.runs.count_sends(queue, count, sum(halves_of(extents)[1::2]), sequences[-1] + 1)
        if queue.retained is not None:
            for at in range(count):
                queue.retained.append(positions[at], sent[at])
        self.journal.last_time_ms = max(self.journal.last_time_ms, times[-1])
        for row in others:
            w0, w1, w2, w3, w4, w5, _, w7 = words[row << 3 : row + 1 << 3]
            if w0 & 0xFF == Type.REQUESTED:
                self.requests.on_requested(w5, w1, w2, w3, w4)
            else:
                self.numbered.on_produced(w5, w3, w1, w4, w2, w7 >> 32)
        return True

    def replay_run(self, position: int, rows: array[int], variable: bytes) -> bool:
        """Apply at most RUN_MAX records that differ only in their messages. Returns False, with no record applied,
        if the records are not that uniform.
        """
        w0, time = rows[0], rows[2]
        queue = self.messages.named_queue(w0 >> 32)
        if w0 >> 8 & 0xFF or queue.fifo:
            return False
        self.messages.move_time(time)
        kind, reason = w0 & 0xFF, w0 >> 24 & 0xFF
        if kind == Type.SENT:
            return not reason and self._replay_sends(queue, position, rows)
        if kind == Type.LEASED:
            return self._replay_first_leases(queue, position, rows, variable)
        return reason == Reason.ACK and self._replay_acknowledged(queue, rows)

    def _replay_sends(self, queue: QueueState, position: int, rows: array[int]) -> bool:
        """Apply sends of new messages with consecutive sequences, without a group and VISIBLE at once."""
        columns = self.columns
        time, aux = rows[2], rows[7] >> 32
        sequences, halves = rows[1::8], halves_of(rows[7::8])
        count = len(sequences)
        if (
            rows[3::8] != same("Q", time, count)
            or rows[4::8] != same("Q", 0, count)
            or sequences[-1] != sequences[0] + count - 1
            or halves[1::2] != same("I", aux, count)
        ):
            return False
        slots = as_run(halves[0::2].tolist())
        if isinstance(slots, range):
            states = columns.state[slots.start : min(slots.stop, columns.used)]
            taken = states != FREES[: len(states)]
        else:
            taken = any(slot < columns.used and columns.state[slot] for slot in slots)
        if taken:
            return False
        columns.take_named(slots)
        extents = rows[6::8]
        size = sum(halves_of(extents)[1::2])
        priorities = same("B", rows[0] >> 16 & 0xFF, count)
        self.runs.on_sends(queue, slots, sequences, time, halves[1::2], priorities, position, extents, size)
        return True

    def _replay_first_leases(self, queue: QueueState, position: int, rows: array[int], variable: bytes) -> bool:
        """Apply first leases by one holder on the messages at the front of the queue."""
        columns = self.columns
        deadline, w6, tails = rows[3], rows[6], rows[7::8]
        count = len(tails)
        if (
            rows[3::8] != same("Q", deadline, count)
            or rows[4::8] != same("Q", FIRST_LEASE, count)
            or rows[6::8] != same("Q", w6, count)
        ):
            return False
        slots = queue.ready.front(count)
        if tails.tolist() != [*slots]:
            return False
        if isinstance(slots, range):
            sequences = columns.sequence[slots.start : slots.stop]
        else:
            sequences = array("Q", [columns.sequence[slot] for slot in slots])
        if sequences != rows[1::8]:
            return False
        holder, _ = decode_notes(part_of(variable, w6))
        self.runs.on_first_leases(queue, slots, rows[2], deadline, position, [(holder, count)])
        return True

    def _replay_acknowledged(self, queue: QueueState, rows: array[int]) -> bool:
        """Apply deletes of IN_FLIGHT messages by their holders."""
        columns = self.columns
        slots = as_run(halves_of(rows[7::8])[0::2].tolist())
        if isinstance(slots, range):
            sequences = columns.sequence[slots.start : slots.stop]
            states = columns.state[slots.start : slots.stop]
        elif max(slots) >= columns.used:
            return False
        else:
            sequences = array("Q", [columns.sequence[slot] for slot in slots])
            states = array("B", [columns.state[slot] for slot in slots])
        if sequences != rows[1::8] or states != IN_FLIGHTS[: len(slots)] or not self.messages.plain(slots):
            return False
        self.runs.on_acknowledged(queue, slots)
        return True


def same(typecode: str, value: int, count: int) -> array[int]:
    return array(typecode, (value,)) * count


def alike_until(column: array[int], start: int, stop: int) -> int:
    """The end, at most `stop`, of the equal values that begin at `start`. The search step grows while the values
    stay equal.
    """
    value = column[start]
    end, step = start + 1, 32
    if end < stop and column[end] != value:
        return end
    while end < stop and step:
        some = column[end : min(end + step, stop)]
        if some == same(column.typecode, value, len(some)):
            end += len(some)
            step *= 4
        else:
            step = step // 4 if step > 2 else step // 2
    return end

"""What must survive when the front of the log is dropped: messages carried forward, and a Base of everything else."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable

from batonq.core import sections as pieces
from batonq.core.payload import Lineage, decode, encode_payload, merge_lineage, with_lineage
from batonq.core.records import CARRIED_PREFIX, BaseFlag, CarriedFlag, State, Type, skip
from batonq.core.shard.recovery.snapshot import Persistence, encode
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.messages import Messages
from batonq.errors import LogCorrupt

BASE_BYTES_MAX = 1 << 29
FRAME_OVERHEAD_BYTES = 1 << 10  # for the header and the rows


class Truncation:
    def __init__(self, messages: Messages, persistence: Persistence) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.timers = messages.timers
        self.persistence = persistence

    def to_carry(self, boundary: int, rows: Iterable[int]) -> list[int]:
        """The slots whose messages still need a frame below `boundary`.

        `rows` are the slots that the Sent, Arrived and Carried records of those frames name. Messages with a lineage
        overlay are added here, because their payload is in another message's record.
        """
        columns = self.columns
        limit = boundary << 16
        slots = [
            slot for slot in rows if slot < columns.used and columns.state[slot] and columns.position[slot] < limit
        ]
        for slot, overlays in self.messages.overlays.items():
            if columns.position[slot] < limit or overlays[0] < limit:
                slots.append(slot)
        return list(dict.fromkeys(slots))

    def carry(self, slot: int, payload: bytes, overlays: Iterable[bytes], now: int) -> None:
        """Copy one message forward. `payload` and `overlays` are as the log has them."""
        columns = self.columns
        self.journal.last_time_ms = max(now, self.journal.last_time_ms)
        decoded = decode(payload)
        lineage = Lineage.decode(decoded.lineage)
        for overlay in overlays:
            lineage = merge_lineage(lineage, Lineage.decode(overlay))
        if lineage != Lineage():
            payload = encode_payload(with_lineage(decoded, lineage))
        flags = int(CarriedFlag.WAITING) if slot in self.messages.fanned else 0
        w6 = self.frame.put(self.messages.carried_prefix(slot) + payload)
        position = self.frame.add(
            Type.CARRIED | flags << 8 | columns.priority[slot] << 16 | columns.queue[slot] << 32,
            columns.sequence[slot],
            self.journal.last_time_ms,
            columns.until[slot],
            columns.epoch[slot] | columns.count[slot] << 32,
            columns.last[slot],
            w6,
            slot | columns.expires[slot] << 32,
        )
        self.messages.on_carried(slot, position, skip(w6, CARRIED_PREFIX.size))

    def write_base(self, first_frame: int, now: int, frame_bytes_max: int = BASE_BYTES_MAX) -> int:
        """Write everything that must survive when frames below `first_frame` are dropped, and a message count to
        check it.

        A Base that is too long for one frame is written in parts, in consecutive frames; see `sections.pack_in_parts`.
        Returns the number of bytes.
        """
        self.journal.last_time_ms = max(now, self.journal.last_time_ms)
        facts = self.persistence.facts()
        facts["messages"] = sum(queue.messages for queue in self.queues.values())
        for fact in facts["queues"]:
            fact["present"] = self.queues[fact["policy"]["queue"]].messages
        tables = self.persistence.remembered()
        parts = [pieces.pack({"facts": encode(facts), **tables})]
        if len(parts[0]) > frame_bytes_max // 2:
            queues = [encode(queue) for queue in facts.pop("queues")]
            parts = pieces.pack_in_parts(queues, pieces.pack({"facts": encode(facts), **tables}), frame_bytes_max // 2)
        for number, part in enumerate(parts):
            if self.frame.size + len(part) > frame_bytes_max - FRAME_OVERHEAD_BYTES:
                self.frame.roll()
            more = BaseFlag.MORE << 8 if number + 1 < len(parts) else 0
            w6 = self.frame.put(part)
            self.frame.add(
                Type.BASE | more, self.journal.next_sequence, self.journal.last_time_ms, first_frame, number, 0, w6, 0
            )
        return sum(map(len, parts))

    def load_base(self, parts: list[bytes]) -> None:
        """Load the Base, after which all messages are known completely."""
        if len(parts) == 1:
            sections = pieces.unpack(parts[0])
            facts = json.loads(sections["facts"])
        else:
            queues, rest = pieces.unpack_parts(parts)
            sections = pieces.unpack(rest)
            facts = {**json.loads(sections["facts"]), "queues": queues}
        live = self.messages.live_slots()
        if len(live) != facts["messages"]:
            raise LogCorrupt(
                f"after the dropped front there are {len(live)} messages, the Base says {facts['messages']}"
            )
        collected = {number: queue.retained for number, queue in self.queues.items() if queue.retained is not None}
        self.queues.clear()
        self.persistence.load_facts(facts, collected)
        self.persistence.load_remembered(sections)
        self.journal.before_base = 0
        self._rebuild(live)
        for fact in facts["queues"]:
            queue = self.queues[fact["policy"]["queue"]]
            if queue.messages != fact.get("present", queue.messages):
                raise LogCorrupt(
                    f"after the dropped front queue {queue.number} has {queue.messages} messages, the Base says "
                    f"{fact['present']}"
                )
        self.persistence.infer_missing(facts)

    def _rebuild(self, live: list[int]) -> None:
        """Rebuild the arrival order, the ready lines and the timers from the columns."""
        columns = self.columns
        self.lines.clear()
        self.timers.clear()
        columns.line[:] = array("I", [NIL]) * columns.capacity
        columns.rebuild_free()
        for slot in sorted(live, key=columns.sequence.__getitem__):
            queue = self.queues[columns.queue[slot]]
            self.messages.append_to_queue(queue, slot)
            was_dead = columns.state[slot] == State.OWED and columns.doomed[slot] == State.DEAD
            if queue.fifo and columns.state[slot] != State.DEAD and not was_dead:
                line = self.lines.find_or_open(queue.number, self.messages.loose_groups.pop(slot, 0), 0)
                self.lines.append(line, slot)
        for slot in sorted(live, key=lambda slot: (columns.until[slot], columns.sequence[slot])):
            queue = self.queues[columns.queue[slot]]
            state, until = columns.state[slot], columns.until[slot]
            self.messages.enter(queue, slot, state, until)
            if state == State.IN_FLIGHT:
                queue.ready.lease_began(self.messages.loose_groups.get(slot, 0))

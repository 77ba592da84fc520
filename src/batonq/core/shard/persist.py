"""A shard's state as bytes: the canonical dump that tests compare, snapshots, and truncation (Carried and Base)."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

from batonq.core import sections as pieces
from batonq.core.commands import Job
from batonq.core.payload import Lineage, decode, encode_payload, merge_lineage, with_lineage
from batonq.core.policy import QueuePolicy
from batonq.core.records import BaseFlag, Reason, State, Type
from batonq.core.shard.channel_end import load_all
from batonq.core.shard.columns import NIL
from batonq.core.shard.job_book import JobBook
from batonq.core.shard.queue_state import TOTALS, QueueState
from batonq.core.shard.replay import Replay, skip
from batonq.core.shard.state import CARRIED_PREFIX, NO_EXPIRY_TIMER, NO_TIMER, Attempt, Channel, Failure
from batonq.errors import LogCorrupt

BASE_BYTES_MAX = 1 << 29
FRAME_OVERHEAD_BYTES = 1 << 10  # for the header and the rows
_NOTES = ("holders", "maxima", "kept_maxima", "origins", "refusals", "passed", "redriven", "edited", "uncharged")


class Persist(Replay):
    # --- shared by all forms: everything but the messages' columns -------------------------------------

    def _facts(self) -> dict[str, Any]:
        """Everything that is not a column, as JSON values. Dictionaries by slot become pairs in order of slot."""
        incoming = sorted(self.incoming.items())
        return {
            "epoch": self.epoch,
            "next_sequence": self.next_sequence,
            "last_time_ms": self.last_time_ms,
            "queues": [self._queue_facts(self.queues[number]) for number in sorted(self.queues)],
            "notes": {name: sorted(getattr(self, name).items()) for name in _NOTES},
            "overlays": sorted(self.overlays.items()),
            "failures": sorted(self.failures.items()),
            "living_keys": sorted(self.living_keys.items()),
            "owed_to": sorted(self.owed_to.items()),
            "attempts": [[*key, value.expires_ms, value.leases] for key, value in self.attempts.items()],
            "channels": [
                [shard, way.last, way.settled, list(way.unsettled.items())]
                for shard, way in sorted(self.channels.items())
            ],
            "cursors": [[source, end.cursor] for source, end in incoming],
            "refused_numbers": [[source, *refusal] for source, end in incoming for refusal in end.refusals()],
            "verdicts_from": [[source, end.first] for source, end in incoming],
            "jobs": [job.values() for job in self.jobs.values()],
        }

    @staticmethod
    def _queue_facts(queue: QueueState) -> dict[str, Any]:
        return {
            "policy": queue.policy.values(),
            "closed": queue.closed,
            "purge_generation": queue.purge_generation,
            "forgotten_below": queue.forgotten_below,
            "dedup_generation": queue.dedup_generation,
            "totals": [getattr(queue, name) for name in TOTALS],
        }

    def _load_facts(self, facts: dict[str, Any]) -> None:
        self.epoch = facts["epoch"]
        self.next_sequence = max(self.next_sequence, facts["next_sequence"])
        self.last_time_ms = max(self.last_time_ms, facts["last_time_ms"])
        for fact in facts["queues"]:
            policy = QueuePolicy.decode(json.dumps(fact["policy"]).encode())
            self._note_format(policy.spread or policy.dead_letter_spread)
            queue = QueueState(policy, self.lines)
            queue.closed, queue.purge_generation = fact["closed"], fact["purge_generation"]
            queue.forgotten_below = fact.get("forgotten_below", 0)
            queue.dedup_generation = fact.get("dedup_generation", queue.purge_generation)
            for name, value in zip(TOTALS, fact["totals"], strict=True):
                setattr(queue, name, value)
            self.queues[policy.queue] = queue
        for name in _NOTES:
            setattr(self, name, dict(facts["notes"].get(name, ())))
        self.overlays = {slot: tuple(positions) for slot, positions in facts["overlays"]}
        self.failures = {slot: Failure(*failure) for slot, failure in facts["failures"]}
        self.living_keys = {slot: (key, end) for slot, (key, end) in facts["living_keys"]}
        self.owed_to = {slot: (*owed,) for slot, owed in facts["owed_to"]}
        self.attempts = {}
        self.attempt_of = {}
        for queue_number, text, expires_ms, leases in facts["attempts"]:
            attempt = Attempt(expires_ms, tuple((*lease,) for lease in leases))
            self.attempts[queue_number, text] = attempt
            self.attempt_of.update({lease[0]: (queue_number, text) for lease in attempt.leases})
        self.channels = {}
        for shard, last, settled, unsettled in facts["channels"]:
            way = self.channels[shard] = Channel()
            way.last, way.settled, way.unsettled = last, settled, dict(unsettled)
        self.incoming = load_all(facts["cursors"], facts["refused_numbers"], facts.get("verdicts_from"))
        self.jobs = JobBook()
        for fact in facts["jobs"]:
            job = Job.from_values(fact)
            self._note_format(job.destination_spread or "".join(job.origin_spreads.values()))
            self.jobs.put(job)
        self.redriving = {}
        for slot, (_, _, _, reason) in self.owed_to.items():
            if reason == Reason.REDRIVE:
                number = self.columns.queue[slot]
                self.redriving[number] = self.redriving.get(number, 0) + 1

    # --- the canonical dump ----------------------------------------------------------------------------

    def dump(self, now: int) -> bytes:
        """Bytes that are equal for equal states, however each was reached: no slots, no lines, messages in order."""
        return repr(self.picture(now)).encode()

    def picture(self, now: int) -> tuple[Any, ...]:
        """The contents of a dump as values, which compare faster than bytes."""
        self.advance_delays(now)
        columns = self.columns
        messages = []
        sequence_of = {}
        for slot in self.live_slots():
            sequence_of[slot] = columns.sequence[slot]
            group = self.group_of(slot)
            messages.append(
                (
                    columns.sequence[slot],
                    columns.queue[slot],
                    columns.state[slot],
                    columns.until[slot],
                    columns.expires[slot],
                    columns.sent[slot],
                    columns.first_received[slot],
                    columns.leased[slot] if columns.first_received[slot] else 0,
                    columns.epoch[slot],
                    columns.count[slot],
                    columns.priority[slot],
                    columns.doomed[slot],
                    columns.position[slot],
                    columns.extent[slot],
                    columns.last[slot],
                    group,
                )
            )
        messages.sort()
        facts = self._facts()
        del facts["last_time_ms"]
        for name in ("overlays", "failures", "living_keys", "owed_to"):
            facts[name] = sorted((sequence_of[slot], value) for slot, value in facts[name])
        for name in _NOTES:
            facts["notes"][name] = sorted((sequence_of[slot], value) for slot, value in facts["notes"][name])
        facts["attempts"] = sorted(
            [queue, text, expires, [lease[1:] for lease in leases]]
            for queue, text, expires, leases in facts["attempts"]
        )
        for channel in facts["channels"]:
            channel[3] = [(number, sequence_of[slot]) for number, slot in channel[3]]
        gauges = [
            (number, queue.visible, queue.in_flight, queue.delayed, queue.owed, queue.dead, queue.bytes)
            for number, queue in sorted(self.queues.items())
        ]
        tables = (self.dedup.entries(), self.requests.entries(), self.producers.entries())
        return (facts, gauges, messages, *tables)

    def live_slots(self) -> list[int]:
        state = self.columns.state
        return [slot for slot in range(self.columns.used) if state[slot]]

    # --- snapshots -------------------------------------------------------------------------------------

    def save(self) -> dict[str, bytes]:
        """The state as sections of a snapshot. Ready lines and timers are saved as they are, so loading only copies."""
        facts = self._facts()
        facts["tenants"] = sorted(self.loose_groups.items())
        facts["doomed_due"] = list(self.doomed_due)
        facts["gauges"] = [
            [number, queue.visible, queue.in_flight, queue.delayed, queue.owed, queue.dead, queue.bytes]
            for number, queue in sorted(self.queues.items())
        ]
        facts["order"] = [
            [
                number,
                queue.head,
                queue.tail,
                [
                    [lane.priority, lane.fresh, lane.returned, lane.quiet, lane.noisy]
                    for lane in queue.ready.lanes.values()
                ],
                sorted(queue.ready.in_flight.items()),
            ]
            for number, queue in sorted(self.queues.items())
        ]
        return {
            "facts": json.dumps(facts, separators=(",", ":")).encode(),
            **pieces.prefixed("columns", self.columns.save()),
            **pieces.prefixed("lines", self.lines.save()),
            **pieces.prefixed("dedup", self.dedup.save()),
            **pieces.prefixed("requests", self.requests.save()),
            **pieces.prefixed("producers", self.producers.save()),
            **pieces.prefixed("leases", self.leases.save()),
            **pieces.prefixed("delays", self.delays.save()),
            **pieces.prefixed("expiries", self.expiries.save()),
        }

    def load(self, sections: dict[str, bytes]) -> None:
        facts = json.loads(sections["facts"])
        self.columns.load(pieces.with_prefix("columns", sections))
        self.lines.load(pieces.with_prefix("lines", sections))
        self._load_facts(facts)
        self.loose_groups = dict(facts["tenants"])
        self.doomed_due = dict.fromkeys(facts["doomed_due"])
        for number, *gauges in facts["gauges"]:
            queue = self.queues[number]
            names = ("visible", "in_flight", "delayed", "owed", "dead", "bytes")
            for name, value in zip(names, gauges, strict=True):
                setattr(queue, name, value)
        self.filled = {number for number, queue in self.queues.items() if queue.visible}
        for number, head, tail, lanes, in_flight in facts["order"]:
            queue = self.queues[number]
            queue.head, queue.tail = head, tail
            for priority, fresh, returned, quiet, noisy in lanes:
                lane = queue.ready.lane(priority)
                lane.fresh, lane.returned, lane.quiet, lane.noisy = fresh, returned, quiet, noisy
            queue.ready.in_flight = dict(in_flight)
            queue.ready.in_flight_total = queue.in_flight
        for name in ("dedup", "requests", "producers", "leases", "delays", "expiries"):
            getattr(self, name).load(pieces.with_prefix(name, sections))

    # --- truncation --------------------------------------------------------------------------------------

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
        for slot, overlays in self.overlays.items():
            if columns.position[slot] < limit or overlays[0] < limit:
                slots.append(slot)
        return list(dict.fromkeys(slots))

    def carry(self, slot: int, payload: bytes, overlays: Iterable[bytes], now: int) -> None:
        """Copy one message forward. `payload` and `overlays` are as the log has them."""
        columns = self.columns
        self.last_time_ms = max(now, self.last_time_ms)
        decoded = decode(payload)
        lineage = Lineage.decode(decoded.lineage)
        for overlay in overlays:
            lineage = merge_lineage(lineage, Lineage.decode(overlay))
        if lineage != Lineage():
            payload = encode_payload(with_lineage(decoded, lineage))
        w6 = self.frame.put(self.carried_prefix(slot) + payload)
        position = self.frame.add(
            Type.CARRIED | columns.priority[slot] << 16 | columns.queue[slot] << 32,
            columns.sequence[slot],
            self.last_time_ms,
            columns.until[slot],
            columns.epoch[slot] | columns.count[slot] << 32,
            columns.last[slot],
            w6,
            slot | columns.expires[slot] << 32,
        )
        self._on_carried(slot, position, skip(w6, CARRIED_PREFIX.size))

    def write_base(self, first_frame: int, now: int, frame_bytes_max: int = BASE_BYTES_MAX) -> int:
        """Write everything that must survive when frames below `first_frame` are dropped, and a message count to
        check it.

        A Base that is too long for one frame is written in parts, in consecutive frames; see `sections.pack_in_parts`.
        Returns the number of bytes.
        """
        self.last_time_ms = max(now, self.last_time_ms)
        facts = self._facts()
        facts["messages"] = sum(queue.messages for queue in self.queues.values())
        tables = {
            **pieces.prefixed("dedup", self.dedup.save()),
            **pieces.prefixed("requests", self.requests.save()),
            **pieces.prefixed("producers", self.producers.save()),
        }
        parts = [pieces.pack({"facts": _encode(facts), **tables})]
        if len(parts[0]) > frame_bytes_max // 2:
            queues = [_encode(queue) for queue in facts.pop("queues")]
            parts = pieces.pack_in_parts(queues, pieces.pack({"facts": _encode(facts), **tables}), frame_bytes_max // 2)
        for number, part in enumerate(parts):
            if self.frame.size + len(part) > frame_bytes_max - FRAME_OVERHEAD_BYTES:
                self.frame.roll()
            more = BaseFlag.MORE << 8 if number + 1 < len(parts) else 0
            w6 = self.frame.put(part)
            self.frame.add(Type.BASE | more, self.next_sequence, self.last_time_ms, first_frame, number, 0, w6, 0)
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
        live = self.live_slots()
        if len(live) != facts["messages"]:
            raise LogCorrupt(
                f"after the dropped front there are {len(live)} messages, the Base says {facts['messages']}"
            )
        groups = self.loose_groups
        self.queues = {}
        self._load_facts(facts)
        for name in ("dedup", "requests", "producers"):
            getattr(self, name).load(pieces.with_prefix(name, sections))
        self.before_base = 0
        self.loose_groups = groups
        self._rebuild(live)

    def _rebuild(self, live: list[int]) -> None:
        """Rebuild the arrival order, the ready lines and the timers from the columns."""
        columns = self.columns
        self.lines.clear()
        for wheel in (self.leases, self.delays, self.expiries):
            wheel.clear()
        columns.timer[:] = array("Q", [NO_TIMER]) * columns.capacity
        columns.expiry_timer[:] = array("I", [NO_EXPIRY_TIMER]) * columns.capacity
        columns.line[:] = array("I", [NIL]) * columns.capacity
        columns.rebuild_free()
        for slot in sorted(live, key=columns.sequence.__getitem__):
            queue = self.queues[columns.queue[slot]]
            self._append_to_queue(queue, slot)
            was_dead = columns.state[slot] == State.OWED and columns.doomed[slot] == State.DEAD
            if queue.fifo and columns.state[slot] != State.DEAD and not was_dead:
                line = self.lines.find_or_open(queue.number, self.loose_groups.pop(slot, 0), 0)
                self.lines.append(line, slot)
        for slot in sorted(live, key=lambda slot: (columns.until[slot], columns.sequence[slot])):
            queue = self.queues[columns.queue[slot]]
            state, until = columns.state[slot], columns.until[slot]
            self._enter(queue, slot, state, until)
            if state == State.IN_FLIGHT:
                queue.ready.lease_began(self.loose_groups.get(slot, 0))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

"""A shard's state as bytes: the canonical dump that tests compare, and snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from batonq.core import sections as pieces
from batonq.core.commands import Failure
from batonq.core.policy import QueuePolicy
from batonq.core.records import RETAINING_VERSION, TOPICS_VERSION
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.dedup_table import DedupTable
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.producers import Producers
from batonq.core.shard.state.queue_state import GAUGES, MOVES, TOTALS, QueueState
from batonq.core.shard.state.readers import Reader
from batonq.core.shard.state.retained import Retained
from batonq.core.shard.state.schedule_book import ScheduleBook


class Persistence:
    def __init__(
        self,
        messages: Messages,
        arrivals: Arrivals,
        transfers: Transfers,
        jobs: JobBook,
        numbered: NumberedSends,
        requests: RememberedRequests,
        schedules: ScheduleBook,
    ) -> None:
        self.journal = messages.journal
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.timers = messages.timers
        self.attempts = messages.attempts
        self.dedup = messages.dedup
        self.arrivals = arrivals
        self.transfers = transfers
        self.jobs = jobs
        self.numbered = numbered
        self.requests = requests
        self.schedules = schedules
        self._notes: dict[str, dict[int, Any]] = {
            "holders": messages.holders,
            "maxima": messages.maxima,
            "kept_maxima": messages.kept_maxima,
            "origins": messages.origins,
            "refusals": transfers.refusals,
            "passed": transfers.passed,
            "redriven": messages.redriven,
            "edited": messages.edited,
            "uncharged": messages.uncharged,
        }
        self._remembered: dict[str, DedupTable | Producers] = {
            "dedup": self.dedup.table,
            "requests": requests.table,
            "producers": numbered.producers,
        }

    # --- shared by all forms: everything but the messages' columns -------------------------------------

    def facts(self) -> dict[str, Any]:
        """Everything that is not a column, as JSON values. Dictionaries by slot become pairs in order of slot."""
        incoming = sorted(self.arrivals.incoming.items())
        schedules = self.schedules.facts()
        return {
            **({"schedules": schedules} if schedules else {}),
            "epoch": self.journal.epoch,
            "next_sequence": self.journal.next_sequence,
            "last_time_ms": self.journal.last_time_ms,
            "queues": [self._queue_facts(self.queues[number]) for number in sorted(self.queues)],
            "notes": {name: sorted(notes.items()) for name, notes in self._notes.items()},
            "overlays": sorted(self.messages.overlays.items()),
            "failures": sorted(self.messages.failures.items()),
            "living_keys": sorted(self.dedup.living.items()),
            "owed_to": sorted(self.transfers.owed_to.items()),
            "attempts": self.attempts.facts(),
            "channels": [
                [shard, way.last, way.settled, list(way.unsettled.items())]
                for shard, way in sorted(self.transfers.channels.items())
            ],
            "cursors": [[source, end.cursor] for source, end in incoming],
            "refused_numbers": [[source, *refusal] for source, end in incoming for refusal in end.refusals()],
            "verdicts_from": [[source, end.first] for source, end in incoming],
            "jobs": [job.values() for job in self.jobs.values()],
            **self.messages.stored.facts(),
            **({"fanned": sorted(self.messages.fanned.items())} if self.messages.fanned else {}),
        }

    def _queue_facts(self, queue: QueueState) -> dict[str, Any]:
        topic = self.messages.topics.states.get(queue.number)
        facts = {
            **({"topic": topic.facts()} if topic is not None else {}),
            "policy": queue.policy.values(),
            "closed": queue.closed,
            "purge_generation": queue.purge_generation,
            "forgotten_below": queue.forgotten_below,
            "dedup_generation": queue.dedup_generation,
            "totals": [getattr(queue, name) for name in TOTALS],
        }
        if queue.moved:
            facts["moves"] = [getattr(queue, name) for name in MOVES]
        if queue.retained is not None:
            facts["retained_from"] = queue.retained.first
        if queue.readers:
            facts["readers"] = [reader.values() for _, reader in sorted(queue.readers.items())]
        return facts

    def load_facts(self, facts: dict[str, Any], collected: Mapping[int, Retained] = MappingProxyType({})) -> None:
        """`collected` are the messages that entered each queue, as far as recovery has read the log."""
        self.journal.epoch = facts["epoch"]
        self.journal.next_sequence = max(self.journal.next_sequence, facts["next_sequence"])
        self.journal.last_time_ms = max(self.journal.last_time_ms, facts["last_time_ms"])
        self.messages.topics.states.clear()
        for fact in facts["queues"]:
            policy = QueuePolicy.decode(json.dumps(fact["policy"]).encode())
            self.journal.note_policy(policy)
            queue = QueueState(policy, self.lines)
            queue.closed, queue.purge_generation = fact["closed"], fact["purge_generation"]
            queue.forgotten_below = fact.get("forgotten_below", 0)
            queue.dedup_generation = fact.get("dedup_generation", queue.purge_generation)
            for name, value in zip(TOTALS, fact["totals"], strict=True):
                setattr(queue, name, value)
            for name, value in zip(MOVES, fact.get("moves", ()), strict=False):
                setattr(queue, name, value)
            self.queues[policy.queue] = queue
            if "retained_from" in fact:
                queue.retained = collected.get(queue.number) or Retained(0)
                queue.retained.drop_below(fact["retained_from"])
                self.messages.retain(queue, 0)
            if "readers" in fact:
                queue.readers = {values["group"]: Reader.from_values(values) for values in fact["readers"]}
                self.journal.use_format(RETAINING_VERSION)
            if policy.topic:
                self.journal.use_format(TOPICS_VERSION)
                self.messages.topics.on_policy(policy)
                self.messages.topics.states[policy.queue].load(fact["topic"])
        for name, notes in self._notes.items():
            refill(notes, facts["notes"].get(name, ()))
        refill(self.messages.fanned, ((slot, (*fanned,)) for slot, fanned in facts.get("fanned", ())))
        refill(self.messages.overlays, ((slot, tuple(positions)) for slot, positions in facts["overlays"]))
        refill(self.messages.failures, ((slot, Failure(*failure)) for slot, failure in facts["failures"]))
        refill(self.dedup.living, ((slot, (key, end)) for slot, (key, end) in facts["living_keys"]))
        self.attempts.load(facts["attempts"])
        self.arrivals.load(facts)
        self.transfers.load(facts)
        self.jobs.load(facts["jobs"])
        self.messages.stored.load(facts)
        self.schedules.load(facts.get("schedules", ()))

    def infer_missing(self, facts: dict[str, Any]) -> None:
        """Infer the totals that an earlier release did not store, once the messages of each queue are counted."""
        for fact in facts["queues"]:
            if "moves" not in fact:
                self.queues[fact["policy"]["queue"]].infer_moves()

    def remembered(self) -> dict[str, bytes]:
        """The sections of what is remembered: deduplication ids, requests, producers."""
        return {
            key: data
            for name, table in self._remembered.items()
            for key, data in pieces.prefixed(name, table.save()).items()
        }

    def load_remembered(self, sections: dict[str, bytes]) -> None:
        for name, table in self._remembered.items():
            table.load(pieces.with_prefix(name, sections))

    # --- the canonical dump ----------------------------------------------------------------------------

    def dump(self, now: int) -> bytes:
        """Bytes that are equal for equal states, however each was reached: no slots, no lines, messages in order."""
        return repr(self.picture(now)).encode()

    def picture(self, now: int) -> tuple[Any, ...]:
        """The contents of a dump as values, which compare faster than bytes."""
        self.messages.end_delays(now)
        columns = self.columns
        messages = []
        sequence_of = {}
        for slot in self.messages.live_slots():
            sequence_of[slot] = columns.sequence[slot]
            group = self.messages.group_of(slot)
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
        facts = self.facts()
        del facts["last_time_ms"]
        for fact in facts["queues"]:
            if fact.pop("retained_from", None) is not None:
                retained = self.messages.retaining[fact["policy"]["queue"]]
                retained.end_old(now)
                fact["retained"] = retained.entries()
        for name in ("overlays", "failures", "living_keys", "owed_to", "stored", "fanned"):
            if name in facts:
                facts[name] = sorted((sequence_of[slot], value) for slot, value in facts[name])
        for name in self._notes:
            facts["notes"][name] = sorted((sequence_of[slot], value) for slot, value in facts["notes"][name])
        facts["attempts"] = sorted(
            [queue, text, expires, [lease[1:] for lease in leases]]
            for queue, text, expires, leases in facts["attempts"]
        )
        for channel in facts["channels"]:
            channel[3] = [(number, sequence_of[slot]) for number, slot in channel[3]]
        gauges = [(number, *(getattr(queue, name) for name in GAUGES)) for number, queue in sorted(self.queues.items())]
        tables = (self.dedup.table.entries(), self.requests.table.entries(), self.numbered.producers.entries())
        return (facts, gauges, messages, *tables)

    # --- snapshots -------------------------------------------------------------------------------------

    def save(self) -> dict[str, bytes]:
        """The state as sections of a snapshot. Ready lines and timers are saved as they are, so loading only copies."""
        facts = self.facts()
        facts["tenants"] = sorted(self.messages.loose_groups.items())
        facts["doomed_due"] = list(self.timers.doomed_due)
        facts["gauges"] = [
            [number, *(getattr(queue, name) for name in GAUGES)] for number, queue in sorted(self.queues.items())
        ]
        retaining = sorted(self.messages.retaining.items())
        if retaining:
            facts["retained"] = [[number, *retained.facts()] for number, retained in retaining]
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
            "facts": encode(facts),
            **pieces.prefixed("columns", self.columns.save()),
            **pieces.prefixed("lines", self.lines.save()),
            **self.remembered(),
            **{
                key: data
                for number, retained in retaining
                for key, data in pieces.prefixed(f"retained.{number}", retained.save()).items()
            },
            **pieces.prefixed("leases", self.timers.leases.save()),
            **pieces.prefixed("delays", self.timers.delays.save()),
            **pieces.prefixed("expiries", self.timers.expiries.save()),
        }

    def load(self, sections: dict[str, bytes]) -> None:
        facts = json.loads(sections["facts"])
        self.columns.load(pieces.with_prefix("columns", sections))
        self.lines.load(pieces.with_prefix("lines", sections))
        self.load_facts(facts)
        for number, *retained in facts.get("retained", ()):
            self.messages.retaining[number].load(retained, pieces.with_prefix(f"retained.{number}", sections))
        refill(self.messages.loose_groups, facts["tenants"])
        refill(self.timers.doomed_due, ((slot, None) for slot in facts["doomed_due"]))
        for number, *gauges in facts["gauges"]:
            queue = self.queues[number]
            for name, value in zip(GAUGES, gauges, strict=True):
                setattr(queue, name, value)
        self.infer_missing(facts)
        self.messages.filled.update(number for number, queue in self.queues.items() if queue.visible)
        for number, head, tail, lanes, in_flight in facts["order"]:
            queue = self.queues[number]
            queue.head, queue.tail = head, tail
            for priority, fresh, returned, quiet, noisy in lanes:
                lane = queue.ready.lane(priority)
                lane.fresh, lane.returned, lane.quiet, lane.noisy = fresh, returned, quiet, noisy
            queue.ready.in_flight = dict(in_flight)
            queue.ready.in_flight_total = queue.in_flight
        self.load_remembered(sections)
        self.timers.leases.load(pieces.with_prefix("leases", sections))
        self.timers.delays.load(pieces.with_prefix("delays", sections))
        self.timers.expiries.load(pieces.with_prefix("expiries", sections))


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def refill(table: dict[int, Any], pairs: Iterable[tuple[int, Any]]) -> None:
    """Replace the contents of a table that other parts hold as well."""
    table.clear()
    table.update(pairs)

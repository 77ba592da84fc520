"""The tables by plain Python, one event after the other: what the Spark jobs must equal, row for row.

Written from the meaning of the records alone. Times are microseconds, as the plain decoder gives them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from batonq.core.ids import message_id
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.reading.history import open_history

Event = dict[str, Any]
Key = tuple[int, int]
MINUTE = 60_000_000
DAY = 86_400_000_000
OVERLAY, UNCHARGED = 64, 16


def events_of(directory: str) -> list[Event]:
    """All events of a data directory, shard after shard, each in its order."""
    history = open_history(directory)
    return [
        event
        for shard in history.shards()
        for event in plain_events(history.frames(shard.shard, shard.first, shard.next))
    ]


@dataclass
class Message:
    shard: int
    sequence: int
    state: str = "unknown"  # there, in_flight, owed, dead, or an outcome once it has ended
    until: int | None = None
    row: dict[str, Any] = field(default_factory=dict)
    known: bool = False  # its beginning is in history
    owed_for: str | None = None
    owed_as: tuple[int, int, int] | None = None  # from shard, to shard, entry
    came_as: tuple[int, int, int] | None = None
    came_for: str | None = None
    told_first: str | None = None
    ended: bool = False
    leases: list[list[int | None]] = field(default_factory=list)  # began, ended

    @property
    def key(self) -> Key:
        return self.shard, self.sequence


COUNTS = ("nacks", "expiries", "extensions", "releases", "untried")
ENDS = {
    "ack": "acked",
    "late_ack": "late_acked",
    "retention": "expired",
    "purged": "purged",
    "operator": "deleted",
}
TEXTS = ("group", "last_error_class", "last_error_text", "previous_id", "next_id")
TIMES = (
    "sent_at",
    "visible_at",
    "arrived_at",
    "first_receive_at",
    "last_receive_at",
    "ended_at",
    "expires_at",
    "deadline",
)
NEW = dict.fromkeys((*TEXTS, *TIMES, "body_bytes", "attributes_bytes"))


class Fold:
    """Everything that the tables say, folded from events in the order of each shard."""

    def __init__(self, events: Iterable[Event], source: str = "") -> None:
        self.source = source
        self.messages: dict[Key, Message] = {}
        self.names: dict[int, tuple[str, str]] = {}
        self.clock: dict[int, int] = {}
        self.closed: set[tuple[int, int]] = set()
        self.events = list(events)
        self.first_seen: dict[Key, int] = {}
        for event in self.events:
            self._take(event)
        self._tie()

    def _take(self, event: Event) -> None:
        shard, kind = event["shard"], event["event"]
        self.clock[shard] = max(self.clock.get(shard, 0), event["time"])
        if kind in ("policy_set", "base"):
            said = json.loads(event["detail"] or "[]")
            for policy in said if kind == "base" else [said]:
                self.names[policy["queue"]] = (policy["tenant"], policy["name"])
        if kind == "epoch":
            for message in self._of(shard):
                if message.state == "in_flight" and message.until is not None:
                    message.until += event["grace_ms"] * 1000
        elif kind == "queue_closed":
            self.closed.add((shard, event["queue"]))
        elif kind == "queue_purged":
            self._purge(event)
        elif event["sequence"] is not None:
            self._take_message(event)

    def _of(self, shard: int) -> list[Message]:
        return [message for message in self.messages.values() if message.shard == shard and not message.ended]

    def _purge(self, event: Event) -> None:
        shard, queue = event["shard"], event["queue"]
        for message in self._of(shard):
            mine = message.row["queue"] == queue and message.sequence < event["number"]
            if mine and message.state in ("there", "in_flight", "dead"):
                self._end_lease(message, event["time"])
                message.row["deadline"] = message.until if message.state == "in_flight" else None
                message.state = "queue_deleted" if (shard, queue) in self.closed else "purged"
                message.ended = True
                message.row["ended_at"] = event["time"]

    def _take_message(self, event: Event) -> None:
        key = event["shard"], event["sequence"]
        message = self.messages.get(key)
        if message is None:
            message = self.messages[key] = Message(*key)
            message.row = {**NEW, **dict.fromkeys(COUNTS, 0), "receives": 0, "leases": 0}
            message.row |= {"queue": event["queue"], "priority": event["priority"]}
            self.first_seen[key] = event["time"]
            message.known = event["event"] in ("sent", "arrived")
            # What was held before history began: the lease has no beginning that we know.
            if not message.known and event["event"] in ("extended", "returned", "deleted", "owed", "edited", "carried"):
                held = event["event"] == "extended" or (
                    event["event"] == "returned" and event["reason"] != "undeliverable"
                )
                held = held or (event["event"] == "deleted" and event["reason"] == "ack")
                held = held or event["state"] == "in_flight"
                if held:
                    message.leases.append([None, None])
                    message.state = "in_flight"
        row = message.row
        if event["receive_count"] is not None:
            row["receives"] = event["receive_count"]
        if event["lease_epoch"]:
            row["leases"] = event["lease_epoch"]
        for name in ("sent_at", "expires_at"):
            if event[name] is not None:
                row[name] = event[name]
        if event["body_bytes"] is not None:
            row |= {name: event[name] for name in ("body_bytes", "attributes_bytes", "group")}
            message.told_first = json.loads(event["lineage"]).get("first_id") if event["lineage"] else None
        getattr(self, "_" + event["event"])(message, event)

    # --- one method a kind of event ---

    def _sent(self, message: Message, event: Event) -> None:
        message.row["visible_at"] = event["visible_at"]
        self._put(message, event["visible_at"])

    def _arrived(self, message: Message, event: Event) -> None:
        shard, time = event["shard"], event["time"]
        visible_at = time if event["visible_at"] is None else event["visible_at"]
        message.row |= {"visible_at": visible_at, "arrived_at": time}
        entry = event["logical_time"] if event["flags"] & OVERLAY else event["channel_number"]
        message.came_as, message.came_for = (event["other_shard"], shard, entry), event["reason"]
        self._put(message, visible_at)

    def _leased(self, message: Message, event: Event) -> None:
        row = message.row
        if event["lease_epoch"] == 1:
            row["first_receive_at"] = event["time"]
        row["last_receive_at"] = event["time"]
        message.state, message.until = "in_flight", event["deadline"]
        message.leases.append([event["time"], None])

    def _extended(self, message: Message, event: Event) -> None:
        message.state, message.until = "in_flight", event["deadline"]
        message.row["extensions"] += 1

    def _returned(self, message: Message, event: Event) -> None:
        row, reason = message.row, event["reason"]
        self._end_lease(message, event["time"])
        names = {"nack": "nacks", "expired": "expiries", "released": "releases"}
        if reason in names:
            row[names[reason]] += 1
        if event["flags"] & UNCHARGED:
            row["untried"] += 1
            row["receives"] = max(0, row["receives"] - 1)
        if reason in ("nack", "expired") and (event["error_class"] or event["error_text"]):
            row["last_error_class"], row["last_error_text"] = event["error_class"], event["error_text"]
        self._put(message, event["visible_at"])

    def _deleted(self, message: Message, event: Event) -> None:
        self._end_lease(message, event["time"])
        message.state, message.ended = ENDS[event["reason"]], True
        message.row["ended_at"] = event["time"]

    def _owed(self, message: Message, event: Event) -> None:
        self._end_lease(message, event["time"])
        within = event["shard"] == event["other_shard"]
        entry = event["logical_time"] + 1 if within else event["channel_number"]
        message.owed_as, message.owed_for = (event["shard"], event["other_shard"], entry), event["reason"]
        message.state = "owed"

    def _settled(self, message: Message, event: Event) -> None:
        if event["reason"] != "accepted":
            message.owed_as = None
            self._put(message, event["visible_at"])
            return
        outcomes: dict[str | None, str] = {
            "dead_letter": "dead_lettered",
            "expiry_dead_letter": "dead_lettered",
            "redrive": "redriven",
        }
        message.state, message.ended = outcomes.get(message.owed_for, "moved"), True
        message.row["ended_at"] = event["time"]

    def _carried(self, message: Message, event: Event) -> None:
        state: str = event["state"]
        if not message.known and message.row["visible_at"] is None and message.row.get("told") is None:
            message.row["visible_at"] = event["visible_at"]
        message.row["told"] = True
        message.until = event["deadline"] if state == "in_flight" else event["visible_at"]
        message.state = {"visible": "there", "delayed": "there"}.get(state, state)

    _edited = _carried

    @staticmethod
    def _put(message: Message, visible_at: int | None) -> None:
        message.state, message.until = ("there", visible_at) if visible_at is not None else ("dead", None)

    @staticmethod
    def _end_lease(message: Message, time: int) -> None:
        if message.state == "in_flight" and message.leases:
            message.leases[-1][1] = time

    # --- lines ---

    def _tie(self) -> None:
        came = {message.came_as: message for message in self.messages.values() if message.came_as}
        self.previous: dict[Key, Message] = {}
        self.next: dict[Key, Message] = {}
        for message in self.messages.values():
            after = came.get(message.owed_as) if message.owed_as else None
            if after is not None:
                self.next[message.key] = after
                self.previous[after.key] = message

    def _line(self, message: Message) -> list[Message]:
        while message.key in self.previous:
            message = self.previous[message.key]
        line = [message]
        while line[-1].key in self.next:
            line.append(self.next[line[-1].key])
        return line

    def lifecycle(self) -> Iterator[dict[str, Any]]:
        for message in self.messages.values():
            yield self._row(message)

    def _row(self, message: Message) -> dict[str, Any]:
        row = {**message.row}
        row.pop("told", None)
        line = self._line(message)
        before = line[: line.index(message)]
        for name in ("body_bytes", "attributes_bytes", "group"):
            for older in reversed(before):
                row[name] = older.row[name] if row[name] is None else row[name]
        reasons = Counter(each.came_for for each in line[1:])
        as_of = self.clock[message.shard]
        there = message.state == "there"
        outcome = ("delayed" if (message.until or 0) > as_of else "waiting") if there else message.state
        acked = outcome in ("acked", "late_acked")
        own = message_id(*message.key)
        links = self.previous.get(message.key), self.next.get(message.key)
        return row | {
            "source": self.source,
            "shard": message.shard,
            "sequence": message.sequence,
            "message_id": own,
            "first_id": line[0].told_first or message_id(*line[0].key),
            "previous_id": message_id(*links[0].key) if links[0] else None,
            "next_id": message_id(*links[1].key) if links[1] else None,
            **self._names(row["queue"]),
            "dwell_ms": _ms(row["visible_at"], row["first_receive_at"]),
            "handling_ms": _ms(row["last_receive_at"], row["ended_at"]) if acked else None,
            "end_to_end_ms": _ms(row["sent_at"], row["ended_at"]) if acked else None,
            "outcome": outcome,
            "line_deaths": reasons["dead_letter"] + reasons["expiry_dead_letter"],
            "line_redrives": reasons["redrive"],
            "opened": not message.known,
            "deadline": message.until if outcome == "in_flight" else row["deadline"],
            "as_of": as_of,
            "date": day_of(row["sent_at"] or self.first_seen[message.key]),
        }

    def _names(self, queue: int) -> dict[str, str | None]:
        tenant, name = self.names.get(queue, (None, None))
        return {"queue_name": name, "tenant": tenant}

    # --- minutes ---

    def minutes(self) -> Iterator[dict[str, Any]]:
        rows = list(self.lifecycle())
        happened: dict[tuple[int, int | None], dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in self.events:
            if event["queue"] is not None:
                for shard in (event["shard"], None):
                    happened[event["queue"], shard][event["time"] // MINUTE * MINUTE].append(event)
        for (queue, shard), by_minute in happened.items():
            mine = [row for row in rows if row["queue"] == queue and shard in (None, row["shard"])]
            for minute, events in by_minute.items():
                yield self._minute(queue, shard, minute, events, mine)

    def _minute(
        self, queue: int, shard: int | None, minute: int, events: list[Event], rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        end = minute + MINUTE
        kinds = Counter((event["event"], event["reason"]) for event in events if event["event"] != "arrived")
        arrived = sum(event["event"] == "arrived" and event["sequence"] is not None for event in events)
        ended = [row for row in rows if row["ended_at"] is not None and minute <= row["ended_at"] < end]
        outcomes = Counter(row["outcome"] for row in ended)
        there = [
            row
            for row in rows
            if (row["opened"] or came(row) < end) and (row["ended_at"] is None or row["ended_at"] >= end)
        ]
        held = [
            lease
            for row in rows
            for lease in self.messages[row["shard"], row["sequence"]].leases
            if (lease[0] is None or lease[0] < end) and (lease[1] is None or lease[1] >= end)
        ]
        since = [at for row in there if (at := came(row)) is not None]
        acked = [row for row in ended if row["outcome"] in ("acked", "late_acked")]
        first = [row for row in rows if row["first_receive_at"] and minute <= row["first_receive_at"] < end]
        return {
            "source": self.source,
            "queue": queue,
            **self._names(queue),
            "shard": shard,
            "minute": minute,
            "sends": kinds["sent", None],
            "arrivals": arrived,
            "receives": kinds["leased", None],
            "acks": len(acked),
            "late_acks": outcomes["late_acked"],
            "nacks": kinds["returned", "nack"],
            "releases": kinds["returned", "released"],
            "extensions": kinds["extended", None],
            "lease_expiries": kinds["returned", "expired"],
            "expired": outcomes["expired"],
            "dead_letters": outcomes["dead_lettered"],
            "redrives": outcomes["redriven"],
            "removed": outcomes["purged"] + outcomes["queue_deleted"] + outcomes["deleted"],
            "sent_bytes": sum(event["body_bytes"] for event in events if event["event"] == "sent"),
            "depth": len(there),
            "in_flight": len(held),
            "oldest_age_ms": (end - min(since)) // 1000 if since else None,
            **percentiles("wait", [_ms(came(row), row["first_receive_at"]) for row in first]),
            **percentiles("handling", [row["handling_ms"] for row in acked]),
            **percentiles("end_to_end", [row["end_to_end_ms"] for row in acked]),
            "date": day_of(minute),
        }

    # --- usage ---

    def usage(self) -> Iterator[dict[str, Any]]:
        rows = {(row["shard"], row["sequence"]): row for row in self.lifecycle()}
        sizes = {key: (row["body_bytes"] or 0) + (row["attributes_bytes"] or 0) for key, row in rows.items()}
        found: dict[tuple[int, date], Counter[str]] = defaultdict(Counter)
        for event in self.events:
            kind, reason = event["event"], event["reason"]
            asked = kind in ("sent", "leased", "extended") or (kind, reason) in (
                ("returned", "nack"),
                ("returned", "released"),
                ("deleted", "ack"),
                ("deleted", "late_ack"),
            )
            if asked:
                used = found[event["queue"], day_of(event["time"])]
                used["operations"] += 1
                used["sends"] += kind == "sent"
                used["receives"] += kind == "leased"
                used["acks"] += reason in ("ack", "late_ack")
                if kind == "sent":
                    used["sent_bytes"] += event["body_bytes"] + event["attributes_bytes"]
                if kind == "leased":
                    used["received_bytes"] += sizes[event["shard"], event["sequence"]]
        for key, row in rows.items():
            start, stop = came(row), row["ended_at"] or row["as_of"]
            while start is not None and start < stop:
                midnight = (start // DAY + 1) * DAY
                kept = (min(midnight, stop) - start) // 1000 * sizes[key]
                if kept:
                    found[row["queue"], day_of(start)]["stored"] += kept
                start = midnight
        names = ("operations", "sends", "receives", "acks", "sent_bytes", "received_bytes")
        for (queue, day), used in found.items():
            yield {
                "source": self.source,
                "queue": queue,
                **self._names(queue),
                "date": day,
                **{name: used[name] for name in names},
                "stored_byte_hours": used["stored"] / 3_600_000,
            }


def came(row: dict[str, Any]) -> Any:
    """When a message came into its queue; None: not known."""
    return row["sent_at"] if row["arrived_at"] is None else row["arrived_at"]


def percentiles(name: str, values: list[int | None]) -> dict[str, float | None]:
    known = sorted(value for value in values if value is not None)
    result: dict[str, float | None] = {}
    for share, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        result[f"{name}_{share}_ms"] = None
        if known:
            place = (len(known) - 1) * part
            low = int(place)
            high = min(low + 1, len(known) - 1)
            result[f"{name}_{share}_ms"] = known[low] + (known[high] - known[low]) * (place - low)
    return result


def _ms(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else (stop - start) // 1000


def day_of(time: int) -> date:
    return datetime.fromtimestamp(time / 1_000_000, UTC).date()

"""One event changed, for each kind of violation: which, and how. The rest of the history stays as it was."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

from batonq.core.records import DeletedFlag, SentFlag
from tests.pipeline.judge import PAYLOADS, Event, counts_as, judge

Plant = Callable[[list[Event]], list[Event]]
SECOND = 1_000_000
UNUSED = 1 << 40
TRIES_MAX = 20
TRUNCATED = {"carried", "lost"}
FANNED = {"copies", "firing", "due_time"}
# What else the same change breaks.
ALSO = {
    "sent_twice": {"sequence_gap"},
    "channel_gap": {"never_owed", "never_arrived"},
    "never_arrived": {"channel_gap", "sequence_gap"},
}


class Day:
    """A history, with the events of each message at hand."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.lives: dict[tuple[int, int], list[int]] = defaultdict(list)
        for at, event in enumerate(events):
            if event["sequence"] is not None:
                self.lives[event["shard"], event["sequence"]].append(at)

    def life(self, *kinds: str, whole: bool = False) -> Iterator[list[int]]:
        """Where the last events of messages are that end so; `whole`: that is all that happened to them."""
        for places in self.lives.values():
            told = [self._kind(at) for at in places]
            if told[-len(kinds) :] == list(kinds) and (not whole or len(told) == len(kinds)):
                yield places[-len(kinds) :]

    def part(self, *kinds: str) -> Iterator[list[int]]:
        """The same, anywhere in their lives."""
        for places in self.lives.values():
            told = [self._kind(at) for at in places]
            for start in range(len(told) - len(kinds) + 1):
                if told[start : start + len(kinds)] == list(kinds):
                    yield places[start : start + len(kinds)]

    def _kind(self, at: int) -> str:
        event = self.events[at]
        return (
            f"{event['event']}/{event['reason']}" if event["event"] in ("returned", "deleted") else str(event["event"])
        )

    def changed(self, at: int, **values: Any) -> list[Event]:
        return [*self.events[:at], {**self.events[at], **values}, *self.events[at + 1 :]]

    def fifo(self, at: int) -> bool:
        return str(self.events[at]["queue_name"]).startswith(("ledger", "tickets"))


def plants() -> dict[str, Plant]:
    """For each kind, what makes of a sound history one that has it."""
    return {name.removeprefix("_plant_"): plant for name, plant in globals().items() if name.startswith("_plant_")}


def _first(found: Iterator[Any], what: str) -> Any:
    one = next(found, None)
    assert one is not None, f"the day has no {what}"
    return one


def _leased(day: Day) -> int:
    """A lease that is the last that happened to its message, in a queue without groups."""
    return int(_first((at for (at,) in day.life("leased") if not day.fifo(at)), "message in flight"))


def _plant_never_sent(events: list[Event]) -> list[Event]:
    day = Day(events)
    return day.changed(_leased(day), sequence=UNUSED)


def _plant_sent_twice(events: list[Event]) -> list[Event]:
    day = Day(events)
    alone = [at for (at,) in day.life("sent", whole=True) if not day.fifo(at) and not events[at]["dedup_key"]]
    one, other = next((a, b) for a, b in pairwise(alone) if events[a]["queue"] == events[b]["queue"])
    return day.changed(other, sequence=events[one]["sequence"])


def _plant_after_end(events: list[Event]) -> list[Event]:
    day = Day(events)
    at = _leased(day)
    ended = _first(
        (
            end
            for (end,) in day.life("deleted/ack")
            if (events[end]["shard"], events[end]["queue"]) == (events[at]["shard"], events[at]["queue"])
            and events[end]["logical_time"] < events[at]["logical_time"]
        ),
        "acknowledged message",
    )
    return day.changed(at, sequence=events[ended]["sequence"])


def _plant_two_holders(events: list[Event]) -> list[Event]:
    day = Day(events)
    back, _ = _first((two for two in day.part("returned/nack", "leased") if not day.fifo(two[0])), "nack")
    until = events[back]["time"] + 90 * SECOND
    return day.changed(back, event="extended", reason=None, visible_at=None, deadline=until, flags=0)


def _plant_early(events: list[Event]) -> list[Event]:
    day = Day(events)
    sent, leased = _first((two for two in day.part("sent", "leased") if not day.fifo(two[0])), "receive")
    return day.changed(sent, visible_at=events[leased]["time"] + 1000)


def _plant_lease_after_expiry(events: list[Event]) -> list[Event]:
    day = Day(events)
    sent, leased, _ = _first(day.life("sent", "leased", "deleted/ack", whole=True), "message that was done at once")
    return day.changed(sent, expires_at=events[leased]["time"] // SECOND * SECOND)


def _plant_not_ready(events: list[Event]) -> list[Event]:
    day = Day(events)
    back, _ = _first((two for two in day.part("returned/nack", "leased") if not day.fifo(two[0])), "nack")
    return day.changed(back, visible_at=None)


def _plant_lease_epoch(events: list[Event]) -> list[Event]:
    day = Day(events)
    at = _leased(day)
    return day.changed(at, lease_epoch=events[at]["lease_epoch"] + 1)


def _plant_receive_count(events: list[Event]) -> list[Event]:
    day = Day(events)
    at = _leased(day)
    return day.changed(at, receive_count=events[at]["receive_count"] + 1)


def _plant_stale_epoch(events: list[Event]) -> list[Event]:
    day = Day(events)
    end = _first((end for (end,) in day.life("deleted/ack") if events[end]["lease_epoch"] > 1), "second try")
    return day.changed(end, lease_epoch=events[end]["lease_epoch"] - 1)


def _plant_not_held(events: list[Event]) -> list[Event]:
    day = Day(events)
    leased, end = _first((two for two in day.life("leased", "deleted/ack") if not day.fifo(two[0])), "receive")
    return day.changed(leased, deadline=events[end]["time"])


def acked_while_it_waits(events: list[Event]) -> list[Event]:
    """An acknowledgement of what was given back and may not be leased yet."""
    day = Day(events)
    leased, end = _first((two for two in day.life("leased", "deleted/ack") if not day.fifo(two[0])), "receive")
    until = events[end]["time"] + SECOND
    return day.changed(leased, event="returned", reason="nack", deadline=None, visible_at=until)


def _plant_late_delete(events: list[Event]) -> list[Event]:
    day = Day(events)
    (end,) = _first(day.life("deleted/ack"), "delete")
    return day.changed(end, reason="late_ack", flags=int(DeletedFlag.LATE))


def _plant_lease_cut_short(events: list[Event]) -> list[Event]:
    day = Day(events)
    leased, back = _first((two for two in day.part("leased", "returned/expired") if not day.fifo(two[0])), "lost lease")
    return day.changed(leased, deadline=events[back]["time"] + 1000)


def _plant_taken_from_holder(events: list[Event]) -> list[Event]:
    day = Day(events)
    _, end = _first((two for two in day.life("leased", "deleted/ack") if not day.fifo(two[0])), "delete")
    return day.changed(end, reason="operator")


def _plant_expired_early(events: list[Event]) -> list[Event]:
    day = Day(events)
    sent, end = _first(day.life("sent", "deleted/retention", whole=True), "message that ran out")
    return day.changed(sent, expires_at=events[end]["time"] + SECOND)


def _plant_transition(events: list[Event]) -> list[Event]:
    day = Day(events)
    edited, _ = _first(day.part("edited", "owed"), "message that was changed")
    return day.changed(edited, state="in_flight")


def _plant_wrong_queue(events: list[Event]) -> list[Event]:
    day = Day(events)
    at = _leased(day)
    others = {event["queue"] for event in events if event["event"] == "sent" and event["shard"] == events[at]["shard"]}
    return day.changed(at, queue=min(others - {events[at]["queue"]}))


def _plant_carried(events: list[Event]) -> list[Event]:
    """The last thing that happens to it, or its next lease would not follow either."""
    day = Day(events)
    ends = (life[-1] for life in day.lives.values() if len(life) > 1 and events[life[-1]]["event"] == "carried")
    at = _first(ends, "message that was carried in the end")
    return day.changed(at, lease_epoch=events[at]["lease_epoch"] + 1)


def _plant_lost(events: list[Event]) -> list[Event]:
    """A base that keeps a little less than it did: what lives in the first frame that it drops was not carried."""
    day = Day(events)
    base = max(at for at, event in enumerate(events) if event["event"] == "base" and event["shard"] == 0)
    living = [life for (shard, _), life in day.lives.items() if shard == 0 and _lives(events[life[-1]])]
    told = [max(at for at in life if events[at]["event"] in PAYLOADS) for life in living if _is_told(events, life)]
    frames = sorted({events[at]["frame"] for at in told})
    return _that_makes("lost", (day.changed(base, first_frame=frame + 1) for frame in frames))


def _plant_conservation(events: list[Event]) -> list[Event]:
    """A base that counts a send that was none, and balances it with a delete."""
    told = with_base(events)
    policies = json.loads(told[-1]["detail"])
    policies[0]["counters"]["sent"] += 1
    policies[0]["counters"]["deleted"] += 1
    return Day(told).changed(len(told) - 1, detail=json.dumps(policies))


def with_base(events: list[Event]) -> list[Event]:
    """The same whole history, with a base at the end of shard 0 that counts what happened there."""
    of_shard = sorted((one for one in events if one["shard"] == 0), key=lambda one: one["logical_time"])
    counters: dict[int, Counter[str]] = defaultdict(Counter)
    policies: dict[int, dict[str, Any]] = {}
    living: dict[int, int] = {}
    owed: set[int] = set()
    for event in of_shard:
        queue, sequence, kind = event["queue"], event["sequence"], event["event"]
        if kind == "policy_set":
            policies[queue] = json.loads(event["detail"])
        elif kind == "queue_purged":
            purged = [one for one, its in living.items() if its == queue and one < event["number"] and one not in owed]
            counters[queue]["deleted"] += len(purged)
            for one in purged:
                del living[one]
        elif sequence is not None:
            counted = counts_as(event)
            counters[queue][counted] += 1
            if counted in ("sent", "arrived"):
                living[sequence] = queue
            elif counted in ("deleted", "expired", "moved"):
                del living[sequence]
            (owed.add if kind == "owed" else owed.discard)(sequence)
    names = ("sent", "arrived", "deleted", "expired", "moved", "present")
    for queue in living.values():
        counters[queue]["present"] += 1
    detail = [
        {**policy, "counters": {name: counters[queue][name] for name in names}} for queue, policy in policies.items()
    ]
    last = of_shard[-1]
    base = {
        **dict.fromkeys(last),
        **{name: last[name] for name in ("shard", "owner_epoch", "time", "flags")},
        "frame": last["frame"] + 1,
        "row": 0,
        "logical_time": last["frame"] + 1 << 16,
        "event": "base",
        "first_frame": 1,
        "number": max(living, default=0),
        "detail": json.dumps(detail),
    }
    return [*events, base]


def _lives(last: Event) -> bool:
    return last["event"] not in ("deleted", "settled")


def _is_told(events: list[Event], life: list[int]) -> bool:
    return any(events[at]["event"] in PAYLOADS for at in life)


def _that_makes(kind: str, histories: Iterator[list[Event]]) -> list[Event]:
    """The first that has breaks of this kind, and no others."""
    for broken in islice(histories, TRIES_MAX):
        if {name for name, *_ in judge(broken)} == {kind}:
            return broken
    raise AssertionError(f"no event of the day makes a {kind}")


def _plant_frame_gap(events: list[Event]) -> list[Event]:
    frames = Counter((event["shard"], event["frame"]) for event in events)
    alone = (at for at, event in enumerate(events) if frames[event["shard"], event["frame"]] == 1)
    at = next(at for at in alone if events[at]["event"] == "job_set")
    return events[:at] + events[at + 1 :]


def _plant_sequence_gap(events: list[Event]) -> list[Event]:
    day = Day(events)
    (at,) = _first((one for one in day.life("sent", whole=True) if not day.fifo(one[0])), "message that waits")
    return day.changed(at, sequence=UNUSED)


def _plant_owner_epoch(events: list[Event]) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "job_set")
    return Day(events).changed(at, owner_epoch=0)


def _plant_time_back(events: list[Event]) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "job_set")
    return Day(events).changed(at, time=events[at]["time"] - 3_600 * SECOND)


def _plant_channel_gap(events: list[Event]) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "owed" and _across(event))
    return Day(events).changed(at, channel_number=UNUSED)


def _across(event: Event) -> bool:
    return bool(event["other_shard"] != event["shard"])


def _plant_never_owed(events: list[Event]) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "owed" and _across(event))
    return Day(events).changed(at, other_queue=events[at]["other_queue"] + 1)


def _plant_never_arrived(events: list[Event]) -> list[Event]:
    day = Day(events)
    at = _first((one for (one,) in day.life("arrived", whole=True) if _across(events[one])), "dead letter that waits")
    return day.changed(at, event="policy_set", sequence=None)


def _plant_settled_otherwise(events: list[Event]) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "settled" and _across(event))
    return Day(events).changed(at, reason="refused_full", visible_at=None)


def _plant_group_order(events: list[Event]) -> list[Event]:
    return _in_group(events, "group_order", event="returned", reason="nack", same="visible_at")


def _plant_group_exclusion(events: list[Event]) -> list[Event]:
    return _in_group(events, "group_exclusion", event="extended", reason=None, later="deadline")


def _in_group(events: list[Event], kind: str, *, same: str = "", later: str = "", **values: Any) -> list[Event]:
    """A message of a group is not deleted after all: the next that is leased goes past it."""
    day = Day(events)
    groups = {_key(event): (event["queue"], event["group"]) for event in events if event["event"] == "sent"}
    ends = {end: groups.get(_key(events[end])) for (end,) in day.life("deleted/ack") if day.fifo(end)}
    leases = [(at, groups.get(_key(event))) for at, event in enumerate(events) if event["event"] == "leased"]
    past = {end: sum(at > end and of == group for at, of in leases) for end, group in ends.items() if group}
    chosen = [end for end in sorted(past, key=past.__getitem__) if past[end]]

    def broken(end: int) -> list[Event]:
        time = events[end]["time"]
        return day.changed(end, **values, **({same: time} if same else {later: time + 3_600 * SECOND}))

    return _that_makes(kind, map(broken, chosen))


def _key(event: Event) -> tuple[int, int]:
    return event["shard"], event["sequence"]


def _plant_copies(events: list[Event]) -> list[Event]:
    """A copy that is a message of its own: the publish says that there is one more."""
    copies = (at for at, event in enumerate(events) if event["event"] == "sent" and event["subscription"] is not None)
    at = next(copies)
    return Day(events).changed(at, flags=events[at]["flags"] & ~SentFlag.FANNED, subscription=None)


def _firings(events: list[Event], name: str) -> list[int]:
    told = [at for at, event in enumerate(events) if event["event"] == "schedule_set" and event["number"]]
    return [at for at in told if json.loads(events[at]["detail"])["name"] == name]


def _plant_firing(events: list[Event]) -> list[Event]:
    """A firing that sets the next due time and sends nothing: the message is another's."""
    at = _firings(events, "often")[0]
    return Day(events).changed(at, number=0)


def _plant_due_time(events: list[Event]) -> list[Event]:
    one, other = _firings(events, "often")[:2]
    due_ms = json.loads(events[one]["detail"])["last_due_ms"]
    return Day(events).changed(other, detail=json.dumps({**json.loads(events[other]["detail"]), "last_due_ms": due_ms}))


def _plant_duplicate(events: list[Event]) -> list[Event]:
    sent = [at for at, event in enumerate(events) if event["event"] == "sent" and event["queue_name"] == "orders"]
    one, other = sent[:2]
    return Day(events).changed(other, dedup_key=events[one]["dedup_key"])

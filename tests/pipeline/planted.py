"""Breaks that are planted in real histories, at least one for each kind of violation: one or two events are changed, or
some are cut out, and the rest of the history stays as it was.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple

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
    "sent_twice": {"sequence_gap", "conservation"},
    "sequence_gap": {"conservation"},
    "channel_gap": {"never_owed", "never_arrived"},
    "never_arrived": {"channel_gap", "sequence_gap"},
    "arrived_twice": {"sent_twice", "sequence_gap"},
}


class Break(NamedTuple):
    """A planted break: the kind of violation that must name it, and the day that it is planted in."""

    kind: str
    day: str  # busy, truncated or fanned
    plant: Plant
    also: frozenset[str]


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
        return self.all_changed({at: values})

    def all_changed(self, changes: dict[int, dict[str, Any]]) -> list[Event]:
        return [{**event, **changes[at]} if at in changes else event for at, event in enumerate(self.events)]

    def fifo(self, at: int) -> bool:
        return str(self.events[at]["queue_name"]).startswith(("ledger", "tickets"))


def plants() -> dict[str, Break]:
    """By name. Those in VARIANTS are further breaks of a kind that has one of its own name."""
    found = {}
    for function, plant in globals().items():
        if function.startswith("_plant_"):
            name = function.removeprefix("_plant_")
            kind, day = VARIANTS.get(name, (name, ""))
            day = day or ("truncated" if name in TRUNCATED else "fanned" if name in FANNED else "busy")
            found[name] = Break(kind, day, plant, frozenset(ALSO.get(name, ())))
    return found


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
    return day.changed(edited, state="dead")


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
    base = {
        **dict.fromkeys(of_shard[-1]),
        **{name: of_shard[-1][name] for name in ("shard", "flags")},
        "event": "base",
        "first_frame": 1,
        "number": max(living, default=0),
        "detail": json.dumps(detail),
    }
    return with_frame(events, base)


def with_frame(events: list[Event], event: Event) -> list[Event]:
    """The same history, and one more frame of the event's shard, with this event alone."""
    of_shard = (one for one in events if one["shard"] == event["shard"])
    last = max(of_shard, key=lambda one: int(one["logical_time"]))
    place = {"frame": last["frame"] + 1, "row": 0, "logical_time": last["frame"] + 1 << 16}
    return [*events, {**event, **place, **{name: last[name] for name in ("owner_epoch", "time")}}]


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


# --- further breaks -----------------------------------------------------------------------------------

# name → the kind that must name it, and the day
VARIANTS = {
    "dead_lettered_under_a_lease": ("moved_while_held", "busy"),
    "redriven_under_a_lease": ("moved_while_held", "busy"),
    "own_maximum_exceeded": ("received_too_often", "busy"),
    "maximum_of_one_exceeded": ("received_too_often", "busy"),
    "replayed_message_early": ("early", "fanned"),
    "acknowledged_without_a_lease": ("never_leased", "busy"),
    "dead_lettered_without_a_lease": ("never_leased", "busy"),
    "copy_acknowledged_without_a_lease": ("never_leased", "fanned"),
    "deleted_for_no_reason": ("transition", "busy"),
    "deleted_while_owed": ("transition", "busy"),
    "message_removed": ("sequence_gap", "busy"),
    "replayed_message_removed": ("sequence_gap", "fanned"),
    "event_twice": ("frame_gap", "busy"),
    "row_removed": ("frame_gap", "busy"),
    "owner_without_epoch": ("owner_epoch", "busy"),
    "early_after_nack": ("early", "busy"),
    "extended_too_late": ("not_held", "busy"),
    "nack_of_an_earlier_lease": ("stale_epoch", "busy"),
    "two_holders_after_expiry": ("two_holders", "busy"),
    "two_holders_of_a_copy": ("two_holders", "fanned"),
    "purge_of_one_more": ("conservation", "busy"),
    "purge_of_one_less": ("conservation", "fanned"),
    "moved_message_not_counted": ("conservation", "busy"),
    "copies_not_counted": ("conservation", "fanned"),
    "copy_twice": ("copies", "fanned"),
    "message_without_firing": ("firing", "fanned"),
    "arrived_twice": ("channel_gap", "busy"),
    "copy_not_arrived": ("settled_otherwise", "fanned"),
}


def _plant_front_missing(events: list[Event]) -> list[Event]:
    """The first third of a shard, without a base."""
    third = max(event["frame"] for event in events if event["shard"] == 0) // 3
    return [event for event in events if event["shard"] != 0 or event["frame"] > third]


def _plant_end_missing(events: list[Event]) -> list[Event]:
    """The last third of a shard. Only something else than its log knows how far it went."""
    third = max(event["frame"] for event in events if event["shard"] == 0) * 2 // 3
    return [event for event in events if event["shard"] != 0 or event["frame"] <= third]


def _plant_moved_while_held(events: list[Event]) -> list[Event]:
    """A lease that did not run out before its message was dead-lettered."""
    day = Day(events)
    leased, back, _ = _first(day.part("leased", "returned/expired", "owed"), "dead letter after a lost lease")
    return day.all_changed(_lease_goes_on(events, leased, back))


def _lease_goes_on(events: list[Event], leased: int, back: int) -> dict[int, dict[str, Any]]:
    """The changes that make a lease last another hour instead of running out."""
    until = events[back]["time"] + 3_600 * SECOND
    extended = {"event": "extended", "reason": None, "visible_at": None, "deadline": until}
    return {leased: {"deadline": until}, back: extended}


def _plant_dead_lettered_under_a_lease(events: list[Event]) -> list[Event]:
    day = Day(events)
    back, _ = _first(day.part("returned/nack", "owed"), "dead letter after a nack")
    until = events[back]["time"] + 3_600 * SECOND
    return day.changed(back, event="extended", reason=None, visible_at=None, deadline=until, flags=0)


def _plant_redriven_under_a_lease(events: list[Event]) -> list[Event]:
    """A dead letter that a consumer gets instead of an edit, and that is redriven all the same."""
    day = Day(events)
    edited, owed = _first(
        (two for two in day.part("edited", "owed") if events[two[1]]["reason"] == "redrive"), "dead letter with an edit"
    )
    held = {name: events[edited][name] + 1 for name in ("lease_epoch", "receive_count")}
    lease = {"event": "leased", "state": None, "visible_at": None, "deadline": events[edited]["time"] + 3_600 * SECOND}
    return day.all_changed({edited: {**held, **lease}, owed: held})


def _leased_again(events: list[Event], day: Day, at: int) -> list[Event]:
    """One more lease, in place of another event."""
    return day.changed(
        at,
        event="leased",
        reason=None,
        visible_at=None,
        deadline=events[at]["time"] + 30 * SECOND,
        lease_epoch=events[at]["lease_epoch"] + 1,
        receive_count=events[at]["receive_count"] + 1,
    )


def _plant_received_too_often(events: list[Event]) -> list[Event]:
    """A message that was received once, as often as its queue allows, and is not dead after all."""
    day = Day(events)
    frail = (at for (at,) in day.life("returned/nack") if events[at]["queue_name"] == "frail")
    at = _first(frail, "message without a receive left")
    lease = _leased_again(events, day, at)[at]
    return with_frame(day.changed(at, visible_at=events[at]["time"]), lease)


def _plant_maximum_of_one_exceeded(events: list[Event]) -> list[Event]:
    """A queue that allowed one receive, all the time."""
    told = [at for at, one in enumerate(events) if one["event"] == "policy_set" and one["queue_name"] == "orders"]
    policies = {at: {**json.loads(events[at]["detail"]), "max_receives": 1} for at in told}
    return Day(events).all_changed({at: {"detail": json.dumps(policy)} for at, policy in policies.items()})


def _plant_own_maximum_exceeded(events: list[Event]) -> list[Event]:
    day = Day(events)
    again = ("leased", "returned/nack", "leased")
    sent, *_ = _first((life for life in day.part("sent", *again) if not day.fifo(life[0])), "message with two receives")
    return day.changed(sent, receives_max=1)


def _plant_replayed_message_early(events: list[Event]) -> list[Event]:
    day = Day(events)
    replayed = (two for two in day.part("sent", "leased") if _is_replayed(events[two[0]]))
    sent, leased = _first(replayed, "message that was sent again")
    return day.changed(sent, visible_at=events[leased]["time"] + 1000)


def _is_replayed(event: Event) -> bool:
    return bool(event["flags"] & SentFlag.REPLAYED)


def _plant_never_leased(events: list[Event]) -> list[Event]:
    """A late acknowledgement by a consumer who never had the message: it was edited, and not received."""
    day = Day(events)
    mail = (life for life in day.life("leased", "deleted/ack") if events[life[0]]["queue_name"] == "mail")
    leased, end = _first((two for two in mail if events[two[1]]["lease_epoch"] == 1), "letter that was received once")
    unheld = {"lease_epoch": 0, "receive_count": 0}
    edit = {"event": "edited", "state": "visible", "visible_at": events[leased]["time"], "deadline": None}
    late = {"reason": "late_ack", "flags": int(DeletedFlag.LATE)}
    return day.all_changed({leased: {**unheld, **edit}, end: {**unheld, **late}})


def _plant_acknowledged_without_a_lease(events: list[Event]) -> list[Event]:
    day = Day(events)
    _, end = _first(day.life("sent", "deleted/retention", whole=True), "message that ran out")
    return day.changed(end, reason="ack")


def _plant_dead_lettered_without_a_lease(events: list[Event]) -> list[Event]:
    day = Day(events)
    owed = (two[1] for two in day.part("sent", "owed") if events[two[1]]["reason"] == "expiry_dead_letter")
    return day.changed(_first(owed, "message that expired into the dead letters"), reason="dead_letter")


def _plant_copy_acknowledged_without_a_lease(events: list[Event]) -> list[Event]:
    """A copy whose lease is another thing that happened to its queue."""
    day = Day(events)
    lives = (life for life in day.life("sent", "leased", "deleted/ack", whole=True) if _is_copy(events[life[0]]))
    _, leased, end = _first(lives, "copy")
    unheld = {"lease_epoch": 0, "receive_count": 0}
    return day.all_changed({leased: {"event": "queue_closed", "sequence": None}, end: unheld})


def _is_copy(event: Event) -> bool:
    return event["event"] == "sent" and bool(event["flags"] & SentFlag.FANNED)


def _plant_deleted_for_no_reason(events: list[Event]) -> list[Event]:
    day = Day(events)
    (end,) = _first(day.life("deleted/ack"), "delete")
    return day.changed(end, reason=None)


def _plant_deleted_while_owed(events: list[Event]) -> list[Event]:
    """The last entry of a channel, or those after it would not follow."""
    day = Day(events)
    ends = [at for at, event in enumerate(events) if event["event"] == "settled" and _across(event)]
    return day.changed(ends[-1], event="deleted", reason="operator", channel_number=None, other_shard=None)


def _plant_message_removed(events: list[Event]) -> list[Event]:
    return _without_message(events, lambda _: True)


def _plant_replayed_message_removed(events: list[Event]) -> list[Event]:
    return _without_message(events, _is_replayed)


def _without_message(events: list[Event], of: Callable[[Event], bool]) -> list[Event]:
    """Without anything that happened to a message; rows are numbered again, so that no frame has a gap."""
    day = Day(events)
    frames = Counter((event["shard"], event["frame"]) for event in events)
    gone: set[int] = set()
    for life in day.lives.values():
        first = events[life[0]]
        alone = any(frames[events[at]["shard"], events[at]["frame"]] == 1 for at in life)
        if first["event"] == "sent" and of(first) and not day.fifo(life[0]) and not alone and not first["dedup_key"]:
            gone = set(life)
            break
    assert gone, "the day has no message that is in frames with others"
    rows: Counter[tuple[int, int]] = Counter()
    left = []
    for at, event in enumerate(events):
        if at not in gone:
            place = (event["shard"], event["frame"])
            row, rows[place] = rows[place], rows[place] + 1
            left.append({**event, "row": row, "logical_time": event["frame"] << 16 | row})
    return left


def _job(events: list[Event]) -> int:
    return next(at for at, event in enumerate(events) if event["event"] == "job_set")


def _plant_event_twice(events: list[Event]) -> list[Event]:
    at = _job(events)
    return [*events[: at + 1], events[at], *events[at + 1 :]]


def _plant_row_removed(events: list[Event]) -> list[Event]:
    """An event that is not about a message, and not the last of its frame."""
    quiet = ("requested", "produced", "job_set")
    at = next(
        at
        for at, (event, after) in enumerate(pairwise(events))
        if event["event"] in quiet and (event["shard"], event["frame"]) == (after["shard"], after["frame"])
    )
    return events[:at] + events[at + 1 :]


def _plant_owner_without_epoch(events: list[Event]) -> list[Event]:
    """A shard's last frame, by an owner that never took it over."""
    last = max(event["frame"] for event in events if event["shard"] == 0)
    return [
        {**event, "owner_epoch": event["owner_epoch"] + 1} if (event["shard"], event["frame"]) == (0, last) else event
        for event in events
    ]


def _plant_early_after_nack(events: list[Event]) -> list[Event]:
    day = Day(events)
    back, leased = _first((two for two in day.part("returned/nack", "leased") if not day.fifo(two[0])), "nack")
    return day.changed(back, visible_at=events[leased]["time"] + 1000)


def _plant_extended_too_late(events: list[Event]) -> list[Event]:
    day = Day(events)
    leased, extended = _first((two for two in day.part("leased", "extended") if not day.fifo(two[0])), "extension")
    return day.changed(leased, deadline=events[extended]["time"])


def _plant_nack_of_an_earlier_lease(events: list[Event]) -> list[Event]:
    day = Day(events)
    nacks = (at for (at,) in day.part("returned/nack") if events[at]["lease_epoch"] > 1 and not day.fifo(at))
    at = _first((at for at in nacks if day.lives[_key(events[at])][-1] == at), "second nack that is the last event")
    return day.changed(at, lease_epoch=events[at]["lease_epoch"] - 1)


def _plant_two_holders_after_expiry(events: list[Event]) -> list[Event]:
    """A lease that did not run out before the next one."""
    day = Day(events)
    again = (life for life in day.part("leased", "returned/expired", "leased") if not day.fifo(life[0]))
    leased, back, _ = _first(again, "lost lease")
    return day.all_changed(_lease_goes_on(events, leased, back))


def _plant_two_holders_of_a_copy(events: list[Event]) -> list[Event]:
    """A copy of a published message that a second consumer gets, in place of its acknowledgement."""
    day = Day(events)
    lives = (life for life in day.life("sent", "leased", "deleted/ack", whole=True) if _is_copy(events[life[0]]))
    *_, end = _first(lives, "copy")
    return _leased_again(events, day, end)


def _purge(events: list[Event], by: int) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event["event"] == "queue_purged" and event["messages"])
    return Day(events).changed(at, messages=events[at]["messages"] + by)


def _plant_purge_of_one_more(events: list[Event]) -> list[Event]:
    return _purge(events, 1)


def _plant_purge_of_one_less(events: list[Event]) -> list[Event]:
    return _purge(events, -1)


def _miscounted(events: list[Event], queue: str, **by: int) -> list[Event]:
    told = with_base(events)
    policies = json.loads(told[-1]["detail"])
    counters = next(policy["counters"] for policy in policies if policy["name"] == queue)
    for name, more in by.items():
        counters[name] += more
    return Day(told).changed(len(told) - 1, detail=json.dumps(policies))


def _queue_with(events: list[Event], *kinds: str) -> str:
    found = (event for event in events if event["shard"] == 0 and event["event"] in kinds and event["queue_name"])
    return str(_first((event["queue_name"] for event in found), " or ".join(kinds)))


def _plant_moved_message_not_counted(events: list[Event]) -> list[Event]:
    """A base that has a redriven message in two queues."""
    return _miscounted(events, _queue_with(events, "settled"), moved=-1, present=1)


def _plant_copies_not_counted(events: list[Event]) -> list[Event]:
    """A base that lost count of a copy of a published message."""
    copies = [event for event in events if event["shard"] == 0 and _is_copy(event)]
    return _miscounted(events, str(copies[0]["queue_name"]), sent=-1, present=-1)


def _plant_copy_twice(events: list[Event]) -> list[Event]:
    """Two copies for one subscription, none for another."""
    copies = [at for at, event in enumerate(events) if _is_copy(event)]
    one, other = next(
        (a, b)
        for a, b in pairwise(copies)
        if events[a]["frame"] == events[b]["frame"] and events[a]["subscription"] != events[b]["subscription"]
    )
    return Day(events).changed(other, subscription=events[one]["subscription"])


def _plant_message_without_firing(events: list[Event]) -> list[Event]:
    """A message that says it is a schedule's, and is not."""
    at = next(at for at, event in enumerate(events) if event["event"] == "sent" and not event["flags"])
    return Day(events).changed(at, flags=int(SentFlag.SCHEDULED))


def _plant_arrived_twice(events: list[Event]) -> list[Event]:
    """The last arrival from another shard, once more in place of what happened last there."""
    arrivals = [at for at, event in enumerate(events) if event["event"] == "arrived" and _across(event)]
    first = events[arrivals[-1]]
    last = max(
        (at for at, event in enumerate(events) if event["shard"] == first["shard"] and event["sequence"] is None),
        key=lambda at: int(events[at]["logical_time"]),
    )
    same = {name: events[last][name] for name in ("frame", "row", "logical_time", "time", "owner_epoch")}
    return [*events[:last], {**first, **same}, *events[last + 1 :]]


def _plant_copy_not_arrived(events: list[Event]) -> list[Event]:
    """A copy that its queue refused, which the topic takes for delivered."""
    day = Day(events)
    refused = (at for (at,) in day.life("settled") if str(events[at]["reason"]).startswith("refused"))
    return day.changed(_first(refused, "copy that was refused"), reason="accepted", visible_at=None)

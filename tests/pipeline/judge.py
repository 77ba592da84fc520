"""The audit's rules once more, by a plain fold over the events of a small history: what Spark's answer must equal.

It walks each shard's log as a shard would, with messages in a dictionary, leases that an owner's grace lengthens, and
groups in lines. A finding is (kind, shard, sequence, logical time); of the log itself, (kind, shard, None, frame).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batonq.core.records import ArrivedFlag, DeletedFlag, ReturnedFlag, SentFlag, State
from batonq.pipeline.audit.lifecycle import MOVES, REASONED, Move

Event = dict[str, Any]
Finding = tuple[str, int, int | None, int]
NEVER = 1 << 63
COUNT_MAX = 0xFFFF
BEHIND_US = 60_000_000
OPENING = ("sent", "arrived")
PAYLOADS = ("sent", "arrived", "carried", "edited")
RETIRED = (("deleted", "retention"), ("owed", "expiry_dead_letter"))
OF_MESSAGES = (*PAYLOADS, "leased", "extended", "returned", "deleted", "owed", "settled")


@dataclass
class Message:
    queue: int
    lt: int
    state: State
    until: int | None
    doomed: bool = False
    epoch: int | None = None
    count: int | None = None
    expires: int | None = None
    payload: int = 0
    first_count: int | None = None
    own: int | None = None  # its own maximum of receives, 0 for none, None if history does not show it
    purged: bool = False
    group: str | None = None
    leaves: int = NEVER


class Shard:
    """What is known of one shard before its log is walked."""

    def __init__(self, events: list[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["logical_time"])
        self.first_frame = first = min(event["frame"] for event in events)
        bases = [event for event in self.events if event["event"] == "base"]
        opened = [base["logical_time"] for base in bases if base["first_frame"] >= first]
        self.known_from = 0 if first <= 1 else min(opened, default=NEVER)
        self.kept_from = max((base["first_frame"] << 16 for base in bases), default=None)
        self.last_time = max(event["time"] for event in events)


class Policies:
    def __init__(self, events: Iterable[Event]) -> None:
        self._told: dict[tuple[int, int], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
        for event in events:
            if event["event"] in ("policy_set", "base") and event["detail"]:
                found = json.loads(event["detail"])
                for policy in found if event["event"] == "base" else [found]:
                    policy = json.loads(policy) if isinstance(policy, str) else policy
                    self._told[event["shard"], policy["queue"]].append((event["logical_time"], policy))

    def at(self, event: Event) -> dict[str, Any]:
        told = self._told.get((event["shard"], event["queue"]), [])
        held = [policy for since, policy in sorted(told, key=lambda one: one[0]) if since < event["logical_time"]]
        return held[-1] if held else {}

    def fifo(self, shard: int, queue: int) -> bool:
        return any(policy["fifo"] for _, policy in self._told.get((shard, queue), []))


def judge(events: list[Event], ends: Mapping[int, int] | None = None, *, own: bool | None = None) -> set[Finding]:
    """`own`: whether messages with a maximum of receives of their own may be in other parts of the history."""
    by_shard: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_shard[event["shard"]].append(event)
    shards = {number: Shard(its) for number, its in by_shard.items()}
    policies = Policies(events)
    found: set[Finding] = set()
    if own is None:
        own = has_own_maximums(events)
    for number, shard in shards.items():
        walk = Walk(number, shard, policies, own)
        found |= walk.run() | log_rules(number, shard) | group_rules(number, shard, walk, policies)
        found |= key_rules(number, shard, policies, walk) | counter_rules(number, shard)
        found |= topic_rules(number, shard) | schedule_rules(number, shard)
    for number, end in (ends or {}).items():
        last = shards[number].events[-1]["frame"] if number in shards else 0
        if last < end:
            found.add(("end_missing", number, None, last))
    return found | channel_rules(events, shards)


def has_own_maximums(events: list[Event]) -> bool:
    """Whether a message may have a maximum of receives of its own: one has, or it may be in a front that is gone."""
    by_shard: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_shard[event["shard"]].append(event)
    told = any(event["receives_max"] for event in events)
    return told or any(Shard(its).known_from for its in by_shard.values())


def after(event: Event) -> tuple[State, bool]:
    """The state that an event leaves its message in, and whether it only waits to be owed again."""
    kind, visible, time = event["event"], event["visible_at"], event["time"]
    if kind in OPENING:
        return (State.DELAYED if visible is not None and visible > time else State.VISIBLE), False
    if kind in ("returned", "settled"):
        if kind == "settled" and event["reason"] == "accepted":
            return State.DELETED, False
        if visible is None:
            return State.DEAD, False
        return (State.VISIBLE, False) if visible <= time else (State.DELAYED, kind == "settled")
    if kind in ("carried", "edited"):
        return State[event["state"].upper()], False
    fixed = {"leased": "IN_FLIGHT", "extended": "IN_FLIGHT", "deleted": "DELETED", "owed": "OWED"}
    return State[fixed[kind]], False


class Walk:
    """Messages of one shard through their lives."""

    def __init__(self, number: int, shard: Shard, policies: Policies, own: bool) -> None:
        self.number, self.shard, self.policies, self.own = number, shard, policies, own
        self.messages: dict[int, Message] = {}
        self.found: set[Finding] = set()

    def run(self) -> set[Finding]:
        for event in self.shard.events:
            kind = event["event"]
            if kind == "epoch" and event["grace_ms"]:
                for message in self.messages.values():
                    if message.state == State.IN_FLIGHT and message.until is not None:
                        message.until += event["grace_ms"] * 1000
            elif kind == "queue_purged":
                for sequence, message in self.messages.items():
                    mine = message.queue == event["queue"] and sequence < event["number"]
                    if mine and message.state not in (State.OWED, State.DELETED):
                        message.purged = True
                        message.leaves = min(message.leaves, event["logical_time"])
            elif kind in OF_MESSAGES and event["sequence"] is not None:
                self._message(event)
        if self.shard.kept_from is not None:
            for sequence, message in self.messages.items():
                if message.state != State.DELETED and not message.purged and message.payload < self.shard.kept_from:
                    self.found.add(("lost", self.number, sequence, message.lt))
        if self.shard.known_from == 0:
            self._check_purges()
        return self.found

    def _check_purges(self) -> None:
        purges: dict[int, list[Event]] = defaultdict(list)
        for event in self.shard.events:
            if event["event"] == "queue_purged":
                purges[event["queue"]].append(event)
        for queue, its in purges.items():
            removed = sum(message.purged for message in self.messages.values() if message.queue == queue)
            if removed != sum(event["messages"] for event in its):
                self.found.add(("conservation", self.number, None, its[-1]["logical_time"]))

    def _message(self, event: Event) -> None:
        sequence, lt, kind = event["sequence"], event["logical_time"], event["event"]
        old = self.messages.get(sequence)
        kinds = self._first(event) if old is None else self._next(event, old)
        late = kind == "deleted" and (event["reason"] == "late_ack" or event["flags"] & DeletedFlag.LATE)
        if late and self._wrongly_late(event, old):
            kinds.append("late_delete")
        self.found |= {(found, self.number, sequence, lt) for found in kinds}
        state, doomed = after(event)
        until = event["deadline"] if event["deadline"] is not None else event["visible_at"]
        new = Message(event["queue"], lt, state, until, doomed)
        epoch = 0 if kind in OPENING else event["lease_epoch"]
        count = 0 if kind == "sent" else event["receive_count"]
        if count is not None:
            uncharged = kind == "returned" and event["flags"] & ReturnedFlag.UNCHARGED
            count = max(count - 1, 0) if uncharged else min(count, COUNT_MAX)
        new.first_count = old.first_count if old and old.first_count is not None else self._raw_count(event)
        new.own = self._own(event, old)
        new.epoch = epoch if epoch is not None or old is None else old.epoch
        new.count = count if count is not None or old is None else old.count
        new.expires = event["expires_at"] if event["expires_at"] is not None or old is None else old.expires
        new.payload = lt if kind in PAYLOADS else old.payload if old else 0
        moved = kind == "arrived" and event["flags"] & ArrivedFlag.OVERLAY
        told = (event["group"] or "") if kind in PAYLOADS and not moved else None
        new.group = told if told is not None else old.group if old else None
        left = state in (State.DELETED, State.DEAD) or (old is None and kind == "carried" and state == State.OWED)
        new.leaves = min(old.leaves if old and not old.purged else NEVER, lt if left else NEVER)
        self.messages[sequence] = new

    @staticmethod
    def _raw_count(event: Event) -> int | None:
        return 0 if event["event"] == "sent" else event["receive_count"]

    def _own(self, event: Event, old: Message | None) -> int | None:
        if event["event"] in ("sent", "edited", "carried"):
            return event["receives_max"] or 0
        if event["event"] != "arrived":
            return old.own if old else None
        shown = not event["flags"] & (ArrivedFlag.NOTED | ArrivedFlag.OVERLAY)
        shown = shown or event["reason"] in ("dead_letter", "expiry_dead_letter")
        return 0 if shown or not self.own else None

    def _too_often(self, event: Event, old: Message) -> bool:
        maximum = old.own or self.policies.at(event).get("max_receives")
        if event["event"] != "leased" or old.own is None or not maximum or old.count is None:
            return False
        return old.count - (old.first_count or 0) >= maximum

    def _first(self, event: Event) -> list[str]:
        known = event["logical_time"] >= self.shard.known_from
        return ["never_sent"] if event["event"] not in OPENING and known else []

    def _next(self, event: Event, old: Message) -> list[str]:
        kind, time, reason = event["event"], event["time"], event["reason"]
        kinds: list[str] = []
        if old.purged and kind not in OPENING:
            kinds.append("after_end")
        was = old.state
        if was == State.DELAYED and not old.doomed and old.until is not None and old.until <= time:
            was = State.VISIBLE
        if state_kind := self._state_kind(event, old, was):
            kinds.append(state_kind)
        if event["queue"] != old.queue:
            kinds.append("wrong_queue")
        if old.expires is not None:
            if kind == "leased" and time >= old.expires:
                kinds.append("lease_after_expiry")
            if (kind, reason) in RETIRED and time < old.expires:
                kinds.append("expired_early")
        if kind == "returned" and reason == "expired" and old.state == State.IN_FLIGHT and time < (old.until or 0):
            kinds.append("lease_cut_short")
        if old.state == State.DELETED or kind == "carried":
            return kinds
        if self._too_often(event, old):
            kinds.append("received_too_often")
        epoch = 0 if kind in OPENING else event["lease_epoch"]
        count = 0 if kind == "sent" else event["receive_count"]
        more = 1 if kind == "leased" else 0
        if None not in (epoch, old.epoch) and epoch != (old.epoch or 0) + more:
            kinds.append("lease_epoch" if more else "stale_epoch")
        if None not in (count, old.count) and count != (old.count or 0) + more:
            kinds.append("receive_count")
        return kinds

    def _state_kind(self, event: Event, old: Message, was: State) -> str | None:
        kind, time, reason = event["event"], event["time"], event["reason"]
        if kind in OPENING:
            return "sent_twice"
        if old.state == State.DELETED:
            return "after_end"
        if kind == "leased":
            if was == State.VISIBLE:
                return None
            if was == State.IN_FLIGHT:
                return "two_holders"
            return "early" if was == State.DELAYED and not old.doomed else "not_ready"
        state, _ = after(event)
        if kind == "carried":
            until = event["deadline"] if event["deadline"] is not None else event["visible_at"]
            moved = state in (State.IN_FLIGHT, State.DELAYED) and state == old.state and not old.doomed
            other = state not in (old.state, was) or (event["lease_epoch"], event["receive_count"]) != (
                old.epoch if old.epoch is not None else event["lease_epoch"],
                old.count if old.count is not None else event["receive_count"],
            )
            return "carried" if other or (moved and until != old.until) else None
        by_holder = kind == "extended" or (kind, reason) in (
            ("deleted", "ack"),
            ("returned", "nack"),
            ("returned", "released"),
        )
        by_last = kind == "deleted" and (reason == "late_ack" or event["flags"] & DeletedFlag.LATE)
        if (by_holder or by_last or (kind, reason) == ("owed", "dead_letter")) and old.epoch == 0:
            return "never_leased"
        if by_holder and (was != State.IN_FLIGHT or time >= (old.until or 0)):
            return "not_held"
        if kind == "owed" and was == State.IN_FLIGHT and reason != "expiry_dead_letter":
            return "moved_while_held"
        if (kind, reason) in (("deleted", "operator"), ("returned", "operator")) and was == State.IN_FLIGHT:
            return "taken_from_holder"
        before, now = (_name(was, old.doomed), _name(*after(event)))
        move = Move(before, kind, reason if kind in REASONED else None, now)
        return None if move in MOVES else "transition"

    def _wrongly_late(self, event: Event, old: Message | None) -> bool:
        if event["reason"] != "late_ack" or not event["flags"] & DeletedFlag.LATE:
            return True
        if self.policies.fifo(self.number, event["queue"]) or self.policies.at(event).get("strict_receipts"):
            return True
        return old is not None and old.state == State.IN_FLIGHT and event["time"] < (old.until or 0)


def _name(state: State, doomed: bool) -> str:
    return "refused" if doomed and state == State.DELAYED else state.name.lower()


def log_rules(number: int, shard: Shard) -> set[Finding]:
    """Frames, rows, owners, time and sequences, row by row."""
    found: set[Finding] = set()
    rows: dict[int, list[int]] = defaultdict(list)
    before: Event | None = None
    opened: int | None = 0 if shard.known_from == 0 else None
    for event in shard.events:
        frame = event["frame"]
        rows[frame].append(event["row"])
        if before is not None:
            if event["time"] < before["time"]:
                found.add(("time_back", number, None, frame))
            owner, last = event["owner_epoch"], before["owner_epoch"]
            named = event["number"] if event["event"] == "epoch" else None
            if owner < last or (owner > last and named != owner) or (named is not None and named <= last):
                found.add(("owner_epoch", number, None, frame))
        if event["event"] == "epoch" and event["number"] != event["owner_epoch"]:
            found.add(("owner_epoch", number, None, frame))
        sequence = event["number"] if event["event"] == "published" else event["sequence"]
        if event["event"] in (*OPENING, "published") and sequence is not None:
            if opened is not None and sequence != opened + 1:
                found.add(("sequence_gap", number, None, frame))
            opened = sequence
        before = event
    if shard.known_from == NEVER:
        found.add(("front_missing", number, None, shard.first_frame))
    last_frame: int | None = None
    for frame, its in rows.items():
        if sorted(its) != list(range(len(its))) or (last_frame is not None and frame != last_frame + 1):
            found.add(("frame_gap", number, None, frame))
        last_frame = frame
    return found


def counter_rules(number: int, shard: Shard) -> set[Finding]:
    """What each base counted: it balances, and from the opening to the last base it rose by what the events did."""
    found: set[Finding] = set()
    told: dict[int, list[tuple[int, dict[str, int]]]] = defaultdict(list)
    for event in shard.events:
        if event["event"] == "base" and event["logical_time"] >= shard.known_from:
            for policy in json.loads(event["detail"]):
                if "counters" in policy:
                    told[policy["queue"]].append((event["logical_time"], policy["counters"]))
    for queue, bases in told.items():
        for lt, counters in bases:
            left = sum(counters[name] for name in ("deleted", "expired", "moved", "present"))
            if counters["sent"] + counters["arrived"] != left:
                found.add(("conservation", number, None, lt))
        start, opening = (0, dict.fromkeys(bases[0][1], 0)) if shard.known_from == 0 else bases[0]
        end, closing = bases[-1]
        between = [e for e in shard.events if e["queue"] == queue and start < e["logical_time"] < end]
        counted = {name: sum(counts_as(event) == name for event in between) for name in opening}
        rose = {name: closing[name] - opening[name] for name in opening}
        counted["deleted"] += sum(event["messages"] for event in between if event["event"] == "queue_purged")
        if any(rose[name] != counted[name] for name in ("sent", "arrived", "deleted", "expired", "moved")):
            found.add(("conservation", number, None, end))
    return found


def counts_as(event: Event) -> str:
    kind = event["event"]
    if kind == "arrived":
        return "" if event["flags"] & ArrivedFlag.REFUSED else "arrived"
    if kind == "deleted":
        return "expired" if event["reason"] == "retention" else "deleted"
    if kind == "settled":
        return "moved" if event["reason"] == "accepted" else ""
    return str(kind)


def group_rules(number: int, shard: Shard, walk: Walk, policies: Policies) -> set[Finding]:
    """Lines of messages, from what the walk learned of each; then every lease against what was before it."""
    messages = walk.messages
    owed: dict[int, int] = {}
    for event in shard.events:
        sequence, lt = event["sequence"], event["logical_time"]
        if event["event"] == "owed":
            owed[lt] = sequence
        elif event["event"] == "arrived" and sequence is not None and messages[sequence].group is None:
            source = messages.get(owed.get(lt - 1, 0))
            if source is not None and policies.fifo(number, source.queue):
                messages[sequence].group = f"\0{source.group}" if source.group is not None else None
    lines: dict[tuple[int, str], list[int]] = defaultdict(list)
    for sequence, message in sorted(messages.items()):
        if message.group is not None and policies.fifo(number, message.queue):
            lines[message.queue, message.group.lstrip("\0")].append(sequence)
    states: dict[int, State] = {}
    last: dict[tuple[int, str], tuple[int, int]] = {}  # line → receive and sequence of its last lease
    receive = 0
    before: Event | None = None
    found: set[Finding] = set()
    for event in shard.events:
        sequence, lt = event["sequence"], event["logical_time"]
        if event["event"] == "leased":
            same = ("event", "queue", "time", "deadline")
            goes_on = before is not None and all(event[name] == before[name] for name in same)
            receive = receive if goes_on and before and before["logical_time"] == lt - 1 else lt
        before = event
        if event["event"] not in OF_MESSAGES or sequence is None:
            continue
        message = messages[sequence]
        line = (message.queue, (message.group or "").lstrip("\0"))
        if event["event"] == "leased" and sequence in lines.get(line, ()):
            p_receive, p_sequence = last.get(line, (0, 0))
            behind = p_sequence if p_receive == receive and p_sequence < sequence else 0
            ahead = [one for one in lines[line] if behind < one < sequence]
            blocking = [(messages[one].leaves, one) for one in ahead if messages[one].leaves > lt]
            if blocking and lt >= shard.known_from:
                held = states.get(max(blocking)[1]) == State.IN_FLIGHT
                found.add(("group_exclusion" if held else "group_order", number, sequence, lt))
            last[line] = (receive, sequence)
        states[sequence] = after(event)[0]
    return found


def key_rules(number: int, shard: Shard, policies: Policies, walk: Walk) -> set[Finding]:
    found: set[Finding] = set()
    known: dict[tuple[int, str, str], tuple[Event, int | None]] = {}
    states: dict[int, State] = {}
    for event in shard.events:
        kind, sequence = event["event"], event["sequence"]
        if kind == "queue_purged":
            known = {key: value for key, value in known.items() if key[0] != event["queue"]}
        if kind == "sent" and event["dedup_key"] is not None and not event["flags"] & SentFlag.FANNED:
            policy = policies.at(event)
            key = (event["queue"], event["group"] if policy.get("dedup_per_group") else "", event["dedup_key"])
            if key in known:
                first, window_ms = known[key]
                end = first["time"] // 1000 + (window_ms or 0)
                inside = window_ms is not None and event["time"] // 1_000_000 < -(-end // 1000)
                lives = first["flags"] & SentFlag.DEDUP_LIVES
                alive = states[first["sequence"]] not in (State.DELETED, State.DEAD)
                if alive if lives else inside:
                    found.add(("duplicate", number, sequence, event["logical_time"]))
            known[key] = (event, policy.get("dedup_window_ms"))
        if kind in OF_MESSAGES and sequence is not None:
            states[sequence] = after(event)[0]
    return found


def topic_rules(number: int, shard: Shard) -> set[Finding]:
    """Walk each frame: publishes, then their copies, until the next publishes."""
    found: set[Finding] = set()
    published: list[Event] = []
    copies: list[Event] = []

    def end() -> None:
        written = Counter(copy["subscription"] for copy in copies)
        told = sum(event["messages"] for event in published)
        if (published or copies) and (len(copies) != told or max(written.values(), default=0) > len(published)):
            found.add(("copies", number, None, (copies or published)[-1]["logical_time"]))
        published.clear()
        copies.clear()

    frame = None
    for event in shard.events:
        if event["frame"] != frame or (event["event"] == "published" and copies):
            end()
        frame = event["frame"]
        if event["event"] == "published":
            published.append(event)
        elif event["event"] == "sent" and event["flags"] & SentFlag.FANNED:
            copies.append(event)
    end()
    return found


def schedule_rules(number: int, shard: Shard) -> set[Finding]:
    """Firings and their messages, and the last due time of each schedule."""
    found: set[Finding] = set()
    sent = {
        (event["frame"], event["queue"], event["sequence"]): event
        for event in shard.events
        if event["event"] == "sent" and event["flags"] & SentFlag.SCHEDULED
    }
    keyed: set[tuple[int, int]] = set()
    last: dict[tuple[int, str], int] = {}
    fired: set[tuple[int, int, int]] = set()
    for event in shard.events:
        sequence, lt = event["number"], event["logical_time"]
        if event["event"] == "sent" and event["flags"] & SentFlag.DEDUPLICATED:
            keyed.add((event["queue"], event["sequence"]))
        if event["event"] != "schedule_set":
            continue
        change = json.loads(event["detail"])
        line = (event["queue"], change["name"])
        if change.get("gone") or ("created_ms" in change and not change["fired"]):
            last.pop(line, None)
        if sequence > 0:
            key = (event["frame"], event["queue"], sequence)
            fired.add(key)
            if key not in sent and key[1:] not in keyed and shard.known_from == 0:
                found.add(("firing", number, sequence, lt))
            if "last_due_ms" in change:
                if change["last_due_ms"] <= last.get(line, -1):
                    found.add(("due_time", number, sequence, lt))
                last[line] = change["last_due_ms"]
    return found | {
        ("firing", number, key[2], event["logical_time"]) for key, event in sent.items() if key not in fired
    }


def channel_rules(events: list[Event], shards: dict[int, Shard]) -> set[Finding]:
    """Entries by source, destination and number; within one shard, by the place of the owed row."""
    entries: dict[tuple[int, int, int], dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in sorted(events, key=lambda one: (one["shard"], one["logical_time"])):
        kind, shard, other = event["event"], event["shard"], event["other_shard"]
        if kind in ("owed", "arrived", "settled"):
            source, destination = (other, shard) if kind == "arrived" else (shard, other)
            place = event["logical_time"] - ("owed", "arrived", "settled").index(kind)
            entries[source, destination, event["channel_number"] if shard != other else place][kind].append(event)
    found: set[Finding] = set()
    channels: dict[tuple[int, int], list[int]] = defaultdict(list)
    for source, destination, entry in sorted(entries):
        channels[source, destination].append(entry)
    for (source, destination), numbers in channels.items():
        last_owed: Event | None = None
        last_arrived: Event | None = None
        owed_numbers = [one["channel_number"] for at in numbers for one in entries[source, destination, at]["owed"]]
        first_owed = min(owed_numbers, default=NEVER)
        first_arrived = min((one for one in numbers if entries[source, destination, one]["arrived"]), default=NEVER)
        for entry in numbers:
            one = entries[source, destination, entry]
            owed, arrived, settled = one["owed"], one["arrived"], one["settled"]
            ends = (shards.get(source), shards.get(destination))
            inside = source == destination
            kinds = set()
            if max(len(owed), len(arrived), len(settled)) > 1:
                kinds.add("channel_gap")
            if owed:
                number, place = owed[-1]["channel_number"], owed[-1]["logical_time"]
                if settled and settled[-1]["channel_number"] != number:
                    kinds.add("channel_gap")
                if last_owed is None:
                    if ends[0] and ends[0].known_from == 0 and number != 1:
                        kinds.add("channel_gap")
                elif number != last_owed["channel_number"] + 1 or place < last_owed["logical_time"]:
                    kinds.add("channel_gap")
                last_owed = owed[-1]
            if arrived and not inside:
                if last_arrived is None:
                    if ends[1] and ends[1].known_from == 0 and entry != 1:
                        kinds.add("channel_gap")
                elif entry != last_arrived["channel_number"] + 1 or (
                    arrived[-1]["logical_time"] < last_arrived["logical_time"]
                ):
                    kinds.add("channel_gap")
                last_arrived = arrived[-1]
            if arrived and owed:
                slot = arrived[-1]["source_slot"]
                if owed[-1]["other_queue"] != arrived[-1]["queue"] or slot not in (None, owed[-1]["slot"]):
                    kinds.add("never_owed")
            elif arrived and (inside or _reaches(ends[0], arrived[-1], entry >= first_owed)):
                kinds.add("never_owed")
            if settled and not arrived and (inside or _reaches(ends[1], settled[-1], entry >= first_arrived)):
                kinds.add("never_arrived")
            if settled and arrived:
                taken = not arrived[-1]["flags"] & ArrivedFlag.REFUSED
                if taken != (settled[-1]["reason"] == "accepted"):
                    kinds.add("settled_otherwise")
            if kinds:
                shard = source if owed or settled else destination
                sequence = max((event["sequence"] for event in owed + settled), default=None)
                place = max(each[-1]["logical_time"] for each in (owed, arrived, settled) if each)
                found |= {(kind, shard, sequence, place) for kind in kinds}
    return found


def _reaches(shard: Shard | None, event: Event, later: bool) -> bool:
    """Does the other shard's history go far enough that it would tell?"""
    if shard is None:
        return False
    return (shard.known_from == 0 or later) and shard.last_time > event["time"] + BEHIND_US

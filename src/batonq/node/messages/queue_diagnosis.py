"""Why the messages of a queue wait: a pure diagnosis over figures. CAUSES lists every cause that it knows.

Each cause is found by a function that gets the figures and returns a finding, or None. Findings come in the order of
the table: what stops a queue altogether comes before what slows it down, and notes come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from batonq.core.commands import Counters
from batonq.core.records import State
from batonq.node.clock import clock_time, duration
from batonq.node.messages.queue_figures import FailingMessage, GroupFigures, LockedGroup
from batonq.quantities import plural

CAUSE = "cause"
NOTE = "note"
BURST_FACTOR = 2.0  # producers send so many times what they sent before
SLOW_FACTOR = 2.0  # consumers take so many times as long as before
FEW_PER_S = 0.1
FAILING_SHARE = 0.5  # of receives
PACED_SHARE = 0.8  # deliveries this near to the cap are held back by it
POISON_RECEIVES = 5
POISON_SHARE = 0.1  # with more failing messages than this, the messages are not to blame
POISON_MAX = 3
HOT_SHARE = 0.5
HOT_MIN = 10  # messages
GROWS_SHARE = 1.05  # producers are ahead of consumers

KEEPS_UP_MS = 60_000  # consumers that are behind by less than this keep up

Value = int | float | str


class Flow(NamedTuple):
    """Messages per second, and how long consumers took for a message; None: nothing is known."""

    sent: float = 0.0
    received: float = 0.0
    acked: float = 0.0
    retried: float = 0.0
    handling_ms: float | None = None


class Figures(NamedTuple):
    """Everything that a diagnosis is made from."""

    queue: str
    now_ms: int
    counters: Counters
    fifo: bool = False
    paused: str = ""  # delivery, sends, both; empty: not paused
    deliveries_per_s: int = 0
    only_group: str = ""
    priority_min: int = 0
    in_flight_max: int = 0
    at_in_flight_limit: bool = False  # on one of the queue's shards at least
    max_receives: int = 0
    dead_letter_queue: str = ""
    deliverable: int = 0  # messages that a receive would get now
    paced: bool = False  # the cap holds messages back now
    waiting_receives: int = 0
    consumers: int = 0  # that have polled lately
    polled_ms: int = 0  # when a consumer last polled; 0: not since the server started
    now: Flow = Flow()
    before: Flow | None = None  # None: the server has not run long enough
    examined: int = 0
    failing: int = 0
    worst: FailingMessage | None = None
    locked: LockedGroup | None = None
    groups: tuple[GroupFigures, ...] = ()
    next_visible_ms: int = 0

    @property
    def messages(self) -> int:
        counters = self.counters
        return counters.visible + counters.in_flight + counters.delayed

    @property
    def delivery_paused(self) -> bool:
        return self.paused in ("delivery", "both")

    @property
    def attended(self) -> bool:
        """Whether consumers are there: they wait, have received lately, or hold messages."""
        return bool(self.waiting_receives or self.consumers or self.now.received or self.counters.in_flight)


class Finding(NamedTuple):
    cause: str  # a name of CAUSES
    kind: str  # CAUSE, or NOTE for what explains nothing by itself
    text: str  # one or two sentences with the figures
    action: str  # what to do
    figures: dict[str, Value]


class Cause(NamedTuple):
    name: str  # stable: it is in the REST API and in the docs
    title: str
    find: Callable[[Figures], Finding | None]


class Diagnosis(NamedTuple):
    text: str  # one sentence
    findings: list[Finding]


def diagnose(figures: Figures) -> Diagnosis:
    findings = [found for cause in CAUSES if (found := cause.find(figures)) is not None]
    if not findings:
        findings = [_fine(figures)]
    return Diagnosis(findings[0].text, findings)


# --- what an operator has set --------------------------------------------------------------------


def _paused(figures: Figures) -> Finding | None:
    if not figures.delivery_paused:
        return None
    count = figures.counters.visible
    also = " Sends are paused too, so the queue takes no messages." if figures.paused == "both" else ""
    return Finding(
        "paused",
        CAUSE,
        f"Delivery is paused: {_wait(count)}, and receives get nothing.{also}",
        f"Resume it: `baton queue resume {figures.queue}`.",
        {"visible": count, "paused": figures.paused},
    )


def _draining(figures: Figures) -> Finding | None:
    if figures.paused != "sends":
        return None
    left = figures.messages
    if not left:
        text = "Sends are paused, and the queue is empty."
    else:
        text = f"Sends are paused while deliveries go on: {plural(left, 'message')} left{_eta(figures)}."
    return Finding(
        "draining",
        NOTE,
        text,
        f"Let sends begin again: `baton queue resume {figures.queue}`.",
        {"left": left, "paused": figures.paused},
    )


def _restricted(figures: Figures) -> Finding | None:
    only: list[str] = []
    if figures.only_group:
        only.append(f"of the group {figures.only_group!r}")
    if figures.priority_min:
        only.append(f"of priority {figures.priority_min} or above")
    if not only:
        return None
    visible = figures.counters.visible
    stuck = bool(visible) and not figures.deliverable and not figures.delivery_paused
    text = f"Only messages {' and '.join(only)} are delivered"
    text += f": none of the {plural(visible, 'waiting message')} is among them." if stuck else "; all others wait."
    return Finding(
        "restricted",
        CAUSE if visible else NOTE,
        text,
        f"Deliver everything again: `baton queue resume {figures.queue}`.",
        {"visible": visible, "onlyGroup": figures.only_group, "minimumPriority": figures.priority_min},
    )


def _paced(figures: Figures) -> Finding | None:
    cap, visible = figures.deliveries_per_s, figures.counters.visible
    if not cap or figures.delivery_paused:
        return None
    held_back = figures.paced or figures.now.received >= cap * PACED_SHARE
    if not visible or not (held_back or visible > cap):
        return None
    last = duration(visible * 1000 // cap)
    return Finding(
        "paced",
        CAUSE if held_back else NOTE,
        f"Deliveries are capped at {cap:,} per second: {_wait(visible)}, the last of them for about {last}.",
        f"Raise the cap, or remove it: `baton queue pace {figures.queue} off`.",
        {"deliveriesPerSecond": cap, "visible": visible, "receivedPerSecond": round(figures.now.received, 3)},
    )


# --- what stops a queue --------------------------------------------------------------------------


def _in_flight_limit(figures: Figures) -> Finding | None:
    counters = figures.counters
    if not figures.at_in_flight_limit or not counters.visible:
        return None
    return Finding(
        "in-flight-limit",
        CAUSE,
        f"The queue has {plural(counters.in_flight, 'message')} in flight, its limit on a shard, so nothing more is "
        "delivered until consumers delete or return some.",
        f"Find consumers that hold messages without finishing them (`baton worker list {figures.queue}`), or raise "
        "the queue's maximum in flight.",
        {"inFlight": counters.in_flight, "maxInFlight": figures.in_flight_max, "visible": counters.visible},
    )


def _consumers_gone(figures: Figures) -> Finding | None:
    visible = figures.counters.visible
    if not visible or figures.attended or figures.delivery_paused:
        return None
    if figures.polled_ms:
        since = duration(max(0, figures.now_ms - figures.polled_ms))
        text = f"No consumer receives from the queue: the last one polled {since} ago. {_wait(visible)}."
    elif figures.counters.received:
        text = f"No consumer receives from the queue, though some did earlier. {_wait(visible)}."
    else:
        text = f"No consumer has ever received from the queue. {_wait(visible)}."
    return Finding(
        "consumers-gone",
        CAUSE,
        text,
        "Start consumers, or find out why they stopped: look at their logs and their connection to the server.",
        {"visible": visible, "received": figures.counters.received, "lastPollAtMs": figures.polled_ms},
    )


def _group_locked(figures: Figures) -> Finding | None:
    visible = figures.counters.visible
    restricted = figures.only_group or figures.priority_min or figures.paced or figures.at_in_flight_limit
    if not figures.fifo or not visible or figures.deliverable or figures.delivery_paused or restricted:
        return None
    values: dict[str, Value] = {"visible": visible, "inFlight": figures.counters.in_flight}
    text = f"{_wait(visible)}, and each is behind an earlier message of its group that is not finished."
    action = "Wait until the earlier messages are deleted, or end the leases of consumers that hang."
    locked = figures.locked
    if locked is not None:
        state = {State.IN_FLIGHT: f"is held by {locked.holder}", State.DELAYED: "is delayed"}
        how = state.get(State(locked.state), "is being moved to another queue")
        until = f" until {clock_time(locked.until_ms, figures.now_ms)}" if locked.state != State.OWED else ""
        behind = plural(locked.waiting - 1, "message")
        text += f" Group {locked.name!r} has {behind} behind {locked.message_id}, which {how}{until}."
        values |= {"group": locked.name, "message": locked.message_id, "behind": locked.waiting - 1}
        action = f"Look at the first message: `baton explain {figures.queue} {locked.message_id}`."
    return Finding("group-locked", CAUSE, text, action, values)


# --- what slows a queue down ---------------------------------------------------------------------


def _poison(figures: Figures) -> Finding | None:
    worst = figures.worst
    few = figures.failing <= max(POISON_MAX, figures.examined * POISON_SHARE)
    if worst is None or worst.receives < POISON_RECEIVES or not few:
        return None
    error = f"; its last failure was {worst.error_class or worst.reason}" if worst.error_class or worst.reason else ""
    group = " In a FIFO queue it holds up its group." if figures.fifo else ""
    if figures.dead_letter_queue:
        then = f"Let it go to {figures.dead_letter_queue} sooner: lower maxReceiveCount."
    else:
        then = "Give the queue a dead-letter queue, which takes such messages away."
    return Finding(
        "poison-message",
        CAUSE,
        f"Message {worst.message_id} was received {worst.receives} times and is still there{error}.{group}",
        f"Look at it: `baton explain {figures.queue} {worst.message_id}`. {then}",
        {
            "message": worst.message_id,
            "receives": worst.receives,
            "errorClass": worst.error_class,
            "failing": figures.failing,
        },
    )


def _failing(figures: Figures) -> Finding | None:
    now = figures.now
    many = figures.failing > max(POISON_MAX, figures.examined * POISON_SHARE)
    share = now.retried / now.received if now.received else 0.0
    if not many and not (share > FAILING_SHARE and now.retried >= FEW_PER_S and figures.counters.visible):
        return None
    worst = figures.worst
    error = (
        f" Their failures say {worst.error_class or worst.reason}."
        if worst and (worst.error_class or worst.reason)
        else ""
    )
    return Finding(
        "failing",
        CAUSE,
        f"Most messages fail: {now.retried:,.1f} per second are returned, {share:.0%} of those received, and "
        f"{figures.failing} of the oldest {figures.examined} were received again and again.{error}",
        "Mend what the consumers depend on: something downstream is probably down. `baton queue pause "
        f"{figures.queue}` saves the messages' receives meanwhile.",
        {
            "retriedPerSecond": round(now.retried, 3),
            "receivedPerSecond": round(now.received, 3),
            "failing": figures.failing,
            "examined": figures.examined,
        },
    )


def _slow_downstream(figures: Figures) -> Finding | None:
    before, now = figures.before, figures.now
    if before is None or not figures.counters.visible or now.handling_ms is None or before.handling_ms is None:
        return None
    if now.handling_ms < SLOW_FACTOR * max(before.handling_ms, 1.0) or now.acked >= now.sent:
        return None
    return Finding(
        "slow-downstream",
        CAUSE,
        f"Consumers take {duration(int(now.handling_ms))} per message; before, they took "
        f"{duration(int(before.handling_ms))}. They finish {now.acked:,.1f} messages per second, and producers send "
        f"{now.sent:,.1f}.",
        "Find what the consumers wait for: a database, an API, a lock. More consumers help only if it has room.",
        {
            "handlingMs": round(now.handling_ms),
            "handlingBeforeMs": round(before.handling_ms),
            "ackedPerSecond": round(now.acked, 3),
            "sentPerSecond": round(now.sent, 3),
        },
    )


def _hot_group(figures: Figures) -> Finding | None:
    total = figures.messages
    if not figures.fifo or total < HOT_MIN or not figures.groups:
        return None
    hot = max(figures.groups, key=lambda group: group.waiting)
    if hot.waiting < HOT_SHARE * total:
        return None
    return Finding(
        "hot-group",
        CAUSE,
        f"Group {hot.name!r} has {hot.waiting:,} of the {plural(total, 'message')}. The messages of a FIFO group are "
        "delivered in order, so more consumers do not help it.",
        "Make the group's messages cheaper, or give producers more groups, such as one per customer instead of one "
        "for all.",
        {"group": hot.name, "waiting": hot.waiting, "messages": total, "shareOfSends": round(hot.share, 3)},
    )


def _producer_burst(figures: Figures) -> Finding | None:
    before, now = figures.before, figures.now
    if before is None or figures.paused or now.sent < FEW_PER_S or now.sent <= now.acked * GROWS_SHARE:
        return None
    if now.sent < BURST_FACTOR * max(before.sent, FEW_PER_S / 2):
        return None
    return Finding(
        "producer-burst",
        CAUSE,
        f"Producers send {now.sent:,.1f} messages per second; before, they sent {before.sent:,.1f}. Consumers finish "
        f"{now.acked:,.1f}.",
        "Add consumers until the burst is over, or slow its producer down.",
        {
            "sentPerSecond": round(now.sent, 3),
            "sentBeforePerSecond": round(before.sent, 3),
            "ackedPerSecond": round(now.acked, 3),
        },
    )


def _delayed(figures: Figures) -> Finding | None:
    counters = figures.counters
    if not counters.delayed or counters.delayed < counters.visible + counters.in_flight:
        return None
    when = figures.next_visible_ms
    first = f" The first becomes visible at {clock_time(when, figures.now_ms)}." if when else ""
    return Finding(
        "delayed",
        CAUSE,
        f"{counters.delayed:,} of the {plural(figures.messages, 'message')} {'is' if counters.delayed == 1 else 'are'} "
        f"delayed, by the queue, their sender, or a retry.{first}",
        "Wait, or deliver them now: `baton message retry` for one, a shorter delay for new ones.",
        {"delayed": counters.delayed, "visible": counters.visible, "nextVisibleAtMs": when},
    )


def _too_few_consumers(figures: Figures) -> Finding | None:
    now = figures.now
    if not figures.counters.visible or not figures.attended or figures.paused or figures.paced:
        return None
    if now.sent < FEW_PER_S or now.sent <= now.acked * GROWS_SHARE:
        return None
    if _producer_burst(figures) is not None or _slow_downstream(figures) is not None:
        return None
    return Finding(
        "too-few-consumers",
        CAUSE,
        f"Producers send {now.sent:,.1f} messages per second, and consumers finish {now.acked:,.1f}.",
        "Add consumers, or let each take more at once.",
        {"sentPerSecond": round(now.sent, 3), "ackedPerSecond": round(now.acked, 3), "consumers": figures.consumers},
    )


def _shrinking(figures: Figures) -> Finding | None:
    now, visible = figures.now, figures.counters.visible
    if not visible or figures.paused or now.acked <= now.sent:
        return None
    return Finding(
        "shrinking",
        NOTE,
        f"The backlog shrinks: consumers finish {now.acked:,.1f} messages per second, and producers send "
        f"{now.sent:,.1f}{_eta(figures)}.",
        "Wait, or add consumers.",
        {"visible": visible, "sentPerSecond": round(now.sent, 3), "ackedPerSecond": round(now.acked, 3)},
    )


def _fine(figures: Figures) -> Finding:
    counters = figures.counters
    if not figures.messages:
        text = "The queue is empty."
    elif not counters.visible:
        text = f"No message waits; {plural(counters.in_flight, 'message')} in flight."
    elif counters.oldest_visible_ms > figures.now_ms - KEEPS_UP_MS:
        text = f"{_wait(counters.visible)}, and consumers keep up."
    else:
        age = duration(figures.now_ms - counters.oldest_visible_ms)
        text = f"{_wait(counters.visible)}, the oldest for {age}; consumers finish {figures.now.acked:,.1f} per second."
    return Finding("fine", NOTE, text, "Nothing to do.", {"visible": counters.visible, "inFlight": counters.in_flight})


def _wait(count: int) -> str:
    return f"{plural(count, 'message')} {'waits' if count == 1 else 'wait'}"


def _eta(figures: Figures) -> str:
    faster = figures.now.acked - (0.0 if figures.paused else figures.now.sent)
    return f", for about {duration(int(figures.messages / faster * 1000))} at this rate" if faster > 0 else ""


CAUSES: tuple[Cause, ...] = (
    Cause("paused", "Delivery is paused", _paused),
    Cause("restricted", "Only some messages are delivered", _restricted),
    Cause("paced", "Deliveries are capped", _paced),
    Cause("in-flight-limit", "The limit of messages in flight is reached", _in_flight_limit),
    Cause("consumers-gone", "Consumers are gone", _consumers_gone),
    Cause("group-locked", "Groups are locked", _group_locked),
    Cause("poison-message", "One message fails again and again", _poison),
    Cause("failing", "Most messages fail", _failing),
    Cause("slow-downstream", "Consumers have become slow", _slow_downstream),
    Cause("hot-group", "One group has most messages", _hot_group),
    Cause("producer-burst", "Producers send more than before", _producer_burst),
    Cause("delayed", "Most messages are delayed", _delayed),
    Cause("too-few-consumers", "Consumers do not keep up", _too_few_consumers),
    Cause("draining", "The queue is being drained", _draining),
    Cause("shrinking", "The backlog shrinks", _shrinking),
)
FINE = "fine"
NAMES = (*(cause.name for cause in CAUSES), FINE)


def merged_groups(parts: Iterable[Iterable[GroupFigures]], limit: int) -> tuple[GroupFigures, ...]:
    """The busiest groups of several shards: a FIFO group is on one of them, others may be on several."""
    found: dict[str, GroupFigures] = {}
    total = 0
    for part in parts:
        own = [*part]
        total += own[0].sent if own else 0
        for group in own:
            known = found.get(group.name, GroupFigures(group.name, 0.0, 0))
            counted = known.share + group.share * group.sent
            found[group.name] = GroupFigures(group.name, counted, known.waiting + group.waiting)
    ranked = [group._replace(share=group.share / total if total else 0.0, sent=total) for group in found.values()]
    return tuple(sorted(ranked, key=lambda group: (-group.share, group.name))[:limit])

"""The alarm book: which alarms are active, which were acknowledged, and which have ended.

Every part of a node that notices a problem puts an alarm here and clears it when the problem is over. The rules do the
same (see rules.py). Listeners learn of every change; the log gets them here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from batonq.errors import NotFound
from batonq.node import events
from batonq.node.alarms.kinds import KINDS, SEVERITIES

KEPT_MS = 3_600_000  # an alarm that no rule watches is over when nobody has renewed it for so long
REMEMBERED_MS = 600_000  # how long after a start an alarm of the time before counts as the same one
HISTORY_MAX = 500
TEXT_LENGTH_MAX = 1_000
NOTE_LENGTH_MAX = 500
OBJECT_LENGTH_MAX = 200
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9._@-]+")

RAISED = "raised"
CLEARED = "cleared"
ACKNOWLEDGED = "acknowledged"
TEST = "test"


class Alarm(msgspec.Struct, kw_only=True):
    """One condition: from the time when it was raised until it ends. `ruled`: a rule raised it, and ends it."""

    id: str  # of the condition; stable, and usable in a URL
    kind: str
    severity: str
    text: str
    raised_ms: int
    last_ms: int  # when it was last seen
    queue: str = ""
    account: str = ""  # of the queue
    node: str = ""
    label: str = ""  # the queue's own word for its alarms
    count: int = 1
    level: int = 1  # 2: it has escalated
    value: float | None = None
    threshold: float | None = None
    ruled: bool = False
    ended_ms: int = 0
    acknowledged_ms: int = 0
    acknowledged_by: str = ""
    note: str = ""

    @property
    def remedy(self) -> str:
        return KINDS[self.kind].remedy_for(self.queue)

    @property
    def runbook(self) -> str:
        return KINDS[self.kind].runbook


class Saved(msgspec.Struct, kw_only=True):
    """What is kept over a restart."""

    version: int = 1
    active: list[Alarm] = []
    history: list[Alarm] = []
    usual: dict[str, tuple[float, int]] = {}  # per queue: its usual depth, and the hours of history behind it


Listener = Callable[[str, Alarm], None]


class AlarmBook:
    """`node` names this node where a server has several, otherwise it is empty.

    When the book is full, an alarm is only added in place of a less severe one.
    """

    def __init__(self, now_ms: Callable[[], int], limit: int, node: str = "") -> None:
        self.node = node
        self.raised = 0  # in total, for the metrics
        self.left_out = 0  # alarms that found no room
        self.listeners: list[Listener] = []
        self.changes = 0  # grows with every change that is worth saving
        self.evaluating = True  # False: another node's rules raise alarms, and what this node's rules raised is old
        self.history: deque[Alarm] = deque(maxlen=HISTORY_MAX)  # newest first
        self._now_ms = now_ms
        self._limit = limit
        self._least_rank = -1  # of a full book: no alarm is less severe; -1: not known
        self._alarms: dict[str, Alarm] = {}
        self._remembered: dict[str, Alarm] = {}  # alarms of the time before the start that were not seen again yet
        self._remembered_until_ms = 0

    # --- raising and clearing

    def put(
        self,
        kind: str,
        text: str,
        *,
        of: str | int = "",
        severity: str = "",
        queue: str = "",
        account: str = "",
        label: str = "",
    ) -> None:
        """Raise an alarm, or renew it. `of` names the object, if there can be several; a queue needs no other name."""
        alarm = Alarm(
            id=self.id_of(kind, of if of != "" else queue),
            kind=kind,
            severity=severity or KINDS[kind].severity,
            text=text[:TEXT_LENGTH_MAX],
            raised_ms=self._now_ms(),
            last_ms=self._now_ms(),
            queue=queue,
            account=account,
            node=self.node,
            label=label,
        )
        known = self._alarms.get(alarm.id)
        if known is not None and known.text != alarm.text and known.severity == alarm.severity:
            _log(alarm)
        self.renew(alarm)

    def clear(self, kind: str, of: str | int = "") -> None:
        self.end(self.id_of(kind, of))

    def id_of(self, kind: str, of: str | int = "") -> str:
        """The id of an alarm that this node raises itself: it names the node, where there are several."""
        return alarm_id(kind, of) + (f"@{self.node}" if self.node else "")

    def renew(self, alarm: Alarm) -> None:
        """Raise an alarm, or replace what is known of it. Acknowledgements stay, unless it has become more severe."""
        self.raised += not alarm.ruled
        known = self._alarms.get(alarm.id)
        if known is None and (before := self._remembered.pop(alarm.id, None)) is not None:
            known = self._alarms[alarm.id] = before
            self.changes += 1
        if known is None:
            self._add(alarm)
            return
        worse = _rank(alarm) > _rank(known)
        changed = alarm.severity != known.severity
        known.last_ms, known.text, known.severity, known.level = (
            alarm.last_ms,
            alarm.text,
            alarm.severity,
            alarm.level,
        )
        known.value, known.threshold, known.label = alarm.value, alarm.threshold, alarm.label
        known.count += not alarm.ruled
        if worse:
            known.acknowledged_ms, known.acknowledged_by, known.note = 0, "", ""
            self.raised += alarm.ruled
            _log(known)
            self._tell(RAISED, known)
        elif changed:
            self.changes += 1
            self._least_rank = -1

    def _add(self, alarm: Alarm) -> None:
        if len(self._alarms) >= self._limit and not self._make_room(_rank(alarm)):
            self.left_out += 1
            return
        self._alarms[alarm.id] = alarm
        self.raised += alarm.ruled
        _log(alarm)
        self._tell(RAISED, alarm)

    def _make_room(self, rank: int) -> bool:
        """End the least severe alarm in favour of one of this rank, if that is more severe."""
        if rank <= self._least_rank:
            return False
        self._forget_old()
        if len(self._alarms) < self._limit:
            return True
        least = min(self._alarms.values(), key=lambda each: (_rank(each), each.last_ms))
        if _rank(least) >= rank:
            self._least_rank = _rank(least)
            return False
        self.end(least.id)
        return True

    def end(self, id: str) -> None:
        """The condition is over."""
        alarm = self._alarms.pop(id, None)
        if alarm is None:
            return
        self._least_rank = -1
        alarm.ended_ms = self._now_ms()
        self.history.appendleft(alarm)
        events.info("alarm_cleared", f"Alarm over: {alarm.text}", alarm=alarm.id)
        self._tell(CLEARED, alarm)

    def acknowledge(self, id: str, by: str, note: str = "") -> Alarm:
        """Record that somebody looks after an active alarm. Raises NotFound."""
        alarm = self._alarms.get(id)
        if alarm is None:
            raise NotFound(f"No alarm {id[:OBJECT_LENGTH_MAX]!r} is active. List the active alarms to see their ids.")
        alarm.acknowledged_ms, alarm.acknowledged_by, alarm.note = self._now_ms(), by, note[:NOTE_LENGTH_MAX]
        events.info("alarm_acknowledged", f"Alarm acknowledged by {by}: {alarm.text}", alarm=id)
        self._tell(ACKNOWLEDGED, alarm)
        return alarm

    # --- reading

    def active(self) -> list[Alarm]:
        """The active alarms: the most severe first, then the newest."""
        self._forget_old()
        return sorted((alarm for alarm in self._alarms.values() if self.evaluating or not alarm.ruled), key=urgency)

    def get(self, id: str) -> Alarm | None:
        return self._alarms.get(id)

    def ruled(self) -> list[Alarm]:
        return [alarm for alarm in self._alarms.values() if alarm.ruled]

    def _forget_old(self) -> None:
        now_ms = self._now_ms()
        for alarm in list(self._alarms.values()):
            if not alarm.ruled and alarm.last_ms < now_ms - KEPT_MS:
                self.end(alarm.id)
        if self._remembered and now_ms > self._remembered_until_ms:
            for alarm in self._remembered.values():
                alarm.ended_ms = alarm.last_ms
                self.history.appendleft(alarm)
            self._remembered.clear()
            self.changes += 1

    def _tell(self, event: str, alarm: Alarm) -> None:
        self.changes += 1
        for listener in self.listeners:
            listener(event, alarm)

    # --- restarts, and another node's rules

    def saved(self) -> Saved:
        active = [*self._alarms.values(), *self._remembered.values()]
        return Saved(active=active, history=list(self.history))

    def restore(self, saved: Saved) -> None:
        """Continue where the node stopped. What a rule raised is active until its rule says otherwise. Anything else
        becomes active when it is seen again.
        """
        now_ms = self._now_ms()
        self.history.extend(sorted(saved.history, key=lambda alarm: -alarm.ended_ms)[:HISTORY_MAX])
        for alarm in saved.active[: self._limit]:
            alarm.raised_ms, alarm.last_ms = min(alarm.raised_ms, now_ms), min(alarm.last_ms, now_ms)
            if alarm.ruled:
                self._alarms.setdefault(alarm.id, alarm)
            else:
                self._remembered[alarm.id] = alarm
        for id in self._remembered.keys() & self._alarms.keys():  # already seen again, while the node started
            known, before = self._alarms[id], self._remembered.pop(id)
            known.raised_ms, known.count = before.raised_ms, known.count + before.count
            known.acknowledged_ms, known.acknowledged_by = before.acknowledged_ms, before.acknowledged_by
            known.note = before.note
        self._remembered_until_ms = now_ms + REMEMBERED_MS

    def adopt(self, alarms: Iterable[Alarm]) -> None:
        """Replace the alarms of the rules by those of the node that evaluated the rules until now."""
        self._least_rank = -1
        for id in [alarm.id for alarm in self.ruled()]:
            del self._alarms[id]
        for alarm in alarms:
            if len(self._alarms) < self._limit:
                self._alarms[alarm.id] = alarm
        self.changes += 1


def alarm_id(kind: str, of: str | int = "") -> str:
    """An id that is usable in a URL: the kind and the object."""
    name = _NOT_IN_ID.sub("-", str(of))[:OBJECT_LENGTH_MAX]
    return f"{kind}.{name}" if name else kind


def queue_id(name: str, account: str, own_account: str) -> str:
    """How alarms name a queue: with its account, unless that is the server's own."""
    return name if account == own_account else f"{name}@{account}"


def merged(alarms: Iterable[Alarm]) -> list[Alarm]:
    """The alarms of several nodes: the most severe first, then the newest."""
    return sorted({alarm.id: alarm for alarm in alarms}.values(), key=urgency)


def urgency(alarm: Alarm) -> tuple[int, int, str]:
    """Sorts the most severe alarms first, then the newest."""
    return -_rank(alarm), -alarm.raised_ms, alarm.id


def _rank(alarm: Alarm) -> int:
    return SEVERITIES.index(alarm.severity)


def _log(alarm: Alarm) -> None:
    fields = {"queue": alarm.queue} if alarm.queue else {}
    events.warning("alarm", f"Alarm: {alarm.text}", alarm=alarm.id, severity=alarm.severity, **fields)

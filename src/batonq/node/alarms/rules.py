"""The rules that raise and end alarms: (readings, previous state, now) → what is raised and what has ended.

Nothing here waits, reads a clock or does I/O. A rule says how far a condition has gone: `reached` is the highest level
whose mark is passed, `kept` the highest level that is not clearly over yet. The marks of the two differ, and both must
last for a time, so that an alarm does not come and go with every message. Level 1 is the alarm, level 2 its escalation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from batonq.core.policy import PAUSES_DELIVERY
from batonq.node.alarms.book import Alarm, alarm_id
from batonq.node.alarms.failing import Failed, FailedReceives
from batonq.node.alarms.kinds import KINDS, label_of, severity_of
from batonq.node.alarms.usual import UsualDepths
from batonq.node.clock import duration
from batonq.quantities import plural

STATES_MAX = 50_000
SLA_SHARES = (0.8, 1.0)
SLA_OVER = (0.7, 0.9)
RETENTION_SHARES = (0.8, 0.95)
RETENTION_OVER = (0.75, 0.9)
DEPTH_OVER = 0.8
UNUSUAL_MIN = 100  # no depth below this is unusual
UNUSUAL_OVER = 0.75
DISK_OVER = 0.02
MOVES = 4  # owners of a shard within the time below
MOVES_OVER = 2
MOVES_MS = 600_000
LAG_FRAMES = 1_000
LAG_OVER_FRAMES = 100
FAILING_SHARE = 0.5  # of the receives
FAILING_SHARE_OVER = 0.4
FAILING_PER_S = 1.0
FAILING_PER_S_OVER = 0.5
GIB = 1 << 30


class Marks(NamedTuple):
    """The thresholds that settings change."""

    depth: int = 100_000  # 0: none
    unusual_factor: float = 2.0  # 0: none
    no_consumer_s: float = 300.0
    disk_share: float = 0.8


class QueueFacts(NamedTuple):
    """What the rules need to know of a queue."""

    id: str  # its name, with @account for accounts other than the server's own
    name: str
    account: str
    visible: int
    in_flight: int
    delayed: int
    dead: int
    age_ms: int  # of the oldest message
    received: int  # in total
    waiting: int  # receives in progress
    dead_letters: bool = False  # it is another queue's dead-letter queue
    sla_ms: int = 0
    retention_ms: int = 0
    depth_mark: int = 0  # 0: the server's
    severity: str = ""  # the queue's attribute
    expires_to_dead_letter: bool = False
    returned: int = 0  # in total
    paused: str = ""  # delivery, sends or both


class ShardFacts(NamedTuple):
    number: int
    state: str
    why: str
    moves: int = 0  # changes of its owner in the last ten minutes


class NodeFacts(NamedTuple):
    name: str  # empty: the only one
    problem: str = ""  # it does not answer
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0  # 0: unknown
    lag: tuple[tuple[int, int], ...] = ()  # (shard, frames behind its owner)


class Condition(NamedTuple):
    """How far a condition has gone. It is only made when it holds or is not clearly over."""

    kind: str
    of: str
    reached: int
    kept: int
    text: Callable[[], str]  # only made for alarms that are raised
    value: float
    threshold: float
    queue: QueueFacts | None = None
    node: str = ""


class State(NamedTuple):
    level: int  # 0: not raised
    since_ms: int  # since when the level should be another
    towards: int  # that level


class Outcome(NamedTuple):
    seen: list[Alarm]  # raised, and not clearly over: as they are now
    ended: list[str]  # ids


NOTHING = State(0, 0, 0)


class Rules:
    """The state of all rules of a server. One evaluation: `begin`, `add` in any number of parts, `finish`."""

    def __init__(self, marks: Marks, usual: UsualDepths | None = None) -> None:
        self.marks = marks
        self.usual = usual or UsualDepths()
        self._failed = FailedReceives()
        self.states: dict[str, State] = {}  # by alarm id: only conditions that are raised or on their way
        self._consumers: dict[str, list[int]] = {}  # per queue: receives in total, and when a consumer was last seen
        self._raise_after_ms = {name: int(kind.raise_after_s * 1000) for name, kind in KINDS.items()}
        self._raise_after_ms["no-consumer"] = int(marks.no_consumer_s * 1000)
        self._clear_after_ms = {name: int(kind.clear_after_s * 1000) for name, kind in KINDS.items()}
        self._now_ms = 0
        self._alarms: list[Alarm] = []
        self._ended: list[str] = []
        self._seen: set[str] = set()

    def resume(self, alarms: Iterable[Alarm]) -> None:
        """Continue with alarms that are active already."""
        self.states = {alarm.id: State(alarm.level, 0, alarm.level) for alarm in alarms}
        for alarm in alarms:
            if alarm.kind == "consumer-gone":
                of = alarm.id.partition(".")[2]
                self._consumers.setdefault(of, [-1, alarm.raised_ms])

    # --- one evaluation

    def begin(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._alarms, self._ended, self._seen = [], [], set()

    def add_empty_queue(self, id: str, received: int, waiting: int) -> None:
        """A queue without messages needs only to be remembered."""
        self._consumer(id, received, waiting > 0)
        self.usual.observe(id, 0, self._now_ms)

    def add_queue(self, queue: QueueFacts) -> None:
        for condition in self._queue_conditions(queue):
            self._step(condition)

    def add_servers(self, shards: Iterable[ShardFacts], nodes: Iterable[NodeFacts]) -> None:
        for condition in (*_shard_conditions(shards), *self._node_conditions(nodes)):
            self._step(condition)

    def finish(self, queues: set[str], unread: set[str]) -> Outcome:
        """`queues` are the ids of all existing queues, `unread` those that could not be read this time: their alarms
        stay as they are. The alarms of a queue that was deleted end at once.
        """
        for id, state in list(self.states.items()):
            if id in self._seen:
                continue
            kind, _, of = id.partition(".")
            if of in unread:
                continue
            gone = KINDS[kind].about == "queue" and of not in queues
            if gone or self._change(id, kind, state, 0) is None:
                self._drop(id, state)
        if len(self._consumers) > len(queues):
            for of in self._consumers.keys() - queues:
                del self._consumers[of]
            self.usual.keep(queues)
            self._failed.keep(queues)
        return Outcome(self._alarms, self._ended)

    def _drop(self, id: str, state: State) -> None:
        self.states.pop(id, None)
        if state.level:
            self._ended.append(id)

    def _step(self, condition: Condition) -> None:
        # The name of a queue is usable in a URL as it is.
        of = condition.of
        id = f"{condition.kind}.{of}" if condition.queue is not None else alarm_id(condition.kind, of)
        state = self.states.get(id, NOTHING)
        wanted = condition.reached if condition.reached > state.level else min(state.level, condition.kept)
        new = self._change(id, condition.kind, state, wanted)
        self._seen.add(id)
        if new is None:
            self._drop(id, state)
        elif new.level:
            self._alarms.append(self._alarm(id, condition, new.level))

    def _change(self, id: str, kind: str, state: State, wanted: int) -> State | None:
        """The new state of a condition whose level should be `wanted`; None: there is nothing left to remember."""
        now_ms = self._now_ms
        if wanted == state.level:
            new = State(state.level, 0, state.level)
        else:
            rising = wanted > state.level
            going = state.towards != state.level and (state.towards > state.level) == rising
            since_ms = min(state.since_ms, now_ms) if going else now_ms  # a clock that was set back starts anew
            after_ms = (self._raise_after_ms if rising else self._clear_after_ms)[kind]
            done = now_ms - since_ms >= after_ms
            new = State(wanted, 0, wanted) if done else State(state.level, since_ms, wanted)
        if not new.level and not new.towards:
            return None
        if id in self.states or len(self.states) < STATES_MAX:
            self.states[id] = new
        return new

    def _alarm(self, id: str, condition: Condition, level: int) -> Alarm:
        kind, queue = KINDS[condition.kind], condition.queue
        word = queue.severity if queue is not None else ""
        return Alarm(
            id=id,
            kind=kind.name,
            severity=severity_of(kind, level, word),
            text=condition.text(),
            raised_ms=self._now_ms,
            last_ms=self._now_ms,
            queue=queue.name if queue is not None else "",
            account=queue.account if queue is not None else "",
            node=condition.node,
            label=label_of(word),
            level=level,
            value=condition.value,
            threshold=condition.threshold,
            ruled=True,
        )

    # --- queues

    def _queue_conditions(self, queue: QueueFacts) -> Iterator[Condition]:
        present, seen_ms = self._consumer(queue.id, queue.received, queue.waiting > 0 or queue.in_flight > 0)
        usual = self.usual.observe(queue.id, queue.visible, self._now_ms)
        failed = self._failed.observe(queue.id, queue.received, queue.returned, self._now_ms)
        if failed is not None and failed.share > FAILING_SHARE_OVER and failed.per_s >= FAILING_PER_S_OVER:
            yield _failing(queue, failed)
        if queue.dead_letters:
            waiting = queue.visible + queue.in_flight + queue.delayed
            if waiting:
                yield Condition(
                    "dead-letters",
                    queue.id,
                    1,
                    1,
                    lambda: f"{queue.name} has {plural(waiting, 'dead letter')}.",
                    waiting,
                    0,
                    queue,
                )
        if queue.dead:
            yield Condition(
                "dead-messages",
                queue.id,
                1,
                1,
                lambda: f"{queue.name} has {plural(queue.dead, 'dead message')}, and no dead-letter queue.",
                queue.dead,
                0,
                queue,
            )
        if queue.paused:
            yield Condition("paused", queue.id, 1, 1, lambda: _paused(queue), 1, 0, queue)
        if queue.sla_ms and queue.age_ms > queue.sla_ms * SLA_OVER[0]:
            yield _sla(queue)
        if queue.retention_ms and queue.age_ms > queue.retention_ms * RETENTION_OVER[0]:
            yield _retention(queue)
        if queue.visible:
            yield from self._depth(queue, usual)
            if not present and not queue.dead_letters and queue.paused not in PAUSES_DELIVERY:
                yield self._no_consumer(queue, seen_ms)

    def _consumer(self, id: str, received: int, attended: bool) -> tuple[bool, int]:
        """Whether a queue has a consumer now, and when it last had one; 0: never."""
        state = self._consumers.get(id)
        if state is None:
            state = self._consumers[id] = [received, 0]
        before, seen_ms = state
        present = attended or received > before >= 0
        state[0] = received
        if present or seen_ms > self._now_ms:
            state[1] = self._now_ms
        return present, state[1]

    def _no_consumer(self, queue: QueueFacts, seen_ms: int) -> Condition:
        def never() -> str:
            return f"{_waiting(queue)}, and no consumer receives from it."

        def gone() -> str:
            since = duration(self._now_ms - seen_ms)
            return f"{_waiting(queue)}, and its consumers are gone: none has received or polled for {since}."

        kind, text = ("consumer-gone", gone) if seen_ms else ("no-consumer", never)
        return Condition(kind, queue.id, 1, 1, text, queue.visible, 0, queue)

    def _depth(self, queue: QueueFacts, usual: float | None) -> Iterator[Condition]:
        visible = queue.visible
        mark = queue.depth_mark or self.marks.depth
        if mark and visible > mark * DEPTH_OVER:

            def deep() -> str:
                return f"{_waiting(queue)}; the mark is {mark:,}."

            yield Condition("depth", queue.id, int(visible > mark), 1, deep, visible, mark, queue)
        factor = self.marks.unusual_factor
        if factor and usual is not None:
            limit = max(usual * factor, UNUSUAL_MIN)
            if visible > limit * UNUSUAL_OVER:

                def unusual() -> str:
                    return f"{_waiting(queue)}; usually about {usual:,.0f} do."

                yield Condition("depth-unusual", queue.id, int(visible > limit), 1, unusual, visible, limit, queue)

    # --- nodes

    def _node_conditions(self, nodes: Iterable[NodeFacts]) -> Iterator[Condition]:
        warning = self.marks.disk_share
        shares = (warning, max(0.9, (1 + warning) / 2))
        for node in nodes:
            whose = f"of node {node.name} " if node.name else ""
            if node.problem:
                text = f"Node {node.name} does not answer: {node.problem}"
                yield Condition("node-silent", node.name, 1, 1, text.__str__, 1, 0, node=node.name)
            if node.disk_total_bytes:
                share = 1 - node.disk_free_bytes / node.disk_total_bytes
                kept = sum(share >= mark - DISK_OVER for mark in shares)
                if kept:
                    text = (
                        f"The disk {whose}is {share:.0%} full: {node.disk_free_bytes / GIB:,.1f} GiB of "
                        f"{node.disk_total_bytes / GIB:,.1f} GiB are free."
                    )
                    reached = sum(share >= mark for mark in shares)
                    threshold = shares[max(0, reached - 1)]
                    yield Condition(
                        "disk-space", node.name, reached, kept, text.__str__, round(share, 4), threshold, node=node.name
                    )
            for shard, frames in node.lag:
                if frames > LAG_OVER_FRAMES:
                    of = f"{shard}@{node.name}"
                    text = f"Node {node.name} is {plural(frames, 'frame')} behind the owner of shard {shard}."
                    reached = int(frames > LAG_FRAMES)
                    yield Condition("follower-lag", of, reached, 1, text.__str__, frames, LAG_FRAMES, node=node.name)


def _waiting(queue: QueueFacts) -> str:
    return f"{plural(queue.visible, 'message')} {'waits' if queue.visible == 1 else 'wait'} in {queue.name}"


def _paused(queue: QueueFacts) -> str:
    what = {"delivery": "Delivery of", "sends": "Sends to", "both": "Delivery of and sends to"}[queue.paused]
    verb = "are" if queue.paused != "delivery" else "is"
    return f"{what} {queue.name} {verb} paused; {_waiting(queue)}."


def _failing(queue: QueueFacts, failed: Failed) -> Condition:
    def text() -> str:
        return (
            f"Messages of {queue.name} fail again and again: {failed.per_s:,.1f} per second were returned in the last "
            f"minute, {failed.share:.0%} of those received."
        )

    reached = int(failed.share > FAILING_SHARE and failed.per_s >= FAILING_PER_S)
    return Condition("failing", queue.id, reached, 1, text, round(failed.per_s, 2), FAILING_PER_S, queue)


def _sla(queue: QueueFacts) -> Condition:
    def text() -> str:
        late_ms = queue.age_ms - queue.sla_ms
        how = f"is {duration(late_ms)} behind its SLA" if late_ms > 0 else "is near its SLA"
        age = f"its oldest message is {duration(queue.age_ms)} old, and its SLA is {duration(queue.sla_ms)}"
        return f"{queue.name} {how}: {age}."

    share = queue.age_ms / queue.sla_ms
    reached, kept = sum(share > mark for mark in SLA_SHARES), sum(share > mark for mark in SLA_OVER)
    return Condition("sla-age", queue.id, reached, kept, text, queue.age_ms / 1000, queue.sla_ms / 1000, queue)


def _retention(queue: QueueFacts) -> Condition:
    def text() -> str:
        left = duration(max(0, queue.retention_ms - queue.age_ms))
        end = "is dead-lettered" if queue.expires_to_dead_letter else "is lost"
        return f"The oldest message of {queue.name} {end} in {left}: the queue's retention ends."

    share = queue.age_ms / queue.retention_ms
    reached, kept = sum(share > mark for mark in RETENTION_SHARES), sum(share > mark for mark in RETENTION_OVER)
    threshold = queue.retention_ms / 1000
    return Condition("retention-age", queue.id, reached, kept, text, queue.age_ms / 1000, threshold, queue)


def _shard_conditions(shards: Iterable[ShardFacts]) -> Iterator[Condition]:
    for shard in shards:
        if shard.state != "serving":
            why = f": {shard.why}" if shard.why else "."
            text = f"Shard {shard.number} is not served{why}"
            yield Condition("shard-unserved", str(shard.number), 1, 1, text.__str__, 1, 0)
        if shard.moves >= MOVES_OVER:
            minutes = MOVES_MS // 60_000
            text = f"Shard {shard.number} has changed its owner {shard.moves} times in {minutes} minutes."
            reached = int(shard.moves >= MOVES)
            yield Condition("ownership-flapping", str(shard.number), reached, 1, text.__str__, shard.moves, MOVES)

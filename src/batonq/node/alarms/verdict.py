"""The verdict on a server: one sentence for people, from its overview and its alarms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from batonq.core.policy import PAUSES_DELIVERY
from batonq.node.alarms.book import Alarm
from batonq.node.alarms.kinds import CRITICAL, INFO, WARNING
from batonq.node.clock import duration
from batonq.node.monitoring.overview import Overview, QueueReading
from batonq.quantities import plural

OK = "ok"
SHOWN_MAX = 4  # problems in the sentence
PROBLEMS_MAX = 100
Kinds = tuple[str, ...]
UNATTENDED_MS = 60_000  # messages may wait so long before it matters that nobody receives


class Problem(NamedTuple):
    level: str  # warning or critical
    text: str  # without the final period
    queue: str = ""
    account: str = ""
    alarm: str = ""  # id


class Verdict(NamedTuple):
    level: str  # ok, warning or critical
    sentence: str
    problems: list[Problem]  # the most urgent first


def judge(overview: Overview) -> Verdict:
    """The verdict. A problem whose alarm was acknowledged no longer counts: somebody looks after it."""
    by_object = {_object(alarm): alarm for alarm in overview.alarms}
    told: set[str] = set()
    problems: list[Problem] = []
    for kinds, object, problem in (*_shard_problems(overview), *_problems_of_queues(overview)):
        alarms = [by_object[kind, object] for kind in kinds if (kind, object) in by_object]
        told.update(alarm.id for alarm in alarms)
        if not any(alarm.acknowledged_ms for alarm in alarms):
            problems.append(problem._replace(alarm=alarms[0].id) if alarms else problem)
    for alarm in overview.alarms:
        if not alarm.acknowledged_ms and alarm.severity != INFO and alarm.id not in told:
            text = alarm.text.removesuffix(".")
            problems.append(Problem(alarm.severity, text, alarm.queue, alarm.account, alarm.id))
    problems.sort(key=lambda problem: problem.level != CRITICAL)
    level = OK if not problems else CRITICAL if problems[0].level == CRITICAL else WARNING
    acknowledged = sum(alarm.acknowledged_ms > 0 for alarm in overview.alarms)
    return Verdict(level, _sentence(overview, problems, acknowledged), problems[:PROBLEMS_MAX])


def queue_level(overview: Overview, queue: QueueReading) -> tuple[str, str]:
    """The level of one queue, and a note that says why; the note is empty when all is well."""
    found = [problem for _, problem in _queue_problems(overview, queue)]
    if not found:
        return OK, ""
    worst = min(found, key=lambda problem: problem.level != CRITICAL)
    return worst.level, worst.text


def _object(alarm: Alarm) -> tuple[str, str]:
    """The kind of an alarm, and what it is about: a queue, or a shard's number."""
    if alarm.queue:
        return alarm.kind, f"{alarm.account}/{alarm.queue}"
    return alarm.kind, alarm.id.partition(".")[2].partition("@")[0]


def _shard_problems(overview: Overview) -> Iterator[tuple[Kinds, str, Problem]]:
    for shard in overview.shards:
        number = str(shard.number)
        if shard.state != "serving":
            yield ("shard-stopped", "shard-unserved"), number, Problem(CRITICAL, f"shard {number} is {shard.state}")
        if shard.room not in ("plenty", ""):
            yield ("disk-full",), number, Problem(CRITICAL, f"the disk of shard {number} is full")


def _problems_of_queues(overview: Overview) -> Iterator[tuple[Kinds, str, Problem]]:
    for queue in overview.queues:
        for kinds, problem in _queue_problems(overview, queue):
            yield kinds, f"{queue.account}/{queue.name}", problem


def _queue_problems(overview: Overview, queue: QueueReading) -> Iterator[tuple[Kinds, Problem]]:
    """What is wrong with a queue now, with the kinds of alarms that it becomes when it lasts."""
    counters, name, account = queue.counters, queue.name, queue.account
    if queue.paused:
        yield ("paused",), Problem(WARNING, _paused(queue), name, account)
    if queue.sla_seconds:
        late_ms = overview.age_ms(queue) - queue.sla_seconds * 1000
        if late_ms > 0:
            yield ("sla-age",), Problem(CRITICAL, f"{name} is {duration(late_ms)} behind its SLA", name, account)
    if queue.dead_letters:
        waiting = counters.visible + counters.in_flight + counters.delayed
        if waiting:
            yield ("dead-letters",), Problem(WARNING, f"{name} has {plural(waiting, 'dead letter')}", name, account)
        return
    if counters.dead:
        text = f"{name} has {plural(counters.dead, 'dead message')}"
        yield ("dead-messages",), Problem(WARNING, text, name, account)
    attended = queue.waiters or counters.in_flight or queue.rates.received or queue.paused in PAUSES_DELIVERY
    if counters.visible and not attended and overview.visible_age_ms(queue) > UNATTENDED_MS:
        text = f"{name} has {plural(counters.visible, 'waiting message')} and no consumer"
        yield ("no-consumer", "consumer-gone"), Problem(WARNING, text, name, account)


def _paused(queue: QueueReading) -> str:
    waiting = plural(queue.counters.visible, "message")
    if queue.paused == "sends":
        return f"sends to {queue.name} are paused, with {waiting} left"
    return f"{queue.name} is paused{' for sends too' if queue.paused == 'both' else ''}, with {waiting} waiting"


def _sentence(overview: Overview, problems: list[Problem], acknowledged: int) -> str:
    handled = f" {plural(acknowledged, 'acknowledged alarm')} {_is(acknowledged)} still active." if acknowledged else ""
    if problems:
        more = f"; and {len(problems) - SHOWN_MAX} more" if len(problems) > SHOWN_MAX else ""
        shown = "; ".join(problem.text for problem in problems[:SHOWN_MAX])
        return f"{_needing(problems)}: {shown}{more}.{handled}"
    if not overview.queues:
        return f"All well; there are no queues yet.{handled}"
    oldest_ms = max(overview.age_ms(queue) for queue in overview.queues)
    tail = f"oldest message {duration(oldest_ms)}" if oldest_ms else "all empty"
    return f"All well: {plural(len(overview.queues), 'queue')}, {tail}.{handled}"


def _needing(problems: list[Problem]) -> str:
    queues = {(problem.account, problem.queue) for problem in problems if problem.queue}
    if all(problem.queue for problem in problems):
        return f"{plural(len(queues), 'queue')} {'needs' if len(queues) == 1 else 'need'} you"
    return f"{plural(len(problems), 'problem')} {'needs' if len(problems) == 1 else 'need'} you"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"

"""The sentence about a server: what needs somebody, what somebody looks after, and when all is well."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.node.alarms.book import Alarm
from batonq.node.alarms.verdict import PROBLEMS_MAX, judge, queue_level
from batonq.node.monitoring.overview import Overview
from batonq.node.monitoring.sampler import Rates
from tests.node.nodes import ACCOUNT
from tests.node.test_pages import NOW_MS, counters, queue, shard


def alarm(kind: str, name: str, **given: Any) -> Alarm:
    fields = {"severity": "warning", "text": "Something is wrong.", "raised_ms": NOW_MS, "last_ms": NOW_MS, **given}
    return Alarm(id=f"{kind}.{name}", kind=kind, **fields)


def of_queue(kind: str, name: str, **given: Any) -> Alarm:
    return alarm(kind, name, queue=name, account=ACCOUNT, **given)


def waiting(name: str, count: int, age_ms: int = 120_000) -> Any:
    return queue(name, visible=count, oldest_sent_ms=NOW_MS - age_ms, oldest_visible_ms=NOW_MS - age_ms)


def late(name: str, ms: int) -> Any:
    return queue(name, sla_seconds=60, visible=1, in_flight=1, oldest_sent_ms=NOW_MS - 60_000 - ms)


def dead(name: str, **given: int) -> Any:
    return queue(name, dead_letters=True, oldest_sent_ms=NOW_MS, **given)


@pytest.mark.parametrize(
    ("overview", "level", "sentence"),
    [
        (Overview(NOW_MS), "ok", "All well; there are no queues yet."),
        (Overview(NOW_MS, [queue("a")]), "ok", "All well: 1 queue, all empty."),
        (Overview(NOW_MS, [waiting("a", 290, 2_000)]), "ok", "All well: 1 queue, oldest message 2.0 s."),
        (
            Overview(NOW_MS, [dead("emails-dlq", visible=200, in_flight=13, delayed=1), late("orders", 240_000)]),
            "critical",
            "2 queues need you: orders is 4 min behind its SLA; emails-dlq has 214 dead letters.",
        ),
        (
            Overview(NOW_MS, [waiting("invoices", 290)._replace(paused="delivery")]),
            "warning",
            "1 queue needs you: invoices is paused, with 290 messages waiting.",
        ),
        (
            Overview(NOW_MS, [queue("a", visible=1, in_flight=1)._replace(paused="sends")]),
            "warning",
            "1 queue needs you: sends to a are paused, with 1 message left.",
        ),
        (
            Overview(NOW_MS, [waiting("invoices", 290)]),
            "warning",
            "1 queue needs you: invoices has 290 waiting messages and no consumer.",
        ),
        (
            Overview(NOW_MS, [queue("a", dead=1)], [shard("stopped", "")]),
            "critical",
            "2 problems need you: shard 0 is stopped; a has 1 dead message.",
        ),
        (
            Overview(NOW_MS, [queue("a")], alarms=[of_queue("depth", "a", text="200,000 messages wait in a.")]),
            "warning",
            "1 queue needs you: 200,000 messages wait in a.",
        ),
        (
            Overview(NOW_MS, [queue("a")], alarms=[of_queue("depth", "a", severity="info")]),
            "ok",
            "All well: 1 queue, all empty.",
        ),
        (
            Overview(NOW_MS, [dead("d", visible=3)], alarms=[of_queue("dead-letters", "d", acknowledged_ms=NOW_MS)]),
            "ok",
            "All well: 1 queue, all empty. 1 acknowledged alarm is still active.",
        ),
        (
            Overview(NOW_MS, [dead(f"d{number}", visible=1) for number in range(6)]),
            "warning",
            f"6 queues need you: {'; '.join(f'd{number} has 1 dead letter' for number in range(4))}; and 2 more.",
        ),
    ],
)
def test_the_verdict_is_one_sentence(overview: Overview, level: str, sentence: str) -> None:
    verdict = judge(overview)
    assert (verdict.level, verdict.sentence) == (level, sentence)


@pytest.mark.parametrize(
    "attended",
    [
        waiting("a", 5)._replace(waiters=1),
        waiting("a", 5)._replace(rates=Rates(received=0.1)),
        waiting("a", 5)._replace(counters=counters(visible=5, in_flight=1, oldest_sent_ms=NOW_MS - 120_000)),
    ],
    ids=["polled", "received from", "held"],
)
def test_a_backlog_with_a_consumer_is_no_problem(attended: Any) -> None:
    assert judge(Overview(NOW_MS, [attended])).problems == []


def test_a_problem_and_its_alarm_are_told_once() -> None:
    overview = Overview(
        NOW_MS,
        [dead("d", visible=3), waiting("w", 5)],
        [shard("stopped", "")],
        alarms=[
            alarm("shard-stopped", "0@n1", severity="critical"),
            of_queue("dead-letters", "d"),
            of_queue("consumer-gone", "w"),
            of_queue("depth", "w", text="5 messages wait in w; the mark is 1."),
        ],
    )
    verdict = judge(overview)
    assert [(problem.text, problem.queue, problem.alarm) for problem in verdict.problems] == [
        ("shard 0 is stopped", "", "shard-stopped.0@n1"),
        ("d has 3 dead letters", "d", "dead-letters.d"),
        ("w has 5 waiting messages and no consumer", "w", "consumer-gone.w"),
        ("5 messages wait in w; the mark is 1", "w", "depth.w"),
    ]


def test_a_queue_has_a_level_of_its_own() -> None:
    overview = Overview(NOW_MS)
    assert queue_level(overview, queue("a")) == ("ok", "")
    assert queue_level(overview, dead("d", visible=1)) == ("warning", "d has 1 dead letter")
    both = late("orders", 240_000)._replace(dead_letters=True)
    assert queue_level(overview, both) == ("critical", "orders is 4 min behind its SLA")


def test_the_problems_are_bounded() -> None:
    verdict = judge(Overview(NOW_MS, [dead(f"d{number}", visible=1) for number in range(500)]))
    assert len(verdict.problems) == PROBLEMS_MAX and verdict.sentence.startswith("500 queues need you: ")

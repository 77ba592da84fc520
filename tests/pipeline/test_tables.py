"""The tables of messages, minutes and usage: equal, row for row and value for value, to a plain fold of the log.

All histories are looked at in one go, each as a source of its own: a busy day, every golden scenario, the same ones
after their front was dropped, and the corners that those leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from batonq.core.commands import Job
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.tables import lifecycle, lines, minutes, usage
from batonq.pipeline.tables.queues import queues
from tests.core.rig import Bench, Rig, claim, deliver
from tests.golden.runner import parse, scenarios
from tests.golden.script import Scenario
from tests.pipeline import folds
from tests.pipeline.frames import assert_rows, events_frame, rows_of
from tests.pipeline.support import frames_of
from tests.support import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]


def events_of(*rigs: Rig) -> Rows:
    return [event for rig in rigs for event in plain_events(frames_of(rig))]


def golden(*, truncated: bool = False) -> dict[str, Rows]:
    """Every scenario; truncated: after the older half of each log was dropped."""
    found = {}
    for path in scenarios():
        scenario = Scenario()
        for block in parse(path.read_text()):
            for command in block.commands:
                list(scenario.run(command))
        if truncated:
            for rig in scenario.rigs.values():
                rig.truncate((min(rig.frames) + rig.next_frame) // 2)
        found[path.stem + ("-truncated" if truncated else "")] = events_of(*scenario.rigs.values())
    return found


def owed_through_a_purge() -> Rows:
    """A dead letter that its full queue refuses is on its way during one purge, comes back, and goes with the next."""
    bench, other = Bench(0), Bench(1)
    other.queue(2, messages_max=1)
    bench.queue(1, max_receives=1, dead_letter_queue=2, dead_letter_shard=1, dead_letter_on_failure=True)
    other.send(2, "in the way")
    bench.send(1, "one", "two", "three", group="g")
    bench.commit()
    first, second, _ = bench.receive(1, 3)
    ask.nack(bench.shard, 1, [ask.Nack(claim(first), 0, "no", "Kind"), ask.Nack(claim(second), 0, "", "")], bench.now)
    bench.later(1_000)
    bench.shard.purge(1, bench.now)  # takes the third, from its holder
    deliver(bench, other)
    bench.later(100)  # before it is tried again
    bench.shard.purge(1, bench.now)
    bench.later(61_000)
    bench.send(1, "after")
    return events_of(bench, other)


def a_line_of_many() -> Rows:
    """Dead, redriven, dead again, across shards and within one, edited on the way; then its front is dropped."""
    bench, other = Bench(0), Bench(1)
    bench.queue(1, max_receives=1, dead_letter_queue=2, dead_letter_shard=1, dead_letter_on_failure=True)
    bench.queue(3)
    other.queue(2)
    bench.send(1, "unlucky", "lucky", group="g", attributes=b"")
    for _ in range(3):
        for lease in bench.receive(1, 1):
            ask.nack(bench.shard, 1, [ask.Nack(claim(lease), 0, "again", "Kind")], bench.now)
        deliver(bench, other)
        bench.later(70_000)
        other.later(70_000)
        job = Job("job", 2, 1, 0, 100, "", 0, 0)
        other.shard.start_job(job, other.now)
        for _ in range(8):
            other.later(500)
            other.shard.step_jobs(other.now)
            deliver(other, bench)
        bench.later(5_000)
    bench.receive(1, 1)
    bench.commit()
    bench.restart(bench.replayed(), grace_ms=7_000)
    bench.later(1)
    return events_of(bench, other)


def deleted_queue() -> Rows:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "one", "two", delay_ms=86_400_000)
    bench.send(1, "three")
    bench.receive(1, 1)
    bench.later(3 * 86_400_000 + 5)
    bench.shard.close_queue(1, 2, bench.now)
    bench.shard.purge(1, bench.now)
    return events_of(bench)


@pytest.fixture(scope="module")
def logs(busy_logs: str) -> dict[str, Rows]:
    return {
        "busy": folds.events_of(busy_logs),
        **golden(),
        **golden(truncated=True),
        "owed": owed_through_a_purge(),
        "line": a_line_of_many(),
        "deleted": deleted_queue(),
    }


@pytest.fixture(scope="module")
def history(spark: SparkSession, logs: dict[str, Rows]) -> DataFrame:
    return events_frame(spark, ({**event, "source": source} for source, log in logs.items() for event in log))


@pytest.fixture(scope="module")
def messages(history: DataFrame) -> DataFrame:
    return lifecycle.lifecycle(history, queues(history)).localCheckpoint()


def folded(logs: dict[str, Rows], table: str) -> Rows:
    return [row for source, log in logs.items() for row in getattr(folds.Fold(log, source), table)()]


def test_lifecycle(messages: DataFrame, logs: dict[str, Rows]) -> None:
    rows = rows_of(messages, lifecycle.TABLE)
    assert_rows(rows, folded(logs, "lifecycle"), ("source", "shard", "sequence"))
    assert {row["outcome"] for row in rows} == {
        *("acked", "late_acked", "expired", "dead_lettered", "redriven", "moved", "purged", "queue_deleted"),
        "deleted",
        *("waiting", "in_flight", "delayed", "dead", "owed"),
    }
    assert max(row["line_deaths"] for row in rows) > 2
    assert any(row["opened"] and row["first_id"] != row["message_id"] for row in rows)


def test_lines_are_found_by_the_driver_and_by_spark_alike(history: DataFrame) -> None:
    rare = history.where("event in ('owed', 'arrived')")
    steps = lines.moves(rare).localCheckpoint()
    here = lines._placed_here(steps).localCheckpoint()
    assert sorted(here.collect(), key=str) == sorted(lines._placed(steps).select(*here.columns).collect(), key=str)
    assert here.agg({"depth": "max"}).collect()[0][0] > 4


def test_queue_minute(history: DataFrame, messages: DataFrame, logs: dict[str, Rows]) -> None:
    rows = rows_of(minutes.queue_minute(history, messages, queues(history)), minutes.TABLE)
    assert_rows(rows, folded(logs, "minutes"), ("source", "queue", "shard", "minute"))


def test_tenant_usage(history: DataFrame, messages: DataFrame, logs: dict[str, Rows]) -> None:
    rows = rows_of(usage.tenant_usage(messages, history, queues(history)), usage.TABLE)
    assert_rows(rows, folded(logs, "usage"), ("source", "queue", "date"))

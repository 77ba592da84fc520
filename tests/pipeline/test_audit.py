"""The audit on Spark: sound histories are found sound, and every broken one broken, as a plain fold finds it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from batonq.core.ids import message_id
from batonq.pipeline.audit.kinds import FAMILIES, KINDS
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.events.schema import arrow_schema
from batonq.pipeline.jobs import audit as job
from batonq.pipeline.reading.history import open_history
from tests.pipeline import busy, planted
from tests.pipeline.conftest import SMALL
from tests.pipeline.job_support import run_job
from tests.pipeline.judge import Event, Finding, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MILLION = 1_000_000
MUTANTS = 12
OF_LOG = set(FAMILIES["of a shard's log"])


def read(directory: str) -> list[Event]:
    history = open_history(directory)
    return [event for span in history.shards() for event in plain_events(history.frames(span.shard, span.first))]


def shifted(events: Iterable[Event], by: int) -> list[Event]:
    """The same history, of other shards."""
    return [
        {
            **event,
            "shard": event["shard"] + by,
            "other_shard": other + by if (other := event["other_shard"]) is not None else None,
        }
        for event in events
    ]


def frame(spark: SparkSession, events: list[Event]) -> DataFrame:
    schema = arrow_schema(dictionaries=False)
    return spark.createDataFrame(pa.Table.from_pylist(events, schema))


def found(events: DataFrame) -> tuple[set[Finding], list[dict[str, Any]]]:
    """What the audit finds, as the judge says it, and the rows themselves."""
    from batonq.pipeline.audit.audit import audit
    from batonq.pipeline.tables.queues import queues

    rows = [row.asDict() for row in audit(events, queues(events)).collect()]
    return {finding(row) for row in rows}, rows


def finding(row: dict[str, Any]) -> Finding:
    last = max(row["logical_times"])
    if row["kind"] in OF_LOG:
        return row["kind"], row["shard"], None, last >> 16
    return row["kind"], row["shard"], row["sequence"], last


@pytest.fixture(scope="module")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """A day whose front is gone: living messages were carried, and a base says the rest."""
    directory = str(tmp_path_factory.mktemp("truncated"))
    settings: dict[str, Any] = {**SMALL}
    busy.make(directory, rounds=4, seed=7, truncates=True, **settings)
    events = read(directory)
    kinds = Counter(event["event"] for event in events)
    assert kinds["carried"] and kinds["base"] and min(event["frame"] for event in events if event["shard"] == 0) > 1
    return events


def test_the_audit_finds_what_a_plain_fold_finds(spark: SparkSession, busy_logs: str, truncated: list[Event]) -> None:
    """A day, a day whose front is gone, and the same with one event changed, dropped or doubled at random."""
    whole = read(busy_logs)
    assert judge(whole) == set() and judge(truncated) == set()
    chance = random.Random(3)
    shards = [whole, shifted(truncated, 2)]
    expected: set[Finding] = set()
    while len(shards) < 2 + MUTANTS or len({kind for kind, *_ in expected}) < 8:  # until they break many rules
        changed = shifted(mutant((whole, truncated)[len(shards) % 2], chance), 2 * len(shards))
        expected |= judge(changed)
        shards.append(changed)
    audited, rows = found(frame(spark, [event for events in shards for event in events]))
    assert sorted(audited ^ expected, key=str) == []
    assert all(row["events"] and row["detail"] for row in rows)


def mutant(events: list[Event], chance: random.Random) -> list[Event]:
    at = chance.randrange(len(events))
    event = dict(events[at])
    numbers = [name for name in planted.NUMBERS if event[name] is not None]
    change = chance.choice(("number", "number", "number", "time", "drop", "kind", "text"))
    if change == "drop":
        return events[:at] + events[at + 1 :]
    if change == "number" and numbers:
        event[chance.choice(numbers)] += chance.choice((-1, 1, 5))
    elif change == "time":
        name = chance.choice([name for name in planted.TIMES if event[name] is not None])
        event[name] += chance.choice((-3_600_000_000, -1000, 1000, 90_000_000))
    elif change == "kind":
        name = chance.choice([name for name in ("reason", "state") if event[name] is not None] or ["reason"])
        event[name] = chance.choice(("expired", "ack", "late_ack", "accepted")) if name == "reason" else "visible"
    else:
        event["dedup_key"], event["group"] = "order-0-1", "account-1"
    return [*events[:at], event, *events[at + 1 :]]


@pytest.fixture(scope="module")
def million(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Event], int]:
    """A million sound events: a longer day, again and again on other shards. Where they are, a day, how many days."""
    directory = tmp_path_factory.mktemp("million")
    busy.make(str(directory / "data"), rounds=10, seed=11)
    day = read(str(directory / "data"))
    days = -(-MILLION // len(day))
    path = str(directory / "events")
    from pyspark.sql import functions as f

    by = (f.col("id") * 2).cast("int")
    copies = frame(spark, day).coalesce(1).crossJoin(f.broadcast(spark.range(days).coalesce(1)))
    copies = copies.withColumns({"shard": f.col("shard") + by, "other_shard": f.col("other_shard") + by})
    copies.drop("id").write.parquet(path)
    return path, day, days


def test_a_million_sound_events_are_found_sound(spark: SparkSession, million: tuple[str, list[Event], int]) -> None:
    path, _, _ = million
    events = spark.read.parquet(path)
    assert events.count() >= MILLION
    assert found(events)[0] == set()


def test_each_planted_violation_in_a_million_events_is_found_and_no_other(
    spark: SparkSession, million: tuple[str, list[Event], int], truncated: list[Event]
) -> None:
    """Each kind once, by one event that is changed, each in a day of its own; carried and lost need a dropped front."""
    path, day, days = million
    plants = planted.plants()
    assert set(plants) == set(KINDS) and len(plants) < days
    expected: dict[str, set[Finding]] = {}
    changed: list[Event] = []
    for at, (kind, plant) in enumerate(plants.items()):
        old = truncated if kind in planted.TRUNCATED else day
        new = shifted(plant(old), 2 * at)
        expected[kind] = judge(new)
        assert kind in {name for name, *_ in expected[kind]} <= planted.ALSO.get(kind, set()) | {kind}
        changed += new
    sound = spark.read.parquet(path).where(f"shard >= {2 * len(plants)}")
    events = sound.unionByName(frame(spark, changed))
    audited, rows = found(events)
    assert audited == set().union(*expected.values())
    for row in rows:
        told = message_id(row["shard"], row["sequence"]) if row["sequence"] is not None else None
        assert row["message_id"] == told
        assert len(row["events"]) == len(row["logical_times"])


def test_the_job_says_that_all_is_well(spark: SparkSession, busy_logs: str, tmp_path: Path) -> None:
    outcome = run_job(spark, job, "--direct", lake=tmp_path / "lake", history=busy_logs)
    assert outcome.code == 0 and outcome.summary["violations"] == 0
    assert outcome.text == f"{outcome.summary['events']:,} events, every rule holds."


def test_the_job_names_each_break_in_the_lake_and_fails(spark: SparkSession, busy_logs: str, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    from batonq.pipeline.lake import Lake
    from batonq.pipeline.tables.queues import TABLE, queues
    from batonq.pipeline.tables.schema import shaped

    day = read(busy_logs)
    broken = planted.plants()["stale_epoch"](day)
    (expected,) = judge(broken)
    events = frame(spark, broken).withColumns({"source": f.lit("here"), "date": f.to_date("time")})
    lake = Lake(tmp_path / "lake")
    lake.write(events, "events", batch="0", by=("date",))
    lake.write(shaped(queues(events).drop("source").withColumn("source", f.lit("here")), TABLE), "queues", batch="0")
    outcome = run_job(spark, job, lake=tmp_path / "lake")
    assert outcome.code == 1 and outcome.summary["kinds"] == {"stale_epoch": 1}
    (row,) = (row.asDict() for row in lake.read(spark, "violations").collect())
    assert finding(row) == expected and row["source"] == "here"
    assert row["message_id"] in outcome.text and all(event in outcome.text for event in row["events"])
    assert outcome.summary["shown"] == [row]

"""The audit on Spark: sound histories are found sound, and every broken one broken, as a plain fold finds it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from batonq.core.ids import message_id
from batonq.pipeline.audit.kinds import FAMILIES, KINDS
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.events.schema import arrow_schema
from batonq.pipeline.jobs import audit as job
from batonq.pipeline.reading.history import open_history
from tests.pipeline import busy, fanned, planted
from tests.pipeline.conftest import SMALL
from tests.pipeline.job_support import run_job
from tests.pipeline.judge import Event, Finding, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MILLION = 1_000_000
MUTANTS = 12
OF_LOG = set(FAMILIES["of a shard's log"])
# What mutants change, and by how much. Who is changed into another may be in two lines or channels: what follows from
# that for all others there has no meaning that two audits had to share.
WHO = ("sequence", "queue", "channel_number")
SHARED = {*FAMILIES["of one message"], *FAMILIES["of a shard's log"], *FAMILIES["of deduplication keys"]}
NUMBERS = (*WHO, "lease_epoch", "receive_count", "number")
TIMES = ("deadline", "visible_at", "expires_at")
LATER_US = (-3_600_000_000, -1000, 1000, 90_000_000)
OF_FRAMES = (*(("time", by) for by in LATER_US), *(("owner_epoch", by) for by in (-1, 1, 5)))


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


def found(events: DataFrame) -> list[dict[str, Any]]:
    from batonq.pipeline.audit.audit import audit
    from batonq.pipeline.tables.queues import queues

    return [row.asDict() for row in audit(events, queues(events)).collect()]


def finding(row: dict[str, Any]) -> Finding:
    """As the judge says it."""
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


def mutant(events: list[Event], chance: random.Random) -> tuple[list[Event], set[str]]:
    """The same history with one thing changed that a log can say: an owner and a time are those of a whole frame.

    And the kinds of violations that it is compared by.
    """
    at = chance.randrange(len(events))
    event = dict(events[at])
    numbers = [name for name in NUMBERS if event[name] is not None]
    times = [name for name in TIMES if event[name] is not None]
    change = chance.choice(("number", "number", "number", "time", "frame", "drop", "kind", "text", "flag"))
    if change == "drop":
        return events[:at] + events[at + 1 :], set(KINDS)
    if change == "frame":
        name, by = chance.choice(OF_FRAMES)
        here = (event["shard"], event["frame"])
        frame = [{**one, name: one[name] + by} if (one["shard"], one["frame"]) == here else one for one in events]
        return frame, set(KINDS)
    name = ""
    if change == "number" and numbers:
        name = chance.choice(numbers)
        event[name] += chance.choice((-1, 1, 5))
    elif change == "time" and times:
        event[chance.choice(times)] += chance.choice(LATER_US)
    elif change == "flag":
        event["flags"] ^= 1 << chance.randrange(8)
    elif change == "kind":
        name = chance.choice([name for name in ("reason", "state") if event[name] is not None] or ["reason"])
        event[name] = chance.choice(("expired", "ack", "late_ack", "accepted")) if name == "reason" else "visible"
    else:
        event["dedup_key"], event["group"] = "order-0-1", "account-1"
    return [*events[:at], event, *events[at + 1 :]], SHARED if name in WHO else set(KINDS)


class Shards(NamedTuple):
    """Some history, at two numbers of its own, and what the plain fold finds in it."""

    numbers: tuple[int, int]
    events: list[Event]
    expected: set[Finding]
    compared: set[str]

    def differs(self, found: set[Finding]) -> list[Finding]:
        return sorted((one for one in found ^ self.expected if one[0] in self.compared), key=str)


class Audited(NamedTuple):
    """One audit of a million events, by which of them they are about: an audit's plan costs more than its rows."""

    rows: list[dict[str, Any]]
    plants: dict[str, Shards]
    mutants: list[Shards]

    def of(self, shards: Shards) -> set[Finding]:
        return {finding(row) for row in self.rows if row["shard"] in shards.numbers}


def at(number: int, events: list[Event], compared: Iterable[str] = KINDS) -> Shards:
    moved = shifted(events, 2 * number)
    return Shards((2 * number, 2 * number + 1), moved, judge(moved), set(compared))


@pytest.fixture(scope="module")
def audited(
    compiled: SparkSession, busy_logs: str, truncated: list[Event], tmp_path_factory: pytest.TempPathFactory
) -> Audited:
    """A long day with each kind of break planted once, each in a copy of its own (carried and lost need a dropped
    front); a day and one whose front is gone, with one event changed, dropped or doubled at random; and sound days.
    """
    directory = tmp_path_factory.mktemp("million")
    busy.make(str(directory / "data"), rounds=10, seed=11)
    day, whole = read(str(directory / "data")), read(busy_logs)
    fanned.make(str(directory / "fanned"))
    published = read(str(directory / "fanned"))
    plants: dict[str, Shards] = {}
    for kind, plant in planted.plants().items():
        days = truncated if kind in planted.TRUNCATED else published if kind in planted.FANNED else day
        plants[kind] = at(len(plants), plant(days))
    given_up = planted.acked_while_it_waits(whole)
    chance = random.Random(3)
    based = planted.with_base(whole)
    mutants = [at(len(plants) + n, events) for n, events in enumerate((whole, truncated, given_up, based, published))]
    while len(mutants) < 5 + MUTANTS or len(kinds_of(mutants)) < 8:  # until they break many rules
        changed, compared = mutant((based, truncated, published)[len(mutants) % 3], chance)
        mutants.append(at(len(plants) + len(mutants), changed, compared))
    broken = [event for shards in (*plants.values(), *mutants) for event in shards.events]
    first = len(plants) + len(mutants)
    copied = -(-(MILLION - len(broken)) // len(day))
    path = str(directory / "events")
    from pyspark.sql import functions as f

    by = (f.col("id") * 2).cast("int")
    copies = frame(compiled, day).coalesce(1).crossJoin(f.broadcast(compiled.range(first, first + copied).coalesce(1)))
    copies = copies.withColumns({"shard": f.col("shard") + by, "other_shard": f.col("other_shard") + by})
    copies.drop("id").write.parquet(path)
    frame(compiled, broken).select(*copies.drop("id").columns).write.mode("append").parquet(path)
    events = compiled.read.parquet(path)
    assert events.count() >= MILLION
    return Audited(found(events), plants, mutants)


def kinds_of(mutants: list[Shards]) -> set[str]:
    return {kind for shards in mutants for kind, *_ in shards.expected}


def test_the_audit_finds_what_a_plain_fold_finds(audited: Audited) -> None:
    whole, truncated, given_up, based, published, *_ = audited.mutants
    assert whole.expected == truncated.expected == based.expected == published.expected == set()
    assert [kind for kind, *_ in given_up.expected].count("not_held") == 2  # given back and acknowledged, by nobody
    for shards in audited.mutants:
        assert shards.differs(audited.of(shards)) == []
    assert all(row["events"] and row["detail"] for row in audited.rows)


def test_each_planted_violation_in_a_million_events_is_found(audited: Audited) -> None:
    assert set(audited.plants) == set(KINDS)
    for kind, shards in audited.plants.items():
        assert kind in {name for name, *_ in shards.expected} <= planted.ALSO.get(kind, set()) | {kind}
        assert audited.of(shards) == shards.expected, kind
    for row in audited.rows:
        told = message_id(row["shard"], row["sequence"]) if row["sequence"] is not None else None
        assert row["message_id"] == told
        assert len(row["events"]) == len(row["logical_times"])


def test_hundreds_of_thousands_of_sound_events_beside_them_are_found_sound(audited: Audited) -> None:
    broken = {number for shards in (*audited.plants.values(), *audited.mutants) for number in shards.numbers}
    assert [row for row in audited.rows if row["shard"] not in broken] == []


def test_what_is_said_when_all_is_well() -> None:
    """A page of the docs runs such an audit, straight from history."""
    said = job.outcome(1_204_332, {}, [], "here")
    assert (said.code, said.summary["violations"]) == (0, 0)
    assert said.text == "1,204,332 events, every rule holds."


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

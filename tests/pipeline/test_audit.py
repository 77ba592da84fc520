"""The audit on Spark: sound histories are found sound, and every broken one broken, as a plain fold finds it."""

from __future__ import annotations

import importlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest

from batonq.core.ids import message_id
from batonq.core.records import State, Type
from batonq.core.shard import lifecycle as broker
from batonq.pipeline.audit.ends import of_checkpoint, of_ranges
from batonq.pipeline.audit.kinds import FAMILIES, KINDS
from batonq.pipeline.audit.lifecycle import MOVES
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.events.schema import arrow_schema
from batonq.pipeline.jobs import audit as job
from batonq.pipeline.jobs import ingest
from batonq.pipeline.reading.history import open_history
from tests.pipeline import busy, fanned, planted
from tests.pipeline.conftest import SMALL
from tests.pipeline.job_support import run_job
from tests.pipeline.judge import Event, Finding, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MILLION = 1_000_000
SHORT: dict[str, Any] = {**SMALL, "segment_bytes": 16 * 1024}
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


def found(events: DataFrame, ends: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
    from batonq.pipeline.audit.audit import audit
    from batonq.pipeline.tables.queues import queues

    return [row.asDict() for row in audit(events, queues(events), ends).collect()]


def ends_of(events: Iterable[Event]) -> dict[int, int]:
    """The last frame of each shard."""
    ends: dict[int, int] = {}
    for event in events:
        ends[event["shard"]] = max(event["frame"], ends.get(event["shard"], 0))
    return ends


@contextmanager
def laxer_broker() -> Iterator[None]:
    """The broker's table allows every record in every state, and the audit is loaded anew beside it."""
    from batonq.pipeline.audit import lifecycle, messages

    strict = dict(broker.TRANSITIONS)
    every = {(state, record): tuple(State) for state in State for record in Type}
    broker.TRANSITIONS.update(every)
    try:
        for module in (lifecycle, messages):
            importlib.reload(module)
        yield
    finally:
        broker.TRANSITIONS.clear()
        broker.TRANSITIONS.update(strict)


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


@pytest.fixture(scope="module")
def fanned_logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data directory of a day with topics, schedules and replays."""
    directory = str(tmp_path_factory.mktemp("fanned"))
    fanned.make(directory)
    return directory


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


@contextmanager
def small_parts() -> Iterator[None]:
    """Logs and channels are checked in parts so small that every history has many seams."""
    from batonq.pipeline.audit import channels, shards

    with (
        patch.object(shards, "PART_FRAMES", 50),
        patch.object(channels, "PART_FRAMES", 50),
        patch.object(channels, "PART_ENTRIES", 4),
    ):
        yield


class Shards(NamedTuple):
    """Some history, at numbers of its own, and what the plain fold finds in it."""

    numbers: range
    events: list[Event]
    ends: dict[int, int]
    expected: set[Finding]
    compared: set[str]

    def differs(self, found: set[Finding]) -> list[Finding]:
        return sorted((one for one in found ^ self.expected if one[0] in self.compared), key=str)


class Audited(NamedTuple):
    """One audit of a million events, by which of them they are about: an audit's plan costs more than its rows."""

    rows: list[dict[str, Any]]
    plants: dict[str, Shards]
    sound: dict[str, Shards]
    mutants: list[Shards]
    broker_allowed_all: bool

    def of(self, shards: Shards) -> set[Finding]:
        return {finding(row) for row in self.rows if row["shard"] in shards.numbers}


class Numbers:
    """Gives each history shards of its own."""

    def __init__(self) -> None:
        self.next = 0

    def shards(
        self, events: list[Event], compared: Iterable[str] = KINDS, ends: Mapping[int, int] | None = None
    ) -> Shards:
        first, self.next = self.next, self.next + 1 + max(event["shard"] for event in events)
        moved = shifted(events, first)
        known = {shard + first: end for shard, end in (ends or {}).items()}
        expected = judge(moved, known, own=True)  # the audit sees all of them together: some may have a maximum
        return Shards(range(first, self.next), moved, known, expected, set(compared))


def simulated(run: Callable[..., Any], directory: Path) -> list[Event]:
    from sim.recording import write_archive

    run(1, None, None, lambda simulation: write_archive(simulation, directory))
    return read(f"file://{directory}")


@pytest.fixture(scope="module")
def audited(
    compiled: SparkSession,
    busy_logs: str,
    fanned_logs: str,
    truncated: list[Event],
    tmp_path_factory: pytest.TempPathFactory,
) -> Audited:
    """Every planted break, each in a copy of its own of some day; sound days, of brokers and of simulations; days with
    one event changed, dropped or doubled at random; and copies of a day up to a million events.
    """
    from sim.run import simulate
    from sim.topics import simulate_topics

    directory = tmp_path_factory.mktemp("million")
    fanned.make(str(directory / "shortened"), truncates=True, **SHORT)
    days = {"busy": read(busy_logs), "truncated": truncated, "fanned": read(fanned_logs)}
    numbers = Numbers()
    plants = {
        name: numbers.shards(planted_break.plant(days[planted_break.day]), ends=ends_of(days[planted_break.day]))
        for name, planted_break in planted.plants().items()
    }
    whole, based = days["busy"], planted.with_base(days["busy"])
    given_up = numbers.shards(planted.acked_while_it_waits(whole))
    histories = {
        **days,
        "based": based,
        "fanned and based": planted.with_base(days["fanned"]),
        "fanned and truncated": read(str(directory / "shortened")),
        "node": simulated(simulate, directory / "node"),
        "topics": simulated(simulate_topics, directory / "topics"),
    }
    sound = {name: numbers.shards(events, ends=ends_of(events)) for name, events in histories.items()}
    chance = random.Random(3)
    mutants = [given_up]
    while len(mutants) <= MUTANTS or len(kinds_of(mutants)) < 8:  # until they break many rules
        changed, compared = mutant((based, truncated, days["fanned"])[len(mutants) % 3], chance)
        mutants.append(numbers.shards(changed, compared))
    all_shards = (*plants.values(), *sound.values(), *mutants)
    broken = [event for shards in all_shards for event in shards.events]
    path = str(directory / "events")
    write_copies(compiled, whole, numbers.next, -(-(MILLION - len(broken)) // len(whole)), path)
    frame(compiled, broken).write.mode("append").parquet(path)
    events = compiled.read.parquet(path)
    assert events.count() >= MILLION
    ends = {shard: end for shards in all_shards for shard, end in shards.ends.items()}
    with laxer_broker(), small_parts():
        rows = found(events, ends)
        allowed = broker.allowed(State.OWED, Type.LEASED)
    return Audited(rows, plants, sound, mutants, allowed)


def write_copies(spark: SparkSession, day: list[Event], first: int, count: int, path: str) -> None:
    """Copies of a day, each with two shards of its own."""
    from pyspark.sql import functions as f

    by = f.lit(first) + (f.col("id") * 2).cast("int")
    copies = frame(spark, day).coalesce(1).crossJoin(f.broadcast(spark.range(count).coalesce(1)))
    copies = copies.withColumns({"shard": f.col("shard") + by, "other_shard": f.col("other_shard") + by})
    copies.drop("id").write.parquet(path)


def kinds_of(mutants: list[Shards]) -> set[str]:
    return {kind for shards in mutants for kind, *_ in shards.expected}


def test_the_audit_finds_what_a_plain_fold_finds(audited: Audited) -> None:
    given_up, *_ = audited.mutants
    assert {"never_leased", "not_held"} <= {kind for kind, *_ in given_up.expected}  # given back, then acknowledged
    for shards in audited.mutants:
        assert shards.differs(audited.of(shards)) == []
    assert all(row["events"] and row["detail"] for row in audited.rows)


def test_sound_histories_are_found_sound(audited: Audited) -> None:
    for name, shards in audited.sound.items():
        assert shards.expected == audited.of(shards) == set(), name


def test_each_planted_violation_in_a_million_events_is_found(audited: Audited) -> None:
    breaks = planted.plants()
    assert {one.kind for one in breaks.values()} == set(KINDS)
    for name, shards in audited.plants.items():
        kinds = {kind for kind, *_ in shards.expected}
        assert breaks[name].kind in kinds <= breaks[name].also | {breaks[name].kind}, name
        assert audited.of(shards) == shards.expected, name
    for row in audited.rows:
        told = message_id(row["shard"], row["sequence"]) if row["sequence"] is not None else None
        assert row["message_id"] == told
        assert len(row["events"]) == len(row["logical_times"])


def test_a_laxer_table_in_the_broker_hides_no_break(audited: Audited) -> None:
    """The audit above was loaded while the broker allowed every record in every state."""
    assert audited.broker_allowed_all and not broker.allowed(State.OWED, Type.LEASED)
    found = {name: {kind for kind, *_ in audited.of(shards)} for name, shards in audited.plants.items()}
    for name in ("transition", "deleted_while_owed", "not_ready", "after_end", "moved_while_held"):
        assert planted.plants()[name].kind in found[name]


def test_the_audit_and_the_broker_state_the_same_lifecycle() -> None:
    """Two statements, each written on its own: a difference is a mistake in one of them."""
    in_log = {"refused": "delayed"}
    of_audit = {(in_log.get(one.before, one.before), one.event, in_log.get(one.after, one.after)) for one in MOVES}
    of_broker = {
        (state.name.lower(), record.name.lower(), after.name.lower())
        for (state, record), afters in broker.TRANSITIONS.items()
        for after in afters
        if state != State.FREE and record != Type.QUEUE_PURGED
    }
    assert of_audit == of_broker


def test_hundreds_of_thousands_of_sound_events_beside_them_are_found_sound(audited: Audited) -> None:
    numbers = {
        number
        for shards in (*audited.plants.values(), *audited.sound.values(), *audited.mutants)
        for number in shards.numbers
    }
    assert [row for row in audited.rows if row["shard"] not in numbers] == []


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
    broken = planted.plants()["stale_epoch"].plant(day)
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


def test_a_direct_audit_knows_subscriptions(spark: SparkSession, fanned_logs: str, tmp_path: Path) -> None:
    outcome = run_job(spark, job, "--direct", history=fanned_logs, lake=tmp_path / "lake")
    assert (outcome.code, outcome.summary["violations"]) == (0, 0)


def test_the_checkpoint_of_an_ingest_says_how_far_the_lake_reaches(
    spark: SparkSession, fanned_logs: str, tmp_path: Path
) -> None:
    """The job compares the lake with it. Here the lake has less: its checkpoint is that of a longer history."""
    from batonq.pipeline.lake import Lake

    lake = tmp_path / "lake"
    run_job(spark, ingest, lake=lake, history=fanned_logs)
    checkpoint = lake / "_checkpoints" / "ingest"
    ends = of_checkpoint(checkpoint)
    assert ends == of_ranges(open_history(fanned_logs).shards()) == ends_of(read(fanned_logs))
    assert of_checkpoint(tmp_path / "nothing") == {}
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    version, facts, offset = last.read_text().splitlines()
    longer = {shard: following + 1 for shard, following in json.loads(offset).items()}
    last.write_text("\n".join((version, facts, json.dumps(longer))))
    outcome = run_job(spark, job, lake=lake)
    assert outcome.code == 1 and outcome.summary["kinds"] == {"end_missing": 2}
    assert {row["shard"] for row in Lake(lake).read(spark, "violations").collect()} == {0, 1}

"""Ingest: history becomes the tables events and queues, each event once, whatever comes again."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from batonq.errors import InvalidInput, NotFound, OwnershipHeld
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.events.plain import events
from batonq.pipeline.jobs import compact, ingest
from batonq.pipeline.jobs.context import Context
from batonq.pipeline.jobs.problems import sentence
from batonq.pipeline.lake import Lake
from batonq.pipeline.reading.history import open_history
from batonq.pipeline.tables.queues import TABLE as QUEUES
from batonq.pipeline.tables.queues import TELLING, queues
from batonq.pipeline.tables.schema import TABLE as EVENTS
from tests.pipeline.job_support import assert_same_rows, options, run_job
from tests.pipeline.support import frames_of
from tests.pipeline.test_decode import rich

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = "400"  # a batch: several of them


@pytest.fixture(scope="module")
def filled(spark: SparkSession, busy_logs: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with all of the busy day, in several batches; for reading only."""
    lake = tmp_path_factory.mktemp("filled") / "lake"
    outcome = run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
    assert outcome.code == 0 and outcome.summary["batches"] > 2
    return lake


@pytest.fixture
def lake(filled: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(filled, tmp_path / "lake"))


@pytest.fixture
def logs(busy_logs: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(busy_logs, tmp_path / "logs"))


@pytest.fixture
def read(spark: SparkSession) -> Any:
    return lambda path, table="events": Lake(path).read(spark, table)


def test_the_lake_has_what_history_has(spark: SparkSession, busy_logs: str, filled: Path, read: Any) -> None:
    rows = read(filled)
    assert rows.columns == list(EVENTS.names())
    history = spark.read.format("baton").load(busy_logs)
    assert_same_rows(rows.drop("source", "date"), history)
    assert rows.where("queue IS NOT NULL AND queue_name IS NULL").count() == 0
    assert rows.where("date != to_date(time) OR source != ''").count() == 0


def test_the_queues_are_those_that_events_tell_of(busy_logs: str, filled: Path, read: Any) -> None:
    """As a plain loop over the same log finds them."""
    history = open_history(busy_logs)
    told = Counter[tuple[object, ...]]()
    for span in history.shards():
        for event in events(history.frames(span.shard, span.first)):
            if event["event"] in TELLING:
                policies = json.loads(event["detail"] or "{}")
                for policy in policies if isinstance(policies, list) else [policies]:
                    told[
                        event["shard"],
                        event["logical_time"],
                        policy.get("queue", event["queue"]),
                        policy.get("name", event["queue_name"]),
                        policy.get("fifo"),
                        json.dumps(policy, sort_keys=True) if policy else None,
                        event["event"] == "queue_closed",
                    ] += 1
    found = read(filled, "queues")
    assert found.columns == list(QUEUES.names())
    rows = found.collect()
    assert told and told == Counter(
        (
            row.shard,
            row.logical_time,
            row.queue,
            row.name,
            row.fifo,
            json.dumps(json.loads(row.policy), sort_keys=True) if row.policy else None,
            row.closed,
        )
        for row in rows
    )
    assert {row.name for row in rows if row.closed} == {"spare-6"}


def test_a_base_tells_all_queues(spark: SparkSession) -> None:
    """What stands for the front of a log that was dropped."""
    frames = frames_of(rich())
    batch = Decoder(dictionaries=False).decode(frames)
    told = queues(spark.createDataFrame(pa.Table.from_batches([batch])).selectExpr("*", "'' AS source"))
    rows = told.where("event = 'base'").orderBy("queue").collect()
    assert [(row.queue, row.fifo, row.closed) for row in rows] == [
        (1, False, False),
        (2, False, False),
        (3, True, False),
    ]
    assert json.loads(rows[0].policy)["max_receives"] == 2


def test_a_batch_and_its_position_are_one_commit(
    spark: SparkSession, busy_logs: str, lake: Path, filled: Path, read: Any
) -> None:
    """A run that finds nothing new adds nothing, also after the lake was compacted."""
    for _ in range(2):
        before = Lake(lake).snapshot("events").version
        outcome = run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
        assert outcome.summary["batches"] == outcome.summary["events"] == 0
        assert Lake(lake).snapshot("events").version == before
        for table in ("events", "queues"):
            assert_same_rows(read(lake, table), read(filled, table))
        run_job(spark, compact, lake=lake)
        assert len(Lake(lake).files("events")) == len(set(map(os.path.dirname, Lake(lake).files("events"))))


def test_queues_that_a_crash_left_out_are_told_by_the_next_run(
    spark: SparkSession, busy_logs: str, tmp_path: Path, filled: Path, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"

    def die(*_: object, **__: object) -> None:
        raise InvalidInput("no queues today")

    with monkeypatch.context() as patched:
        patched.setattr(ingest.Ingest, "write_queues", die)
        with pytest.raises(InvalidInput, match="no queues today"):
            run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
    assert Lake(lake).rows("events") and not Lake(lake).rows("queues")
    run_job(spark, compact, lake=lake)
    run_job(spark, ingest, lake=lake, history=busy_logs)
    for table in ("events", "queues"):
        assert_same_rows(read(lake, table), read(filled, table))


def test_damage_and_gaps_stop_it_and_it_goes_on_when_that_is_mended(
    spark: SparkSession, logs: Path, tmp_path: Path, filled: Path, read: Any
) -> None:
    lake = tmp_path / "lake"
    segment = logs / "shard-0001" / "segment-00000000000000000001.log"
    whole = segment.read_bytes()
    middle = len(whole.rstrip(b"\0")) // 2
    segment.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x55]) + whole[middle + 1 :])
    message = failing(spark, lake, logs)
    assert segment.name in message, message
    done = Lake(lake).rows("events")
    assert done
    gone = segment.rename(segment.with_name("segment-00000000000000000999.log"))
    message = failing(spark, lake, logs)
    assert "Frames " in message and " to 998 of shard 1 are no longer in" in message, message
    gone.rename(segment)
    assert Lake(lake).rows("events") == done
    segment.write_bytes(whole)
    run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=str(logs))
    assert_same_rows(read(lake), read(filled))


def failing(spark: SparkSession, lake: Path, logs: Path) -> str:
    """What the user is told."""
    with pytest.raises(Exception, match=r"shard 1|batonq") as caught:
        run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=str(logs))
    message = sentence(caught.value)
    assert "\n" not in message and "Spark" not in message, message
    return message


def test_one_lake_takes_several_clusters(spark: SparkSession, busy_logs: str, lake: Path, read: Any) -> None:
    run_job(spark, ingest, "--cluster", "west", "--bodies", lake=lake, history=busy_logs)
    rows = read(lake)
    counts = {row.source: row["count"] for row in rows.groupBy("source").count().collect()}
    assert counts.keys() == {"", "west"} and counts[""] == counts["west"]
    assert rows.where("event = 'sent' AND (source = 'west') != (body IS NOT NULL)").count() == 0
    assert rows.where("queue IS NOT NULL AND queue_name IS NULL").count() == 0


@pytest.mark.parametrize("step", ["written", "write_queues"])
def test_of_two_at_once_the_second_adds_nothing_twice(
    spark: SparkSession,
    busy_logs: str,
    tmp_path: Path,
    filled: Path,
    read: Any,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Another run loads the same batch when this one has written its files, or added its events."""
    lake, plain = tmp_path / "lake", getattr(ingest.Ingest, step)

    def overtaken(self: ingest.Ingest, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        before = run_job(spark, ingest, lake=lake, history=busy_logs) if step == "write_queues" else None
        found = plain(self, *given, **named)
        if before is None:
            run_job(spark, ingest, lake=lake, history=busy_logs)
        return found

    monkeypatch.setattr(ingest.Ingest, step, overtaken)
    refused = pytest.raises(OwnershipHeld, match=r"added the same rows .* not added twice")
    with refused if step == "written" else nullcontext():
        run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
    for table in ("events", "queues"):
        assert_same_rows(read(lake, table), read(filled, table))


def test_it_follows_history_until_it_is_asked_to_stop(
    spark: SparkSession, busy_logs: str, tmp_path: Path, filled: Path, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options("ingest", "--follow", "--every", "0", "--frames", FRAMES, lake=tmp_path, history=busy_logs)
    following, asked, looks = ingest.Ingest(Context(given, spark=spark)), threading.Event(), []
    plain = following.load_next

    def noted(ranges: Any) -> bool:
        looks.append(plain(ranges))
        if looks[-2:] == [False, False]:
            asked.set()
        return looks[-1]

    monkeypatch.setattr(following, "load_next", noted)
    following.run(asked)
    assert looks.count(True) > 2, "several batches, and it looked again when there was nothing more"
    assert_same_rows(read(tmp_path), read(filled))


def test_a_shard_that_history_does_not_have_any_more_is_named(spark: SparkSession, logs: Path, lake: Path) -> None:
    shutil.rmtree(logs / "shard-0001")
    with pytest.raises(NotFound, match=r"Shard 1, with frame \d+ as the next one, is no longer in"):
        run_job(spark, ingest, lake=lake, history=str(logs))


@pytest.mark.parametrize("words", [("--cluster", "a/b"), ("--frames", "-1")])
def test_options_that_cannot_be(words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        run_job(None, ingest, *words, lake=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("deleted", ["events", "queues"])
def test_a_table_that_was_deleted_is_loaded_again(
    spark: SparkSession, busy_logs: str, tmp_path: Path, read: Any, deleted: str
) -> None:
    lake = tmp_path / "lake"
    run_job(spark, ingest, lake=lake, history=busy_logs)
    before = {table: Lake(lake).rows(table) for table in ("events", "queues")}
    shutil.rmtree(lake / deleted)
    for _ in range(2):
        run_job(spark, ingest, lake=lake, history=busy_logs)
        assert {table: Lake(lake).rows(table) for table in before} == before

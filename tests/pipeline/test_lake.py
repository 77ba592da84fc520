"""The lake: a batch counts once, a table is replaced at once, and a schema only grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batonq.errors import InvalidInput, NotFound, OwnershipHeld
from batonq.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def numbers(spark: SparkSession, start: int, stop: int, *, day: str = "2026-01-01") -> DataFrame:
    return spark.range(start, stop, 1, 1).selectExpr("id", f"DATE '{day}' AS date")


def ids(spark: SparkSession, lake: Lake, table: str = "events") -> list[int]:
    return sorted(row.id for row in lake.read(spark, table).collect())


def folders(lake: Lake, table: str = "events") -> list[str]:
    return sorted(name for name in os.listdir(lake.path / table) if name.startswith("batch="))


def test_a_batch_is_read_once_however_often_it_is_written(spark: SparkSession, lake: Lake) -> None:
    for _ in range(2):
        note = lake.write(numbers(spark, 0, 10), "events", batch="000000", by=("date",))
    lake.write(numbers(spark, 10, 15, day="2026-01-02"), "events", batch="000001", by=("date",))
    assert note.rows == 10 and ids(spark, lake) == list(range(15))
    assert lake.rows("events") == 15 and lake.tables() == ["events"]
    assert [path.rpartition("/")[0].rpartition("/")[2] for path in lake.files("events")] == [
        "date=2026-01-01",
        "date=2026-01-02",
    ]
    assert lake.read(spark, "events").columns == ["id", "date"]
    assert lake.read(spark, "events").where("date = '2026-01-02'").count() == 5


def test_an_empty_batch_is_a_batch(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 0), "events", batch="000000", by=("date",))
    assert lake.has("events") and lake.files("events") == [] and ids(spark, lake) == []
    assert lake.read(spark, "events").columns == ["id", "date"]


def test_a_table_that_is_not_there_is_named(spark: SparkSession, lake: Lake) -> None:
    assert not lake.has("events") and lake.tables() == []
    with pytest.raises(NotFound, match=r"has no table message_lifecycle\. Create it with `baton pipeline lifecycle`"):
        lake.read(spark, "message_lifecycle")


def test_a_table_made_anew_may_be_made_from_itself(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 10), "t", batch="a")
    lake.replace(lake.read(spark, "t").where("id < 3"), "t")
    assert ids(spark, lake, "t") == [0, 1, 2]
    lake.write(numbers(spark, 0, 10), "t", batch="a")  # comes again, late
    assert ids(spark, lake, "t") == [0, 1, 2]
    assert len(folders(lake, "t")) == 2, "we were reading it"
    lake.close()
    assert len(folders(lake, "t")) == 1


def test_readers_keep_their_files(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 10), "t", batch="a")
    with Lake(lake.path) as reader:
        before = reader.read(spark, "t")
        lake.replace(numbers(spark, 10, 12), "t")
        assert before.count() == 10 and ids(spark, lake, "t") == [10, 11]
    lake.close()
    assert len(folders(lake, "t")) == 1


def test_a_second_writer_is_refused(spark: SparkSession, lake: Lake) -> None:
    told = rf"is being written by process {os.getpid()} on "
    with lake._files("events").writing(), pytest.raises(OwnershipHeld, match=told):
        Lake(lake.path).write(numbers(spark, 0, 1), "events", batch="000000")
    Lake(lake.path).write(numbers(spark, 0, 1), "events", batch="000000")


def test_leftovers_of_a_crash_are_cleaned_by_the_next_writer(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 2), "events", batch="000000", by=("date",))
    leftover = lake.path / "events" / "batch=000001-0badcafe" / "date=2026-01-01"
    leftover.mkdir(parents=True)
    (leftover / "part-0.parquet").write_bytes(b"half")
    (leftover.parent / "_temporary" / "0").mkdir(parents=True)
    (lake.path / "events" / "_batches" / "000001.json.tmp").write_text("{")
    assert ids(spark, lake) == [0, 1]
    lake.close()
    again = Lake(lake.path)
    again.write(numbers(spark, 2, 4), "events", batch="000001", by=("date",))
    assert ids(spark, again) == [0, 1, 2, 3]
    assert len(folders(again)) == 2
    assert sorted(os.listdir(lake.path / "events" / "_batches")) == ["000000.json", "000001.json"]


def test_columns_are_added_and_never_changed(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 2), "t", batch="1", by=("date",))
    lake.write(numbers(spark, 2, 3).selectExpr("id", "'x' AS extra", "date"), "t", batch="2", by=("date",))
    lake.write(numbers(spark, 3, 4), "t", batch="3", by=("date",))
    rows: list[Any] = lake.read(spark, "t").orderBy("id").collect()
    assert [(row.id, row.extra) for row in rows] == [(0, None), (1, None), (2, "x"), (3, None)]
    with pytest.raises(InvalidInput, match="The column extra of the table t is string and cannot become integer"):
        lake.write(numbers(spark, 4, 5).selectExpr("id", "1 AS extra", "date"), "t", batch="4", by=("date",))
    assert ids(spark, lake, "t") == [0, 1, 2, 3]


def test_compaction_keeps_every_row_once(spark: SparkSession, lake: Lake) -> None:
    for number in range(4):
        part = numbers(spark, number * 10, number * 10 + 10).union(
            numbers(spark, 100 + number, 101 + number, day="2026-01-02")
        )
        lake.write(part, "events", batch=f"{number:06}", by=("date",))
    everything = ids(spark, lake)
    lake.close()
    with Lake(lake.path) as reader:
        before = reader.read(spark, "events")
        groups = list(lake.compact(spark, "events"))
        assert sorted(row.id for row in before.collect()) == everything == ids(spark, lake)
    assert [(group.partition, group.rows) for group in groups] == [("date=2026-01-01", 40), ("date=2026-01-02", 4)]
    assert len(lake.files("events")) == 2
    lake.write(numbers(spark, 0, 10), "events", batch="000000", by=("date",))  # replayed after it was compacted
    assert ids(spark, lake) == everything
    assert list(lake.compact(spark, "events")) == [], "nothing is left to do"


@pytest.mark.parametrize("path", ["a*b", "a[1]", "{x}"])
def test_a_path_that_spark_would_expand_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="The path of a lake"):
        Lake(path)

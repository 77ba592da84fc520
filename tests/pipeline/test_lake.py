"""The lake: a batch counts once, a table is replaced at once, a schema only grows, and readers never lose a file."""

from __future__ import annotations

import json
import resource
import threading
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from batonq.errors import InvalidInput, LogError, NotFound, OwnershipHeld
from batonq.pipeline.jobs.problems import sentence
from batonq.pipeline.lake import Lake, parquet_files, tables
from batonq.pipeline.lake.delta import Change, DeltaLog, Snapshot, Step
from batonq.pipeline.lake.storage import Storage
from tests.pipeline.lake_rig import FakeFrame, Fuse, burning, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READS = 200
WRITERS = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def numbers(spark: SparkSession, start: int, stop: int, *, day: str = "2026-01-01") -> DataFrame:
    return spark.range(start, stop, 1, 1).selectExpr("id", f"DATE '{day}' AS date")


def ids(spark: SparkSession, lake: Lake, table: str = "events", version: int | None = None) -> list[int]:
    return sorted(row.id for row in lake.read(spark, table, version).collect())


def test_a_batch_is_read_once_however_often_it_is_written(spark: SparkSession, lake: Lake) -> None:
    for count in (10, 0):
        files = lake.write(numbers(spark, 0, 10), "events", batch="000000", by=("date",))
        assert sum(file.rows for file in files) == count
    lake.write(numbers(spark, 10, 15, day="2026-01-02"), "events", batch="000001", by=("date",))
    assert ids(spark, lake) == list(range(15))
    assert lake.rows("events") == 15 and lake.tables() == ["events"]
    assert [path.split("/")[-2] for path in lake.files("events")] == ["date=2026-01-01", "date=2026-01-02"]
    rows = lake.read(spark, "events")
    assert rows.columns == ["id", "date"] and rows.where("date = '2026-01-02'").count() == 5
    assert rows.schema["date"].dataType.typeName() == "date"
    assert ids(spark, lake, version=1) == list(range(10)), "an older version"
    with pytest.raises(InvalidInput, match="has no version 99: the newest one is 2"):
        lake.read(spark, "events", 99)


def test_an_empty_batch_is_a_batch(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 0), "events", batch="000000", by=("date",))
    assert lake.has("events") and lake.files("events") == [] and ids(spark, lake) == []
    assert lake.read(spark, "events").columns == ["id", "date"]


def test_a_table_that_is_not_there_is_named(spark: SparkSession, lake: Lake) -> None:
    assert not lake.has("events") and lake.tables() == []
    with pytest.raises(NotFound, match=r"has no table message_lifecycle\. Create it with `baton pipeline lifecycle`"):
        lake.read(spark, "message_lifecycle")


def test_a_table_of_the_former_format_says_what_to_do(lake: Lake) -> None:
    Path(lake.path, "events", "_batches").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"earlier release.*Ingest history again into a new lake"):
        lake.files("events")


def test_a_table_made_anew_may_be_made_from_itself(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 10), "t", batch="a")
    before = lake.read(spark, "t")
    made = lake.replace(before.where("id < 3"), "t", since=lake.content("t"), positions={"events": 7})
    assert ids(spark, lake, "t") == [0, 1, 2] and made.rows == 3 and made.position("events") == 7
    lake.write(numbers(spark, 0, 10), "t", batch="a")  # comes again, late
    assert ids(spark, lake, "t") == [0, 1, 2]
    assert before.count() == 10, "a reader keeps its files"
    assert lake.vacuum("t") == 0 and before.count() == 10, "for a while"


def test_columns_are_added_and_never_changed(spark: SparkSession, lake: Lake) -> None:
    lake.write(numbers(spark, 0, 2), "t", batch="1", by=("date",))
    lake.write(numbers(spark, 2, 3).selectExpr("id", "'x' AS extra", "date"), "t", batch="2", by=("date",))
    lake.write(numbers(spark, 3, 4), "t", batch="3", by=("date",))
    rows: list[Any] = lake.read(spark, "t").orderBy("id").collect()
    assert [(row.id, row.extra) for row in rows] == [(0, None), (1, None), (2, "x"), (3, None)]
    with pytest.raises(InvalidInput, match="The column extra of the table t is string and cannot become integer"):
        lake.write(numbers(spark, 4, 5).selectExpr("id", "1 AS extra", "date"), "t", batch="4", by=("date",))
    assert ids(spark, lake, "t") == [0, 1, 2, 3]
    assert pl.read_delta(f"{lake.path}/t").sort("id")["extra"].to_list() == [None, None, "x", None]


def test_every_type_comes_back_and_the_statistics_are_right(spark: SparkSession, lake: Lake) -> None:
    frame = spark.range(0, 1000, 1, 1).selectExpr(
        "id",
        "CAST(id % 7 AS smallint) AS small",
        "CAST(id AS int) AS whole",
        "CAST(id / 3 AS double) AS part",
        "id % 2 = 0 AS even",
        "timestamp_micros(1700000000000000 + id * 1001) AS time",
        "date_from_unix_date(CAST(id AS int)) AS day",
        "IF(id % 3 = 0, NULL, concat('t', id)) AS text",
        "repeat('x', 100) AS long_text",
        "CAST('b' AS binary) AS bytes",
        "map('a', text) AS pairs",
        "array(id, NULL) AS list",
        "DATE '2026-01-01' AS date",
    )
    lake.write(frame, "t", by=("date",))
    assert sorted(map(repr, lake.read(spark, "t").collect())) == sorted(map(repr, frame.collect()))
    assert lake.read(spark, "t", columns=["date", "small"]).columns == ["small", "date"]
    (action,) = _actions(lake, "t")
    assert action["num_records"] == 1000 and action["null_count.text"] == 334
    assert (action["min.id"], action["max.id"], action["min.small"], action["max.small"]) == (0, 999, 0, 6)
    assert (action["min.text"], action["max.text"]) == ("t1", "t998")
    assert str(action["min.time"]) == "2023-11-14 22:13:20+00:00"
    assert str(action["max.time"]) == "2023-11-14 22:13:20.999999+00:00"
    assert action.get("max.long_text") is action.get("max.part") is None, "none rather than a wrong one"
    found = pl.scan_delta(f"{lake.path}/t").filter(pl.col("id") == 500).collect()
    assert found["text"].to_list() == ["t500"]


def _actions(lake: Lake, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(lake.snapshot(table).table.get_add_actions(flatten=True)).to_pylist()
    return rows


def test_compaction_keeps_every_row_once(spark: SparkSession, lake: Lake) -> None:
    for number in range(4):
        part = numbers(spark, number * 10, number * 10 + 10).union(
            numbers(spark, 100 + number, 101 + number, day="2026-01-02")
        )
        lake.write(part, "events", batch=f"{number:06}", by=("date",))
    everything = ids(spark, lake)
    before = lake.read(spark, "events")
    groups = list(lake.compact(spark, "events"))
    assert sorted(row.id for row in before.collect()) == everything == ids(spark, lake)
    assert [(group.day, group.rows) for group in groups] == [("2026-01-01", 40), ("2026-01-02", 4)]
    assert len(lake.files("events")) == 2
    log = max(Path(lake.path, "events", "_delta_log").glob("*.json")).read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    changed = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert changed and not any(changed), "readers of changes are told of none"
    lake.write(numbers(spark, 0, 10), "events", batch="000000", by=("date",))  # replayed after it was compacted
    assert ids(spark, lake) == everything
    assert list(lake.compact(spark, "events")) == [], "nothing is left to do"


def test_a_task_with_many_days_and_little_room_writes_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes files early, and begins others for the same day."""
    for name, most in (("ROW_GROUP_BYTES", 300), ("WAITING_BYTES_MAX", 2_000), ("OPEN_FILES_MAX", 4)):
        monkeypatch.setattr(parquet_files, name, most)
    start = date(2026, 1, 1)
    days = [None if at % 50 == 0 else start + timedelta(days=at % 30) for at in range(2_000)]
    whole = pa.RecordBatch.from_pydict({"id": list(range(2_000)), "date": pa.array(days, pa.date32())})
    parts = [whole.slice(at, 100) for at in range(0, 2_000, 100)]
    files = list(parquet_files.write(parts, Storage.of(tmp_path), ("date",)))
    found: dict[int, str | None] = {}
    for file in files:
        rows = parquet.read_table(tmp_path / file.path, partitioning=None)
        assert rows.column_names == ["id"] and rows.num_rows == file.rows
        assert json.loads(file.stats)["maxValues"] == {"id": max(rows["id"].to_pylist())}
        assert file.bytes == (tmp_path / file.path).stat().st_size
        assert file.path.startswith(f"date={file.day or '__HIVE_DEFAULT_PARTITION__'}/")
        found |= dict.fromkeys(rows["id"].to_pylist(), file.day)
    assert sum(file.rows for file in files) == 2_000 and len(files) > 31
    assert found == {at: None if day is None else str(day) for at, day in enumerate(days)}


# --- other writers at the same time ---------------------------------------------------------------


def filled(lake: Lake, batches: int = 4) -> None:
    for number in range(batches):
        frame: Any = FakeFrame([(number, 0)])
        lake.write(frame, "t", batch=f"b{number}", by=("day",))


def in_between(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    """`other` happens once, between the last look at the table and the next commit."""
    plain, todo = DeltaLog._commit, [other]

    def commit(log: DeltaLog, snapshot: Snapshot, change: Change, token: str) -> None:
        if todo:
            todo.pop()()
        plain(log, snapshot, change, token)

    monkeypatch.setattr(DeltaLog, "_commit", commit)


def replaced(lake: Lake, *rows: int) -> Any:
    frame: Any = FakeFrame([(row, 0) for row in rows])
    return lambda: lake.replace(frame, "t", by=("day",), since=lake.content("t"))


def compacted(lake: Lake) -> list[Any]:
    spark: Any = None
    return list(lake.compact(spark, "t"))


def test_a_batch_beside_a_compaction_and_a_compaction_beside_a_batch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame: Any = FakeFrame([(7, 0)])
    with burning(Fuse(None)):
        filled(lake)
        with monkeypatch.context() as patched:
            in_between(patched, lambda: compacted(lake))
            lake.write(frame, "t", batch="more", by=("day",))
        assert [row for row, _ in rows_in(lake.files("t"))] == [0, 1, 2, 3, 7] and len(lake.files("t")) == 2
        in_between(monkeypatch, lambda: lake.write(frame, "t", batch="again", by=("day",)))
        assert len(compacted(lake)) == 1
    assert [row for row, _ in rows_in(lake.files("t"))] == [0, 1, 2, 3, 7, 7] and len(lake.files("t")) == 2


def test_a_compaction_of_what_was_replaced_or_compacted_changes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with burning(Fuse(None)):
        for other in (replaced(lake, 9), lambda: compacted(lake)):
            filled(lake)
            frame: Any = FakeFrame([(1, 0), (2, 0)])
            lake.write(frame, "t", by=("day",))
            lake.write(frame, "t", by=("day",))
            expected: list[int] = []
            with monkeypatch.context() as patched:

                def told(other: Any = other, expected: list[int] = expected) -> None:
                    other()
                    expected += [row for row, _ in rows_in(lake.files("t"))]

                in_between(patched, told)
                assert compacted(lake) == []
            assert [row for row, _ in rows_in(lake.files("t"))] == expected


def test_of_two_that_replace_a_table_or_add_a_batch_the_second_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame: Any = FakeFrame([(5, 0)])

    def add() -> Any:
        return lake.write(frame, "t", batch="x", by=("day",))

    with burning(Fuse(None)):
        filled(lake)
        with monkeypatch.context() as patched:
            in_between(patched, replaced(lake, 1))
            with pytest.raises(OwnershipHeld, match="recreated the table"):
                replaced(lake, 2)()
        with monkeypatch.context() as patched:
            in_between(patched, lambda: compacted(lake))
            replaced(lake, 3)()
        with monkeypatch.context() as patched:
            in_between(patched, add)
            with pytest.raises(OwnershipHeld, match="They were not added twice"):
                add()
    assert [row for row, _ in rows_in(lake.files("t"))] == [3, 5]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1_000))
def test_many_writers_at_once_add_every_row_once(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    lake = Lake(tmp_path_factory.mktemp("many") / str(seed))
    frame: Any = FakeFrame([(0, 0)])
    lake.write(frame, "t", by=("day",))
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            for number in range(5):
                rows: Any = FakeFrame([(10 * writer + number, 0)])
                lake.write(rows, "t", batch=f"{writer}-{number}", by=("day",))
        except BaseException as problem:
            errors.append(problem)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(1, WRITERS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    expected = [0, *(10 * writer + number for writer in range(1, WRITERS + 1) for number in range(5))]
    assert [row for row, _ in rows_in(lake.files("t"))] == expected


# --- other readers --------------------------------------------------------------------------------


def test_duckdb_and_polars_read_throughout_compaction_and_vacuum(lake: Lake) -> None:
    """Every row once, in each of many reads, while the table grows and is compacted and vacuumed all the time."""
    with burning(Fuse(None)):
        filled(lake)
        errors: list[BaseException] = []
        done = threading.Event()

        def write() -> None:
            try:
                number = 4
                while not done.is_set():
                    frame: Any = FakeFrame([(number, number % 2)])
                    lake.write(frame, "t", by=("day",))
                    number += 1
                    if number % 5 == 0:
                        compacted(lake)
                        lake.vacuum("t")
            except BaseException as problem:
                errors.append(problem)

        writer = threading.Thread(target=write)
        writer.start()
        seen = 0
        for read in range(READS):
            if read % 2:
                files = lake.files("t")
                found = [row for (row,) in duckdb.execute("SELECT id FROM read_parquet($1)", [files]).fetchall()]
            else:
                found = pl.scan_delta(f"{lake.path}/t").select("id").collect()["id"].to_list()
            assert sorted(found) == list(range(len(found))), "one is missing, or there twice"
            assert len(found) >= seen
            seen = len(found)
        done.set()
        writer.join()
    assert not errors and seen > 4


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_or_missing_file_is_named_with_what_to_do(spark: SparkSession, lake: Lake) -> None:
    lake.write(spark.range(0, 5000, 1, 1).selectExpr("id", "hash(id) AS noise"), "t")
    (name,) = lake.files("t")
    column = parquet.read_metadata(name).row_group(0).column(1)
    begin = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    whole, at = Path(name).read_bytes(), begin + column.total_compressed_size // 2
    Path(name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for _ in range(2):
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|PATH_NOT_FOUND|reading file") as caught:
            lake.read(spark, "t").selectExpr("sum(noise)").collect()
        told = sentence(caught.value)
        assert Path(name).name in told and "damaged or missing. Restore it from a copy" in told, told
        Path(name).unlink(missing_ok=True)


def test_a_damaged_log_is_named_with_what_to_do(lake: Lake) -> None:
    filled(lake, 2)
    Path(lake.path, "t", "_delta_log", f"{1:020}.json").write_text("{")
    with pytest.raises(LogError, match=r"/t cannot be read: .* restore the table from a copy"):
        lake.files("t")


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a*b", "a[1]", "{x}"])
def test_a_path_that_spark_would_expand_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="The path of a lake"):
        Lake(path)


@pytest.mark.parametrize(
    "url", ["gs://bucket/lake", "s3a://bucket/lake", "s3:///lake", "file://host/lake", "abfss://x"]
)
def test_an_object_store_that_is_not_supported_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"must be a directory or s3://bucket/prefix, not .* its S3 endpoint"):
        Lake(url)


def test_the_places_of_a_lake(tmp_path: Path) -> None:
    assert Lake("s3://bucket/a/b/").path == "s3://bucket/a/b" and Lake("s3://bucket").path == "s3://bucket"
    assert Lake(f"file://{tmp_path}/my%20lake").path == str(tmp_path / "my lake") == Lake(tmp_path / "my lake").path
    assert tables.LEFTOVERS_HOURS > tables.GRACE_HOURS, "a long job has time to commit what it wrote"


def test_a_table_that_was_replaced_since_it_was_read_is_not_replaced(lake: Lake) -> None:
    with burning(Fuse(None)):
        replaced(lake, 1)()
        since = lake.content("t")
        replaced(lake, 1, 2)()
        frame: Any = FakeFrame([(1, 0), (3, 0)])
        with pytest.raises(OwnershipHeld, match="recreated the table"):
            lake.replace(frame, "t", by=("day",), since=since)
    assert [row for row, _ in rows_in(lake.files("t"))] == [1, 2]


def test_a_commit_whose_answer_is_lost_is_done(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs then asks again, finds its own commit, and takes it for that of another process."""
    from deltalake.exceptions import CommitFailedError

    plain = DeltaLog._commit

    def lost(log: DeltaLog, snapshot: Snapshot, change: Change, token: str) -> None:
        plain(log, snapshot, change, token)
        raise CommitFailedError("version exists")

    frame: Any = FakeFrame([(1, 0)])
    with burning(Fuse(None)):
        filled(lake)
        monkeypatch.setattr(DeltaLog, "_commit", lost)
        lake.write(frame, "t", by=("day",), step=Step({"p": None}, {"p": 5}))
    assert [row for row, _ in rows_in(lake.files("t"))] == [0, 1, 1, 2, 3] and lake.snapshot("t").position("p") == 5


def test_many_days_need_few_open_files(tmp_path: Path) -> None:
    days = [date(2020, 1, 1) + timedelta(days=at) for at in range(1_500)]
    batch = pa.RecordBatch.from_pydict({"id": list(range(1_500)), "date": pa.array(days, pa.date32())})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert len(list(parquet_files.write([batch], Storage.of(tmp_path), ("date",)))) == 1_500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_versions_and_places_that_cannot_be(lake: Lake) -> None:
    with burning(Fuse(None)):
        filled(lake)
    with pytest.raises(InvalidInput, match="at least 0, not -1"):
        lake.files("t", -1)
    for url in ("s3://bucket/team#1/lake", "s3://bucket/a%20b"):
        with pytest.raises(InvalidInput, match="cannot contain"):
            Lake(url)

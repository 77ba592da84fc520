"""A lake in an object store: the same tables as in a directory, whatever is killed in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from batonq.errors import LogError, OwnershipHeld
from batonq.pipeline.jobs import compact, ingest, lifecycle
from batonq.pipeline.jobs.problems import sentence
from batonq.pipeline.lake import Lake
from tests.pipeline.job_support import assert_same_rows, run_job
from tests.pipeline.lake_rig import FakeFrame, Fuse, Killed, burning
from tests.support.ports import reserve_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("in_s3")
FRAMES = "900"


@pytest.fixture
def spark(spark: SparkSession, in_s3: None) -> Iterator[SparkSession]:
    """Its tasks get the keys, as in a session that starts with them."""
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update({key: value for key, value in os.environ.items() if key.startswith("AWS_")})
    yield spark
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)


def store(s3: str) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": s3, "AWS_ALLOW_HTTP": "true"}


def ids(s3: str, lake: Lake) -> list[int]:
    """As Polars reads the table."""
    found = pl.read_delta(f"{lake.path}/t", storage_options=store(s3))
    return sorted(found["id"].to_list()) if found.width else []


def test_the_jobs_make_the_same_tables(spark: SparkSession, s3: str, busy_logs: str, tmp_path: Path) -> None:
    there, here = "s3://history/lakes/busy", tmp_path / "lake"
    for lake in (there, here):
        run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
        run_job(spark, lifecycle, lake=lake)
    one, other = Lake(there), Lake(here)
    assert one.tables() == other.tables() == ["events", "message_lifecycle", "queues"]
    for table in one.tables():
        assert_same_rows(one.read(spark, table), other.read(spark, table))
    some = ["event", "date"]
    assert_same_rows(one.read(spark, "events", columns=some), other.read(spark, "events").select(*some))
    assert not Path("s3:").exists(), "nothing is written to a directory of that name"
    before = one.files("events")
    run_job(spark, compact, "events", lake=there)
    assert len(one.files("events")) < len(before) and all(name.startswith(there) for name in before)
    assert_same_rows(one.read(spark, "events"), other.read(spark, "events"))
    assert run_job(spark, ingest, lake=there, history=busy_logs).summary["events"] == 0
    count = pl.scan_delta(f"{there}/events", storage_options=store(s3)).select(pl.len()).collect().item()
    assert count == other.rows("events")


def test_a_damaged_file_is_named(spark: SparkSession, s3: str) -> None:
    lake = Lake("s3://history/lakes/damaged")
    lake.write(spark.range(0, 1000, 1, 1), "t")
    (name,) = lake.files("t")
    files, root = lake.storage("t").open()
    with files.open_output_stream(name.removeprefix("s3://")) as file:
        file.write(b"PAR1 and more")
    with pytest.raises(Exception, match="Traceback") as caught:
        lake.read(spark, "t").collect()
    assert f"The file {name} is damaged or missing. Restore it" in sentence(caught.value)
    assert root == "history/lakes/damaged/t"


def test_a_writer_that_dies_at_any_step_leaves_all_or_nothing(s3: str) -> None:
    """Each step of a batch, a replacement and a compaction in turn."""
    lake = Lake("s3://history/lakes/crashes")
    rows: list[int] = []
    for at in range(100):
        frame: Any = FakeFrame([(at, 0), (at + 1000, 1)])
        deaths = 0
        for work, then in (
            (lambda: lake.write(frame, "t", by=("day",)), sorted([*rows, at, at + 1000])),  # noqa: B023
            (lambda: list(lake.compact(None, "t")) if lake.has("t") else None, None),  # type: ignore[arg-type]
            (lambda: lake.replace(frame, "t", by=("day",), since=lake.content("t")), [at, at + 1000]),  # noqa: B023
        ):
            try:
                with burning(Fuse(at)):
                    work()
            except Killed:
                deaths += 1
            found = ids(s3, lake) if lake.has("t") else []
            assert found in (rows, rows if then is None else then)
            rows = found
        if not deaths:
            break
    assert at > 8, "there were so many steps"


def test_a_store_that_does_not_answer_or_has_no_such_bucket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    frame: Any = FakeFrame([(1, 0)])
    with pytest.raises(LogError, match="The Delta table s3://no-such-bucket/lake/t cannot be") as caught:
        Lake("s3://no-such-bucket/lake").write(frame, "t", by=("day",))
    assert "\x1b" not in caught.value.message
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{reserve_port()}")
    with pytest.raises(LogError, match=r"s3://history/lake/t cannot be read: .*127\.0\.0\.1"):
        Lake("s3://history/lake").has("t")


def test_of_two_writers_at_once_the_second_is_refused(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pipeline.test_lake import in_between

    lake = Lake("s3://history/lakes/two")
    frame: Any = FakeFrame([(1, 0)])
    with burning(Fuse(None)):
        lake.write(frame, "t", by=("day",))
        in_between(monkeypatch, lambda: lake.write(frame, "t", batch="x", by=("day",)))
        with pytest.raises(OwnershipHeld, match="not added twice"):
            lake.write(frame, "t", batch="x", by=("day",))
    assert ids(s3, lake) == [1, 1]

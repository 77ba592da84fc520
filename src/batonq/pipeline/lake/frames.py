"""Data frames over files of a table: Spark reads a directory itself, and an object store with Arrow in its tasks.

Spark's package has no file system for S3, and its own reader is faster where it can be used. Both verify the checksums
of pages, and name a file that is damaged or missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from batonq.errors import LogCorrupt, LogError
from batonq.pipeline.lake.parquet_files import File
from batonq.pipeline.lake.storage import Storage
from batonq.pipeline.spark.local import frame_of, nothing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASKS_MAX = 1_000
BATCH_ROWS = 32_768
STORE_FAILED = "AWS Error"  # in Arrow's errors about requests, whose objects may be well
DAMAGED = (
    "is damaged or missing. Restore it from a copy. Without one, delete the table and run the job that makes it again; "
    "events and queues are made by `baton pipeline ingest`, from history that still exists."
)


def frame_of_files(
    spark: SparkSession, table: Storage, schema: StructType, by: Sequence[str], files: Sequence[File]
) -> DataFrame:
    """The rows of the files. Columns that a file does not have are null."""
    if not files:
        return nothing(spark, schema)
    if table.local:
        reader = spark.read.schema(schema).option("basePath", table.url)
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        frame = reader.parquet(*(f"{table.url}/{file.path}" for file in files))
        return frame.select(*(f"`{name}`" for name in schema.names))
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    rows = frame_of(
        spark, [(file.path, file.day) for file in files], pa.schema([("path", pa.string()), ("day", pa.string())])
    )
    task = partial(_read_task, table=table, schema=wanted, by=tuple(by))
    return rows.repartition(min(len(files), TASKS_MAX)).mapInArrow(task, schema)


def _read_task(
    batches: Iterable[pa.RecordBatch], *, table: Storage, schema: pa.Schema, by: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    files, root = table.open()
    for batch in batches:
        for path, day in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            try:
                yield from _rows(files, f"{root}/{path}", schema, dict.fromkeys(by, day))
            except (OSError, pa.ArrowException) as problem:
                reason = " ".join(str(problem).split())
                if STORE_FAILED in reason and not isinstance(problem, FileNotFoundError):
                    raise LogError(
                        f"The file {table.url}/{path} cannot be read: {reason}. Run the job again when the "
                        "object store answers."
                    ) from problem
                raise LogCorrupt(f"The file {table.url}/{path} {DAMAGED} ({reason})") from problem


def _rows(files: Any, path: str, schema: pa.Schema, partition: dict[str, str | None]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetFile(files.open_input_file(path), page_checksum_verification=True) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, columns=there):
            columns = []
            for column in schema:
                if column.name in partition:
                    value = pa.scalar(partition[column.name], pa.string()).cast(column.type)
                    columns.append(pa.repeat(value, batch.num_rows))
                elif column.name in there:
                    columns.append(batch.column(column.name).cast(column.type))
                else:
                    columns.append(pa.nulls(batch.num_rows, column.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

"""Parquet files with the statistics that Delta keeps of them, written by Spark's tasks with Arrow.

A task writes its rows to new files, one at a time for each partition, and returns what the driver commits. Nobody reads
a footer again. Files of a task that died are not committed, and vacuum deletes them.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from batonq.object_storage import sync_path
from batonq.pipeline.lake.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

FILES = "path string, bytes bigint, rows bigint, modified_ms bigint, day string, stats string"
ROW_GROUP_BYTES = 64 << 20  # in memory
WAITING_BYTES_MAX = 256 << 20  # of all partitions of a task
OPEN_FILES_MAX = 200
COLUMNS_MAX = 32  # with statistics, as other writers of Delta do it
TEXT_LENGTH_MAX = 64  # longer texts have no minimum and maximum
NO_DAY = "__HIVE_DEFAULT_PARTITION__"


class File(NamedTuple):
    """`path` is relative to the table; `day` is the value of its partition column, if the table has one."""

    path: str
    bytes: int
    rows: int
    modified_ms: int
    day: str | None
    stats: str


def write(batches: Iterable[pa.RecordBatch], table: Storage, by: Sequence[str]) -> Iterator[File]:
    """Write the rows below `table`, by the values of the column in `by`, if there is one."""
    waiting: dict[str | None, list[pa.RecordBatch]] = {}
    sizes: dict[str | None, int] = {}
    writers: dict[str | None, _Writer] = {}

    def flush(day: str | None) -> None:
        if day not in writers:
            writers[day] = _Writer(table, by, day)
        sizes.pop(day)
        writers[day].write(waiting.pop(day))

    for batch in batches:
        for day, rows in _divided(batch, by):
            waiting.setdefault(day, []).append(rows)
            sizes[day] = sizes.get(day, 0) + rows.nbytes
            if sizes[day] >= ROW_GROUP_BYTES:
                flush(day)
        while sum(sizes.values()) > WAITING_BYTES_MAX:
            flush(max(sizes, key=lambda day: sizes[day]))
        while len(writers) > OPEN_FILES_MAX:
            yield writers.pop(next(iter(writers))).close()
    for day in list(waiting):  # one open file at a time: a task may have the rows of many days
        flush(day)
        yield writers.pop(day).close()
    for writer in writers.values():
        yield writer.close()


def as_batch(files: Iterable[File]) -> pa.RecordBatch:
    """The result of a task, with the columns `FILES`."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    columns = list(zip(*files, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(File._fields))


def _divided(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    if not by:
        yield None, batch
        return
    (name,) = by
    days = batch.column(name)
    rest = batch.drop_columns([name])
    found = pc.unique(days).to_pylist()
    for day in found:
        rows = rest if len(found) == 1 else rest.filter(pc.is_null(days) if day is None else pc.equal(days, day))
        yield (NO_DAY if day is None else str(day)), rows


class _Writer:
    """One file."""

    def __init__(self, table: Storage, by: Sequence[str], day: str | None) -> None:
        self._storage, self._day = table, day
        folder = f"{by[0]}={day}/" if by else ""
        self._path = f"{folder}part-{secrets.token_hex(16)}.parquet"
        self._writer: Any = None
        self._metadata: list[Any] = []

    def write(self, batches: list[pa.RecordBatch]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema([field.with_nullable(True) for field in batches[0].schema])
        if self._writer is None:
            files, root = self._storage.open()
            path = f"{root}/{self._path}"
            if self._storage.local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            self._writer = parquet.ParquetWriter(
                path,
                schema,
                filesystem=files,
                compression="zstd",
                compression_level=3,
                write_page_checksum=True,
                store_schema=False,
                metadata_collector=self._metadata,
            )
        table = pa.Table.from_batches([pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches])
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> File:
        self._writer.close()
        (told,) = self._metadata
        size = _size(self._storage, self._path)
        day = None if self._day == NO_DAY else self._day
        return File(self._path, size, told.num_rows, time.time_ns() // 1_000_000, day, json.dumps(statistics(told)))


def _size(table: Storage, path: str) -> int:
    """A local file, and its name, then survive a power failure."""
    files, root = table.open()
    if table.local:
        sync_path(f"{root}/{path}")
        sync_path(os.path.dirname(f"{root}/{path}"))
    return int(files.get_file_info(f"{root}/{path}").size)


def statistics(told: Any) -> dict[str, Any]:
    """Delta's statistics of a file, from Parquet's: of whole columns of numbers, times and short texts."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(min(told.num_columns, COLUMNS_MAX)):
        groups = [told.row_group(group).column(at) for group in range(told.num_row_groups)]
        name = groups[0].path_in_schema
        if "." in name or any(group.statistics is None for group in groups):
            continue  # part of a list or map
        if all(group.statistics.has_null_count for group in groups):
            nulls[name] = sum(group.statistics.null_count for group in groups)
        full = [group for group in groups if group.statistics.null_count < group.num_values]
        if full and all(group.statistics.has_min_max for group in full):
            try:
                ends = (min(group.statistics.min for group in full), max(group.statistics.max for group in full))
            except OverflowError:
                continue  # a time that Python has no date for
            if all(map(_told, ends)):
                lowest[name], highest[name] = map(_text, ends)
    return {"numRecords": told.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _told(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LENGTH_MAX
    return isinstance(value, (int, date)) and not isinstance(value, bool)


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value

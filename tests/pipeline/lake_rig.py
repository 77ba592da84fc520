"""A lake without Spark: frames that are lists of rows, and a fuse that kills the writer at any of its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyarrow import parquet

from batonq.pipeline.lake import parquet_files, tables
from batonq.pipeline.lake.delta import DeltaLog
from batonq.pipeline.lake.parquet_files import File

Row = tuple[int, int]  # a number, and the day whose partition it is in

SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "day")],
}


class Killed(BaseException):
    """Where a process would have ended."""


class Fuse:
    """Burns one step at a time; the writer dies when it is at its end. None: never."""

    def __init__(self, steps: int | None) -> None:
        self.left = steps

    def burn(self) -> None:
        if self.left is not None:
            if not self.left:
                raise Killed
            self.left -= 1


class FakeFrame:
    """What `Lake` uses of a data frame: its tasks, run here one after another."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @property
    def schema(self) -> Any:
        return mock.Mock(json=lambda: json.dumps(SCHEMA))

    def coalesce(self, _: int) -> FakeFrame:
        return self

    def mapInArrow(self, task: Callable[..., Iterator[pa.RecordBatch]], _: str) -> FakeFrame:
        batch = pa.RecordBatch.from_pydict({"id": [row[0] for row in self.rows], "day": [row[1] for row in self.rows]})
        self.result = list(task(iter([batch])))
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for batch in self.result for row in batch.to_pylist()]


def read_files(
    lake: tables.Lake, _: object, table: str, __: object, files: Sequence[File], ___: object = None
) -> FakeFrame:
    """In place of Spark's reading."""
    return FakeFrame(rows_in([f"{lake.path}/{table}/{file.path}" for file in files]))


def rows_in(paths: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for path in paths:
        day = int(Path(path).parent.name.removeprefix("day="))
        found += [(number, day) for number in parquet.read_table(path, partitioning=None).column("id").to_pylist()]
    return sorted(found)


@contextmanager
def burning(fuse: Fuse) -> Iterator[None]:
    """Every step burns the fuse: each file before it is begun, half written and whole, and each commit, before and
    after it.
    """

    def around(owner: Any, name: str) -> Any:
        plain = getattr(owner, name)

        def with_steps(*given: Any, **named: Any) -> Any:
            fuse.burn()
            result = plain(*given, **named)
            fuse.burn()
            return result

        return mock.patch.object(owner, name, with_steps)

    with (
        around(parquet_files._Writer, "write"),
        around(parquet_files._Writer, "close"),
        around(DeltaLog, "create"),
        around(DeltaLog, "_commit"),
        around(DeltaLog, "vacuum"),
        mock.patch.object(tables.Lake, "read_files", read_files),
    ):
        yield

"""A lake without Spark: frames that are lists of rows, and a fuse that kills the writer at any step on the disk."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyarrow import parquet

from batonq.log.disk import RealDisk
from batonq.pipeline.lake import files as lake_files

Row = tuple[int, int]  # a number, and the day whose partition it is in

SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "day")],
}


_remove_empty: Callable[[Path], None] = shutil.rmtree


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
    """What `Lake` uses of a data frame, and of its writer."""

    def __init__(self, rows: Sequence[Row], fuse: Fuse) -> None:
        self.rows, self.fuse = rows, fuse

    @property
    def schema(self) -> Any:
        return mock.Mock(json=lambda: json.dumps(SCHEMA), names=["id", "day"])

    @property
    def sparkSession(self) -> Any:
        return mock.Mock(conf=mock.Mock(get=lambda name: "0"))

    @property
    def write(self) -> FakeFrame:
        return self

    def option(self, *_: object) -> FakeFrame:
        return self

    partitionBy = select = coalesce = option  # noqa: N815

    def parquet(self, folder: str) -> None:
        by_day: dict[int, list[int]] = defaultdict(list)
        for number, day in self.rows:
            by_day[day].append(number)
        self.fuse.burn()
        for day, numbers in by_day.items():
            target = Path(folder, f"day={day}")
            target.mkdir(parents=True)
            (target / "part.parquet").write_bytes(b"half of a file")
            self.fuse.burn()
            parquet.write_table(pa.table({"id": numbers}), target / "part.parquet")
            self.fuse.burn()


class FakeSpark:
    """What `Lake` uses of a session to read."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    @property
    def read(self) -> FakeSpark:
        return self

    def schema(self, _: object) -> FakeSpark:
        return self

    def option(self, *_: object) -> FakeSpark:
        return self

    def range(self, _: int) -> FakeSpark:
        return self

    def selectExpr(self, *_: str) -> FakeFrame:
        """Of a range without rows."""
        return FakeFrame([], self.fuse)

    def parquet(self, *paths: str) -> FakeFrame:
        return FakeFrame(rows_in(paths), self.fuse)


def rows_in(paths: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for path in paths:
        day = int(Path(path).parent.name.removeprefix("day="))
        found += [(number, day) for number in parquet.read_table(path, partitioning=None).column("id").to_pylist()]
    return sorted(found)


@contextmanager
def burning(fuse: Fuse) -> Iterator[None]:
    """Every step of the lake on the disk burns the fuse, and a tree is deleted file by file."""
    unlink = Path.unlink

    def write_atomically(_: RealDisk, path: str, buffers: Sequence[bytes]) -> None:
        fuse.burn()
        with open(f"{path}.tmp", "wb") as file:
            file.write(buffers[0][: len(buffers[0]) // 2])
            fuse.burn()
        with open(f"{path}.tmp", "wb") as file:
            file.write(buffers[0])
        fuse.burn()
        os.replace(f"{path}.tmp", path)
        fuse.burn()

    def burning_unlink(path: Path, missing_ok: bool = False) -> None:
        fuse.burn()
        unlink(path, missing_ok=missing_ok)

    def rmtree(path: Path) -> None:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                burning_unlink(file)
        fuse.burn()
        _remove_empty(path)

    with (
        mock.patch.object(lake_files, "write_atomically", write_atomically),
        mock.patch.object(Path, "unlink", burning_unlink),
        mock.patch.object(shutil, "rmtree", rmtree),
    ):
        yield

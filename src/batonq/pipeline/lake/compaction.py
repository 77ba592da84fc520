"""Selects the files of a table that are rewritten together. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batonq.pipeline.lake.parquet_files import File

FILE_BYTES = 128 << 20


@dataclass(slots=True, frozen=True)
class Group:
    """Small files of one partition, to become `count` files."""

    files: tuple[File, ...]
    count: int

    @property
    def day(self) -> str | None:
        return self.files[0].day

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def groups(files: Sequence[File], file_bytes: int = FILE_BYTES) -> Iterator[Group]:
    """One group per partition with at least two files under half the size."""
    small: dict[str, list[File]] = {}
    for file in files:
        if file.bytes < file_bytes // 2:
            small.setdefault(file.day or "", []).append(file)
    for _, found in sorted(small.items()):
        count = max(1, round(sum(file.bytes for file in found) / file_bytes))
        if len(found) > count:
            yield Group(tuple(found), count)

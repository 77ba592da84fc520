"""Selects the files of a table that are rewritten together. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batonq.pipeline.lake.notes import File, Note

FILE_BYTES = 128 << 20


@dataclass(slots=True, frozen=True)
class Group:
    """Small files of one partition, to become `count` files. `notes` contain them; the other files of those notes are
    `kept`.
    """

    partition: str
    files: tuple[File, ...]
    notes: tuple[Note, ...]
    kept: tuple[File, ...]
    count: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def groups(notes: Sequence[Note], file_bytes: int = FILE_BYTES) -> Iterator[Group]:
    """One group per partition with at least two files under half the size; `notes` are the valid ones."""
    small: dict[str, list[File]] = {}
    for note in notes:
        for file in note.files:
            if file.bytes < file_bytes // 2:
                small.setdefault(file.partition, []).append(file)
    for partition, files in sorted(small.items()):
        count = max(1, round(sum(file.bytes for file in files) / file_bytes))
        if len(files) > count:
            yield _group(partition, files, notes, count)


def _group(partition: str, files: list[File], notes: Sequence[Note], count: int) -> Group:
    chosen = set(files)
    involved = tuple(note for note in notes if not chosen.isdisjoint(note.files))
    kept = tuple(file for note in involved for file in note.files if file not in chosen)
    return Group(partition, tuple(files), involved, kept, count)

"""The meaning of a table's notes: which batches are valid, and which files can be deleted. Pure functions.

A batch of files is part of the table when its note exists; the note is written last, atomically. A note may replace
other batches: their rows are in its files (compaction), or it supersedes them (a recreated table). From then on they
are not valid, whether or not their own notes and files have been deleted. The replaced batches stay recorded, so that a
batch that is written again later is known to exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from batonq.errors import InvalidInput, LogCorrupt

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<digits>\d{1,18})")
_TO = ":"


class Run(NamedTuple):
    """Batches with one prefix and consecutive numbers of one width; without a number: the one called `prefix`."""

    prefix: str
    width: int
    first: int
    last: int

    @classmethod
    def of(cls, batch: str) -> Run:
        found = _NUMBERED.fullmatch(batch)
        if found is None:
            return cls(batch, 0, 0, 0)
        number = int(found["digits"])
        return cls(found["prefix"], len(found["digits"]), number, number)

    def __str__(self) -> str:
        if not self.width:
            return self.prefix
        ends = [f"{self.prefix}{number:0{self.width}}" for number in (self.first, self.last)]
        return ends[0] if self.first == self.last else _TO.join(ends)


class Batches:
    """A set of batch ids; consecutive numbers take no more space than one."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        merged: list[Run] = []
        for run in sorted(set(runs)):
            before = merged[-1] if merged else None
            if before and before[:2] == run[:2] and run.first <= before.last + 1:
                merged[-1] = before._replace(last=max(before.last, run.last))
            else:
                merged.append(run)
        self._runs = tuple(merged)

    @classmethod
    def of(cls, ids: Iterable[str]) -> Batches:
        return cls(map(Run.of, ids))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Batches:
        runs = []
        for text in texts:
            first, _, last = text.partition(_TO)
            runs.append(Run.of(first)._replace(last=Run.of(last or first).last))
        return cls(runs)

    def texts(self) -> list[str]:
        return [str(run) for run in self._runs]

    def __or__(self, other: Batches) -> Batches:
        return Batches((*self._runs, *other._runs))

    def __contains__(self, batch: str) -> bool:
        one = Run.of(batch)
        return any(run[:2] == one[:2] and run.first <= one.first <= run.last for run in self._runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batches) and self._runs == other._runs

    def __hash__(self) -> int:
        return hash(self._runs)

    def prefixes(self) -> set[str]:
        """The prefixes of the numbers."""
        return {run.prefix for run in self._runs if run.width}

    def highest(self, prefix: str) -> int:
        """The highest number with this prefix; 0 if there is none."""
        return max((run.last for run in self._runs if run.prefix == prefix and run.width), default=0)


@dataclass(slots=True, frozen=True)
class File:
    """A Parquet file; `path` is relative to the table's directory."""

    path: str
    rows: int
    bytes: int

    @property
    def partition(self) -> str:
        """For example date=2026-01-31; empty for a table without partitions."""
        return "/".join(self.path.split("/")[1:-1])


@dataclass(slots=True, frozen=True)
class Note:
    """`schema` is the number of the table's schema with which the files were written."""

    batch: str
    files: tuple[File, ...]
    schema: int
    holds: Batches = field(default_factory=Batches)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> str:
        fields: dict[str, Any] = {
            "batch": self.batch,
            "rows": self.rows,
            "schema": self.schema,
            "holds": self.holds.texts(),
            "files": [asdict(file) for file in self.files],
        }
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Note:
        try:
            told = json.loads(text)
            files = tuple(File(one["path"], one["rows"], one["bytes"]) for one in told["files"])
            return cls(told["batch"], files, told["schema"], Batches.parse(told["holds"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise LogCorrupt(f"The note {where} cannot be read: {problem!r}. Restore it from a copy.") from None


def check_id(batch: str) -> str:
    if not _ID.fullmatch(batch):
        raise InvalidInput(f"A batch name must consist of letters, digits, '.', '_' and '-', not {batch!r}.")
    return batch


def live(notes: Iterable[Note]) -> list[Note]:
    """The valid notes, by batch: those that no other note replaces."""
    notes = list(notes)
    held = all_held(notes)
    return sorted((note for note in notes if note.batch not in held), key=lambda note: note.batch)


def all_held(notes: Iterable[Note]) -> Batches:
    runs: list[Run] = []
    for note in notes:
        runs += note.holds._runs
    return Batches(runs)


def keeper(notes: Sequence[Note], batch: str) -> Note | None:
    """The note that contains this batch's rows, or supersedes them; None if it was never written."""
    for note in live(notes):
        if note.batch == batch or batch in note.holds:
            return note
    return None


def next_id(notes: Iterable[Note], kind: str) -> str:
    """An id that no batch has had."""
    notes = list(notes)
    known = all_held(notes) | Batches.of(note.batch for note in notes)
    return f"{kind}-{known.highest(kind + '-') + 1:06}"


def standing_for(notes: Iterable[Note]) -> Batches:
    """What a note that replaces these must record."""
    notes = list(notes)
    return all_held(notes) | Batches.of(note.batch for note in notes)


class Waste(NamedTuple):
    notes: list[str]  # batches whose notes can be deleted
    files: list[str]  # paths that can be deleted


def waste(notes: Sequence[Note], paths: Iterable[str]) -> Waste:
    """Invalid data on disk: notes of replaced batches, and files that no valid note contains."""
    counting = live(notes)
    batches = {note.batch for note in counting}
    named = {file.path for note in counting for file in note.files}
    return Waste(
        sorted(note.batch for note in notes if note.batch not in batches),
        sorted(path for path in paths if path not in named),
    )

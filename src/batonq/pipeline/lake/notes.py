"""What the notes of a table say together: which batches count, and what is waste. Pure.

A batch of files is in the table when its note is there, and that note is written last, at once. A note may hold other
batches: their rows are in its files (compaction), or it came in their place (a table made anew). From the moment it is
there they do not count, whether or not their own notes and files have been deleted yet. What it holds, and what those
held, stays written down, so that a batch that comes again later is known to be in.
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
    """A set of batch ids; those with consecutive numbers take no more room than one."""

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
        """What stands before the numbers."""
        return {run.prefix for run in self._runs if run.width}

    def highest(self, prefix: str) -> int:
        """The highest number with this prefix; 0 when there is none."""
        return max((run.last for run in self._runs if run.prefix == prefix and run.width), default=0)


@dataclass(slots=True, frozen=True)
class File:
    """A Parquet file; `path` is relative to the table's directory."""

    path: str
    rows: int
    bytes: int

    @property
    def partition(self) -> str:
        """Such as date=2026-01-31; empty for a table that is not laid out by a column."""
        return "/".join(self.path.split("/")[1:-1])


@dataclass(slots=True, frozen=True)
class Note:
    """`schema` is the number of the table's schema that the files were written under."""

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
        raise InvalidInput(f"A batch is named by letters, digits, '.', '_' and '-', not {batch!r}.")
    return batch


def live(notes: Iterable[Note]) -> list[Note]:
    """The notes that count, by batch: those that no other one holds."""
    notes = list(notes)
    held = all_held(notes)
    return sorted((note for note in notes if note.batch not in held), key=lambda note: note.batch)


def all_held(notes: Iterable[Note]) -> Batches:
    runs: list[Run] = []
    for note in notes:
        runs += note.holds._runs
    return Batches(runs)


def keeper(notes: Sequence[Note], batch: str) -> Note | None:
    """The note that has this batch's rows, or has come in their place; None when it was never written."""
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
    """What a note that comes in the place of these holds."""
    notes = list(notes)
    return all_held(notes) | Batches.of(note.batch for note in notes)


class Waste(NamedTuple):
    notes: list[str]  # batches whose notes can go
    files: list[str]  # paths that can go


def waste(notes: Sequence[Note], paths: Iterable[str]) -> Waste:
    """What is on disk and does not count: held batches' notes, and files that no note that counts names."""
    counting = live(notes)
    batches = {note.batch for note in counting}
    named = {file.path for note in counting for file in note.files}
    return Waste(
        sorted(note.batch for note in notes if note.batch not in batches),
        sorted(path for path in paths if path not in named),
    )

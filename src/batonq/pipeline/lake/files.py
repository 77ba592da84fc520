"""The notes and files of one table on disk: TABLE/batch=…/, TABLE/_batches/*.json, TABLE/_schemas/*.json, two locks.

The writer holds `_writer` while it writes: a second one is refused, or waits. Readers hold `_readers`, shared. Replaced
batches are deleted only when there are no readers, so a reader's files never disappear, and a reader never sees a
partial change of the notes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batonq.errors import LogCorrupt
from batonq.log.disk import RealDisk, write_atomically
from batonq.pipeline.lake.locks import alone, shared, taken
from batonq.pipeline.lake.notes import File, Note, Waste, check_id, waste

_NOTES, _SCHEMAS = "_batches", "_schemas"
_WRITER, _READERS = "_writer", "_readers"
_SUFFIX = ".parquet"


class TableFiles:
    """One table's directory. Nothing is created until something is written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, Note] = {}  # a note never changes
        self._reading: int | None = None

    # --- locks ----------------------------------------------------------------------------------

    @contextmanager
    def writing(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Take the writer's lock. Raises OwnershipHeld if another process still has it after `wait_s`."""
        for folder in (_NOTES, _SCHEMAS):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        (self.directory / _READERS).touch()
        with alone(self.directory / _WRITER, f"The table {self.directory} is being written", wait_s=wait_s):
            yield

    def hold(self) -> None:
        """From now until `release`, nothing that the notes contain is deleted."""
        if self._reading is None:
            try:
                lock = os.open(self.directory / _READERS, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            shared(lock)
            self._reading = lock

    def release(self) -> None:
        if self._reading is not None:
            os.close(self._reading)
            self._reading = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Hold for a moment, unless it is already held."""
        if self._reading is not None:
            yield
            return
        self.hold()
        try:
            yield
        finally:
            self.release()

    # --- what is there --------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """All notes on disk. The caller writes, or holds."""
        folder = self.directory / _NOTES
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if folder.is_dir() else []
        for name in names:
            if name not in self._known:
                self._known[name] = Note.from_json((folder / name).read_text(), str(folder / name))
        self._known = {name: self._known[name] for name in names}
        return list(self._known.values())

    def schema(self, number: int) -> dict[str, Any]:
        path = self._schema_path(number)
        try:
            told: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as problem:
            raise LogCorrupt(f"The schema {path} cannot be read: {problem}. Restore it from a copy.") from None
        return told

    def _schema_path(self, number: int) -> Path:
        return self.directory / _SCHEMAS / f"{number:06}.json"

    def measured(self, folder: Path) -> tuple[File, ...]:
        """The files that Spark wrote below `folder`, counted from their footers and synced."""
        from pyarrow import parquet

        found = []
        for path in sorted(folder.rglob("*" + _SUFFIX)):
            if "_temporary" in path.parts:
                continue
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            relative = path.relative_to(self.directory).as_posix()
            found.append(File(relative, parquet.read_metadata(path).num_rows, path.stat().st_size))
        return tuple(found)

    # --- changes, by the writer -------------------------------------------------------------------

    def new_folder(self, batch: str) -> Path:
        """A new folder for a batch's files, so that a late task of a dead driver does not interfere."""
        return self.directory / f"batch={check_id(batch)}-{secrets.token_hex(4)}"

    def put_schema(self, number: int, schema: dict[str, Any]) -> None:
        _write(self._schema_path(number), json.dumps(schema, indent=1) + "\n")

    def commit(self, note: Note) -> None:
        """From here on the batch is part of the table, and the batches that it replaces are not."""
        _write(self.directory / _NOTES / f"{note.batch}.json", note.to_json())

    def clean(self) -> bool:
        """Delete invalid files, including leftovers of a crash; False if readers still use them."""
        lock = os.open(self.directory / _READERS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not taken(lock):
                return False
            paths = self._paths()
            self._delete(waste(self.notes(), paths), paths)
            return True
        finally:
            os.close(lock)

    def _paths(self) -> list[str]:
        """Every data file; a folder without one counts as a path itself."""
        found = []
        for folder in sorted(self.directory.glob("batch=*")):
            files = [path for path in folder.rglob("*" + _SUFFIX) if "_temporary" not in path.parts]
            found += [path.relative_to(self.directory).as_posix() for path in files or [folder]]
        return found

    def _delete(self, unused: Waste, paths: list[str]) -> None:
        folder = self.directory / _NOTES
        for batch in unused.notes:
            (folder / f"{batch}.json").unlink()
        for name in os.listdir(folder):
            if not name.endswith(".json"):  # of a note that was being written
                (folder / name).unlink()
        gone = set(unused.files)
        in_use = {_top(path) for path in paths if path not in gone}
        for name in sorted({_top(path) for path in gone} - in_use):
            shutil.rmtree(self.directory / name)
        for path in sorted(path for path in gone if _top(path) in in_use):
            file = self.directory / path
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum


def _top(path: str) -> str:
    return path.partition("/")[0]


def _write(path: Path, text: str) -> None:
    write_atomically(RealDisk(), str(path), (text.encode(),))

"""`Lake`: writes and reads data frames, so that a reader sees each batch whole and once, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from batonq.errors import InvalidInput, LogCorrupt, NotFound, OwnershipHeld
from batonq.pipeline.lake import notes as noting
from batonq.pipeline.lake.compaction import FILE_BYTES, Group, groups
from batonq.pipeline.lake.files import TableFiles
from batonq.pipeline.lake.notes import File, Note
from batonq.pipeline.lake.schemas import grown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The command that creates a table, for error messages.
MAKERS = {
    "events": "ingest",
    "queues": "ingest",
    "message_lifecycle": "lifecycle",
    "queue_minute": "metrics",
    "dead_letter_messages": "dead-letters",
    "dead_letters": "dead-letters",
    "tenant_usage": "usage",
    "violations": "audit",
}
OPEN_FILES_MAX = 8  # more days than that in one task are sorted
_OPEN_FILES = "spark.sql.maxConcurrentOutputFileWriters"
_NO_MARKER = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_GLOB_SIGNS = frozenset("*?[]{}\\")


class Lake:
    """Tables in a directory that the driver and the workers can access.

    Data that is read stays on disk until the lake is closed: use it with `with`, or keep it as long as its data frames
    are in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        if _GLOB_SIGNS & set(str(self.path)):
            raise InvalidInput(f"The path of a lake cannot contain any of {' '.join(sorted(_GLOB_SIGNS))}: {self.path}")
        self._tables: dict[str, TableFiles] = {}
        self._cleaned: set[str] = set()
        self._to_clean: set[str] = set()  # readers were active, possibly this process

    # --- reading --------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(entry.name for entry in self.path.iterdir() if entry.name[0] not in "_." and self.has(entry.name))

    def has(self, table: str) -> bool:
        return bool(self.notes(table))

    def notes(self, table: str) -> list[Note]:
        """The valid batches."""
        files = self._files(table)
        with files.looking():
            return noting.live(files.notes())

    def files(self, table: str) -> list[str]:
        """The exact files of a table, for other readers. Raises NotFound."""
        directory = self._files(table).directory
        return [str(directory / file.path) for note in self._counting(table) for file in note.files]

    def rows(self, table: str) -> int:
        return sum(note.rows for note in self.notes(table))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """The current table. Raises NotFound."""
        self._files(table).hold()
        counting = self._counting(table)
        return self._read(spark, table, counting, [file for note in counting for file in note.files])

    def read_batch(self, spark: SparkSession, table: str, note: Note) -> DataFrame:
        """The files of one note only."""
        self._files(table).hold()
        return self._read(spark, table, [note], note.files)

    def _counting(self, table: str) -> list[Note]:
        found = self.notes(table)
        if not found:
            maker = f" Create it with `baton pipeline {MAKERS[table]}`." if table in MAKERS else ""
            raise NotFound(f"The lake {self.path} has no table {table}.{maker}")
        return found

    def _read(self, spark: SparkSession, table: str, notes: Sequence[Note], chosen: Sequence[File]) -> DataFrame:
        from pyspark.sql.types import StructType

        from batonq.pipeline.spark.local import nothing

        files = self._files(table)
        schema = StructType.fromJson(files.schema(max(note.schema for note in notes)))
        if not chosen:
            return nothing(spark, schema)
        paths = [str(files.directory / file.path) for file in chosen]
        frame = spark.read.schema(schema).option("basePath", str(files.directory)).parquet(*paths)
        return frame.select(*(f"`{name}`" for name in schema.names))

    # --- writing --------------------------------------------------------------------------------

    def write(
        self,
        frame: DataFrame,
        table: str,
        *,
        batch: str,
        by: Sequence[str] = (),
        wait_s: float = 0.0,
    ) -> Note:
        """Add a batch. A batch that already exists, by itself or in its replacement, is not changed.

        Raises OwnershipHeld if another process still writes this table after `wait_s`.
        """
        files = self._files(table)
        with files.writing(wait_s=wait_s):
            self._clean_first(files)
            there = noting.keeper(files.notes(), noting.check_id(batch))
            return there or self._add(files, frame, batch, by)

    def replace(self, frame: DataFrame, table: str, *, by: Sequence[str] = (), wait_s: float = 0.0) -> Note:
        """Recreate a table: readers see the old content, or all of the frame. The frame may read the table."""
        files = self._files(table)
        with files.writing(wait_s=wait_s):
            self._clean_first(files)
            before = files.notes()
            return self._add(files, frame, noting.next_id(before, "whole"), by, instead_of=before)

    def compact(
        self, spark: SparkSession, table: str, *, file_bytes: int = FILE_BYTES, wait_s: float = 0.0
    ) -> Iterator[Group]:
        """Rewrite small files of the same partition into files of about `file_bytes`, and
        report each finished group.
        """
        files = self._files(table)
        self._counting(table)
        done: set[str] = set()
        while True:
            with files.writing(wait_s=wait_s):
                self._clean_first(files)
                before = noting.live(files.notes())
                group = next((one for one in groups(before, file_bytes) if one.partition not in done), None)
                if group is None:
                    self._clean(files)
                    return
                self._compact_group(spark, files, group)
            done.add(group.partition)
            yield group

    def _compact_group(self, spark: SparkSession, files: TableFiles, group: Group) -> None:
        frame = self._read(spark, files.directory.name, group.notes, group.files).coalesce(group.count)
        batch = noting.next_id(files.notes(), "compact")
        by = [part.partition("=")[0] for part in group.partition.split("/") if part]
        self._add(files, frame, batch, by, instead_of=group.notes, kept=group.kept, rows=group.rows)

    def _add(
        self,
        files: TableFiles,
        frame: DataFrame,
        batch: str,
        by: Sequence[str],
        *,
        instead_of: Sequence[Note] = (),
        kept: Sequence[File] = (),
        rows: int | None = None,
    ) -> Note:
        """Data, then the schema if it grew, then the note, which makes the batch valid."""
        number, schema = self._grown(files, frame)
        folder = files.new_folder(batch)
        _write(frame, folder, by)
        made = files.measured(folder)
        if rows is not None and sum(file.rows for file in made) != rows:
            raise LogCorrupt(
                f"{files.directory}: {rows:,} rows should have been rewritten, but the result has "
                f"{sum(file.rows for file in made):,}. Nothing was changed."
            )
        if schema is not None:
            files.put_schema(number, schema)
        note = Note(batch, (*kept, *made), number, noting.standing_for(instead_of))
        files.commit(note)
        if instead_of:
            self._clean(files)
        return note

    def _grown(self, files: TableFiles, frame: DataFrame) -> tuple[int, dict[str, Any] | None]:
        """The number of the schema to use, and the schema if it is new."""
        number = max((note.schema for note in files.notes()), default=0)
        old = files.schema(number) if number else None
        new = grown(files.directory.name, old, json.loads(frame.schema.json()))
        return (number, None) if new == old else (number + 1, new)

    def _clean_first(self, files: TableFiles) -> None:
        """Once per table: delete leftovers of an earlier writer."""
        if files.directory.name not in self._cleaned - self._to_clean:
            self._clean(files)

    def _clean(self, files: TableFiles) -> None:
        if files.clean():
            self._cleaned.add(files.directory.name)
            self._to_clean.discard(files.directory.name)
        else:
            self._to_clean.add(files.directory.name)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the data that was read, and delete what only this process kept. Other readers leave that to the next
        writer.
        """
        for files in self._tables.values():
            files.release()
        for table in sorted(self._to_clean):
            try:
                with self._files(table).writing():
                    self._clean(self._files(table))
            except OwnershipHeld:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _files(self, table: str) -> TableFiles:
        if table not in self._tables:
            noting.check_id(table)
            self._tables[table] = TableFiles(self.path / table)
        return self._tables[table]


def _write(frame: DataFrame, folder: Path, by: Sequence[str]) -> None:
    """A task has one open file for each of a few days; Spark would first sort its rows by day."""
    conf = frame.sparkSession.conf
    before = conf.get(_OPEN_FILES)
    conf.set(_OPEN_FILES, OPEN_FILES_MAX)
    try:
        writing = frame.write.option("compression", "zstd").option(_NO_MARKER, "false")
        writing.partitionBy(*by).parquet(str(folder))
    finally:
        conf.set(_OPEN_FILES, str(before))

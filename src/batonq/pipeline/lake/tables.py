"""`Lake`: writes and reads data frames, so that a reader sees each batch whole and once, or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from batonq.errors import InvalidInput, LogCorrupt, NotFound, OwnershipHeld
from batonq.pipeline.lake import parquet_files
from batonq.pipeline.lake.compaction import FILE_BYTES, Group, groups
from batonq.pipeline.lake.delta import Change, DeltaLog, Snapshot, Step
from batonq.pipeline.lake.parquet_files import File
from batonq.pipeline.lake.schemas import grown
from batonq.pipeline.lake.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa
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
GRACE_HOURS = 1  # for readers of files that are no longer in the table
LEFTOVERS_HOURS = 24  # a file is committed sooner than that after it was written
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,127}")


class Lake:
    """Delta tables in a directory that the driver and the workers can access, or at s3://bucket/prefix."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._storage = Storage.of(path)

    @property
    def path(self) -> str:
        return self._storage.url

    # --- reading --------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        return [name for name in self._storage.folders() if _NAME.fullmatch(name) and self.has(name)]

    def has(self, table: str) -> bool:
        return self._log(table).snapshot() is not None

    def snapshot(self, table: str, version: int | None = None) -> Snapshot:
        """The table at its newest version, or the given one. Raises NotFound."""
        found = self._log(table).snapshot(version)
        if found is None:
            maker = f" Create it with `baton pipeline {MAKERS[table]}`." if table in MAKERS else ""
            raise NotFound(f"The lake {self.path} has no table {table}.{maker}")
        return found

    def content(self, table: str) -> int:
        """The number of the table's content, for `replace`; 0 if there is no table."""
        found = self._log(table).snapshot()
        return 0 if found is None else found.content

    def files(self, table: str, version: int | None = None) -> list[str]:
        """The exact files of a table, for other readers. Raises NotFound."""
        return [f"{self.path}/{table}/{file.path}" for file in self.snapshot(table, version).files]

    def rows(self, table: str) -> int:
        return self.snapshot(table).rows

    def read(
        self, spark: SparkSession, table: str, version: int | None = None, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """The table at its newest version, or the given one. Raises NotFound.

        Name the `columns` that you need, if the lake is in S3: otherwise all of them are read.
        """
        snapshot = self.snapshot(table, version)
        return self.read_files(spark, table, snapshot, snapshot.files, columns)

    def read_files(
        self,
        spark: SparkSession,
        table: str,
        snapshot: Snapshot,
        files: Sequence[File],
        columns: Sequence[str] | None = None,
    ) -> DataFrame:
        """The rows of these files of the table."""
        from pyspark.sql.types import StructType

        from batonq.pipeline.lake.frames import frame_of_files

        schema = StructType([one for one in StructType.fromJson(snapshot.schema) if not columns or one.name in columns])
        return frame_of_files(spark, self._storage.child(table), schema, snapshot.by, files)

    # --- writing --------------------------------------------------------------------------------

    def write(
        self,
        frame: DataFrame,
        table: str,
        *,
        by: Sequence[str] = (),
        batch: str | None = None,
        step: Step | None = None,
    ) -> tuple[File, ...]:
        """Add the rows of a frame. A batch whose name the table already has is not added again."""
        if batch is not None:
            if self.has(table) and self.snapshot(table).position(batch) is not None:
                return ()
            step = Step({batch: None}, {batch: 0})
        self.prepare(table, json.loads(frame.schema.json()), by)
        files = self._written(frame, table, by)
        self.add(table, files, step or Step())
        return files

    def prepare(self, table: str, schema: dict[str, Any], by: Sequence[str]) -> Snapshot:
        """The table, created or with more columns if this schema asks for it. Raises InvalidInput for a column that
        would change its type.
        """
        log = self._log(table)
        snapshot = log.snapshot()
        old = snapshot.schema if snapshot else None
        new = grown(table, old, schema)
        if snapshot is None:
            return log.create(new, by)
        if new != old:
            snapshot = log.add_columns(snapshot, new["fields"][len(snapshot.schema["fields"]) :])
        return snapshot

    def add(self, table: str, files: Sequence[File], step: Step) -> Snapshot:
        """Add files that tasks wrote. Raises OwnershipHeld if the positions are not those that the step starts from,
        because another process added the same rows.
        """

        def change(newest: Snapshot) -> Change:
            if any(newest.position(name) != number for name, number in step.before.items()):
                raise OwnershipHeld(
                    f"Another process added the same rows to the table {self.path}/{table} at the same time. They were "
                    "not added twice. Let only one of the processes run."
                )
            return Change(files, positions=step.after, same_rows=not files)

        return self._log(table).commit(change)

    def replace(
        self,
        frame: DataFrame,
        table: str,
        *,
        since: int,
        by: Sequence[str] = (),
        positions: Mapping[str, int] | None = None,
    ) -> Snapshot:
        """Recreate a table: readers see the old content, or all of the frame. The frame may read the table.

        `since` is `content(table)` from before anything was read that the frame is made of. Raises OwnershipHeld if
        another process recreated the table since then.
        """
        self.prepare(table, json.loads(frame.schema.json()), by)
        files = self._written(frame, table, by)

        def change(newest: Snapshot) -> Change:
            if newest.content != since:
                raise OwnershipHeld(
                    f"Another process recreated the table {self.path}/{table} at the same time. Its rows were kept. "
                    "Let only one of them run."
                )
            return Change(files, newest.files, positions or {})

        made = self._log(table).commit(change)
        self._log(table).vacuum(GRACE_HOURS, leftovers=False)
        return made

    def compact(self, spark: SparkSession, table: str, *, file_bytes: int = FILE_BYTES) -> Iterator[Group]:
        """Rewrite small files of the same partition into files of about `file_bytes`, and report each finished group.

        A group that another process changed meanwhile stays as it is.
        """
        snapshot = self.snapshot(table)
        for group in groups(snapshot.files, file_bytes):
            frame = self.read_files(spark, table, snapshot, group.files).coalesce(group.count)
            files = self._written(frame, table, snapshot.by)
            if sum(file.rows for file in files) != group.rows:
                raise LogCorrupt(
                    f"{self.path}/{table}: {group.rows:,} rows should have been rewritten, but the result has "
                    f"{sum(file.rows for file in files):,}. Nothing was changed."
                )
            if self._swapped(table, group, files):
                yield group

    def _swapped(self, table: str, group: Group, files: Sequence[File]) -> bool:
        paths = {file.path for file in group.files}

        def change(newest: Snapshot) -> Change:
            if not paths <= {file.path for file in newest.files}:
                raise _ChangedMeanwhile
            return Change(files, group.files, same_rows=True)

        try:
            self._log(table).commit(change)
        except _ChangedMeanwhile:
            return False
        return True

    def vacuum(self, table: str, hours: int = GRACE_HOURS) -> int:
        """Delete files that left the table at least so many hours ago, and leftovers of crashes after a day at the
        earliest. Returns their number.
        """
        log = self._log(table)
        return log.vacuum(hours, leftovers=False) + log.vacuum(max(hours, LEFTOVERS_HOURS), leftovers=True)

    def _written(self, frame: DataFrame, table: str, by: Sequence[str]) -> tuple[File, ...]:
        """Files with the rows of the frame, written by its tasks and not part of the table yet."""
        task = partial(_write_task, table=self._storage.child(table), by=tuple(by))
        return tuple(File(*row) for row in frame.mapInArrow(task, parquet_files.FILES).collect())

    def storage(self, table: str) -> Storage:
        """For tasks that write files themselves."""
        return self._log(table).storage

    def _log(self, table: str) -> DeltaLog:
        if not _NAME.fullmatch(table):
            raise InvalidInput(f"The name of a table must consist of letters, digits and '_', not {table!r}.")
        return DeltaLog(self._storage.child(table))


class _ChangedMeanwhile(Exception):
    """Files to be compacted are no longer in the table."""


def _write_task(batches: Iterable[pa.RecordBatch], *, table: Storage, by: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    yield parquet_files.as_batch(parquet_files.write(batches, table, by))

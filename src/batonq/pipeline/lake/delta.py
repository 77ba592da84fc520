"""The Delta log of one table, through delta-rs: snapshots, commits, vacuum.

A commit is one new file of the log, which only one process can create. All commits of Baton write the same application
transaction, so delta-rs refuses one whose snapshot is not the newest. It is then prepared again from the newest
snapshot: files that another process removed cannot come back, and a batch cannot be added twice.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from batonq.errors import InvalidInput, LogError, OwnershipHeld
from batonq.object_storage import sync_path
from batonq.pipeline.lake.parquet_files import File
from batonq.pipeline.lake.storage import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

ATTEMPTS = 50
LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
TOKEN = "batonCommit"  # tells a process its own commit from those of others
COMMITS = "baton.commits"  # in every commit, see above
CONTENT = "baton.content"  # the number of commits that changed the table's rows
RESTORE = "restore the table from a copy, or delete it and run the job that makes it again."
_READ = "cannot be read"
_COLOURS = re.compile(r"\x1b\[\d*m")
FORMER = "_batches"  # of the tables that Baton wrote before it used Delta


@dataclass(frozen=True)
class Snapshot:
    """One version of a table."""

    table: DeltaTable = field(repr=False)

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def id(self) -> str:
        """Of the table: one that was deleted and created again has another."""
        return str(self.table.metadata().id)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """In Spark's JSON format, which is also Delta's."""
        told: dict[str, Any] = json.loads(self.table.schema().to_json())
        return told

    @cached_property
    def by(self) -> tuple[str, ...]:
        return tuple(self.table.metadata().partition_columns)

    @cached_property
    def files(self) -> tuple[File, ...]:
        import pyarrow as pa

        found = pa.table(self.table.get_add_actions(flatten=True))
        names = ["path", "size_bytes", "num_records", "modification_time", *(f"partition.{name}" for name in self.by)]
        columns = [found.column(name).to_pylist() for name in names]
        days = columns[4] if self.by else [None] * found.num_rows
        return tuple(
            File(path, size, rows, modified, None if day is None else str(day), "")
            for path, size, rows, modified, day in sorted(zip(*columns[:4], days, strict=True))
        )

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def position(self, name: str) -> int | None:
        """The number that the newest commit with this name carried; None if there is none."""
        found: int | None = self.table.transaction_version(name)
        return found

    @property
    def content(self) -> int:
        """Changes with every commit that changed rows, and with no other."""
        return self.position(CONTENT) or 0


@dataclass(slots=True, frozen=True)
class Change:
    """A commit. `positions` are stored with it, by name; see `Snapshot.position`."""

    adds: Sequence[File] = ()
    removes: Sequence[File] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    same_rows: bool = False


@dataclass(slots=True, frozen=True)
class Step:
    """Positions that a commit requires, and those that it stores."""

    before: Mapping[str, int | None] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


class DeltaLog:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """The newest version, or the given one; None if there is no table. Raises InvalidInput for a version that is
        not there, and for a table of the former format.
        """
        if version is not None and version < 0:
            raise InvalidInput(f"The version of a table must be at least 0, not {version}.")
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        options = self.storage.options() or None
        try:
            with self._errors(_READ):
                return Snapshot(DeltaTable(self.storage.url, version=version, storage_options=options))
        except TableNotFoundError:
            pass
        except LogError:
            if version is None or version <= self._newest().version:
                raise
            raise InvalidInput(
                f"The table {self.storage.url} has no version {version}: the newest one is {self._newest().version}."
            ) from None
        if self.storage.local and os.path.isdir(f"{self.storage.url}/{FORMER}"):
            raise InvalidInput(
                f"The table {self.storage.url} was written by an earlier release, before tables were Delta tables. "
                "Ingest history again into a new lake, with --lake, and delete this one."
            )
        return None

    def create(self, schema: dict[str, Any], by: Sequence[str]) -> Snapshot:
        """The table, created if it does not exist."""
        from deltalake.schema import Schema
        from deltalake.transaction import create_table_with_add_actions

        try:
            with self._errors("cannot be created"):
                if self.storage.local:
                    os.makedirs(self.storage.url, exist_ok=True)
                create_table_with_add_actions(
                    self.storage.url,
                    Schema.from_json(json.dumps(schema)),
                    [],
                    "error",
                    list(by),
                    storage_options=self.storage.options() or None,
                )
        except LogError:
            if self.snapshot() is None:  # otherwise another process created it
                raise
        made = self.snapshot()
        assert made is not None
        self._sync(-1)
        return made

    def add_columns(self, snapshot: Snapshot, fields: Sequence[dict[str, Any]]) -> Snapshot:
        """The table with these columns too."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.schema import Schema

        new = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
        try:
            with self._errors("cannot be changed"):
                snapshot.table.alter.add_columns(list(new.fields))
                self._sync(snapshot.version)
        except CommitFailedError:
            raise OwnershipHeld(
                f"Another process changed the table {self.storage.url} at the same time. Run the job again."
            ) from None
        return self._newest()

    def commit(self, prepare: Callable[[Snapshot], Change]) -> Snapshot:
        """Commit what `prepare` makes of the newest snapshot. It is called again if another process was faster, and
        raises if its work is then void.
        """
        from deltalake.exceptions import CommitFailedError

        for _ in range(ATTEMPTS):
            snapshot = self._newest()
            change = prepare(snapshot)
            token = secrets.token_hex(16)
            try:
                with self._errors("cannot be changed"):
                    self._commit(snapshot, change, token)
            except CommitFailedError:
                if not self._has_committed(snapshot, token):
                    continue
            self._sync(snapshot.version)
            return self._newest()
        raise OwnershipHeld(
            f"The table {self.storage.url} is changed by other processes all the time. Try again later."
        )

    def _has_committed(self, before: Snapshot, token: str) -> bool:
        """Whether a commit is there although it was refused. If the answer of an object store is lost, delta-rs asks
        again, and then finds its own commit.
        """
        newest = self._newest()
        later = newest.table.history(max(newest.version - before.version, 1))
        return any(one.get(TOKEN) == token for one in later)

    def _commit(self, snapshot: Snapshot, change: Change, token: str) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now_ms = time.time_ns() // 1_000_000

        def values(file: File) -> dict[str, str | None]:
            return dict.fromkeys(snapshot.by, file.day)

        positions = {**change.positions, COMMITS: (snapshot.position(COMMITS) or 0) + 1}
        if not change.same_rows:
            positions[CONTENT] = snapshot.content + 1
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.bytes, values(file), file.modified_ms, not change.same_rows, file.stats)
            for file in change.adds
        ]
        actions += [
            RemoveAction(file.path, not change.same_rows, now_ms, file.bytes, values(file)) for file in change.removes
        ]
        snapshot.table.create_write_transaction(
            actions,
            "append",
            snapshot.table.schema(),
            list(snapshot.by),
            commit_properties=CommitProperties(
                custom_metadata={TOKEN: token},
                app_transactions=[Transaction(name, number) for name, number in positions.items()],
            ),
        )

    def vacuum(self, hours: int, *, leftovers: bool) -> int:
        """Delete files that were removed from the table at least so many hours ago; with `leftovers` also files of that
        age that never were in it. Returns their number.
        """
        snapshot = self.snapshot()
        if snapshot is None:
            return 0
        with self._errors("cannot be vacuumed"):
            for dry in (True, False):  # an empty vacuum would add two commits
                found = snapshot.table.vacuum(hours, dry_run=dry, enforce_retention_duration=False, full=leftovers)
                if not found:
                    break
        self._sync(snapshot.version)
        return len(found)

    def _newest(self) -> Snapshot:
        found = self.snapshot()
        if found is None:
            raise OwnershipHeld(f"The table {self.storage.url} was deleted in the meantime. Run the job again.")
        return found

    def _sync(self, since: int) -> None:
        """What was written to the log of a directory after a version then survives a power failure: delta-rs does not
        see to it.
        """
        if not self.storage.local:
            return
        folder = f"{self.storage.url}/{LOG}"
        new = [name for name in os.listdir(folder) if name == LAST_CHECKPOINT or _number(name) > since]
        for path in (
            *(f"{folder}/{name}" for name in new),
            folder,
            self.storage.url,
            os.path.dirname(self.storage.url),
        ):
            try:
                sync_path(path)
            except FileNotFoundError:
                continue  # another process has tidied up

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        try:
            yield
        except (CommitFailedError, TableNotFoundError):
            raise
        except (DeltaError, OSError) as problem:
            reason = " ".join(_COLOURS.sub("", str(problem)).split())[:300]
            damaged = what == _READ and "error performing" not in reason.lower()
            todo = f" If files of {LOG} are damaged or missing, {RESTORE}" if damaged else ""
            raise LogError(f"The Delta table {self.storage.url} {what}: {reason}{todo}") from problem


def _number(name: str) -> int:
    """The version that a file of the log belongs to; -1 for other files."""
    return int(name[:20]) if name[:20].isdigit() else -1

"""The relay's side of an outbox in an SQLite file. Only one relay works at a time; others wait for its lock."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import IO

from batonq.databases import immediate
from batonq.errors import InvalidInput, Unavailable
from batonq.outbox.rows import Row
from batonq.outbox.schema import OUTBOX, SQLITE_NOW, Names
from batonq.outbox.source import BATCH_BYTES_MAX, Batch, Lag
from batonq.outbox.writing import create_tables as create_tables
from batonq.outbox.writing import put as put
from batonq.outbox.writing import seen as seen

_BUSY_S = 30.0
_LOOK_EVERY_S = 0.05  # how quickly another process's commit is noticed
_PRUNE_ROWS = 5000
_COLUMNS = "id, queue, key, body, data, options"


class SqliteSource:
    """A file next to the database is locked while this relay works; the system unlocks it if the relay dies."""

    def __init__(self, path: str, *, table: str = OUTBOX) -> None:
        if not os.path.exists(path):
            raise InvalidInput(f"The database {path} does not exist.")
        self._names = Names(table)
        self._lock_path = f"{path}-{self._names.base}-relay"
        self._lock: IO[str] | None = None
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._version = self._data_version()
        known = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self._names.base,)).fetchone()
        if known is None:
            self.close()
            raise InvalidInput(f"Table {table} does not exist. Run `baton outbox init`.")

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def claim(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        self._version = self._data_version()
        if not self._locked():
            return []
        with self._transaction() as connection:
            (producer,) = connection.execute(f"SELECT producer FROM {self._names.lanes} WHERE lane = 0").fetchone()
            pending = connection.execute(f"SELECT queue, first, ids FROM {self._names.batches}").fetchall()
            if found := [batch for batch in pending if batch[0] not in resting]:
                return [self._again(connection, producer, *batch) for batch in found]
            held = {queue for queue, _, _ in pending} | set(resting)
            rows = self._waiting(connection, rows_max, held)
            return self._record(connection, producer, rows)

    def settle(
        self, batch: Batch, published: Sequence[int], refused: Sequence[tuple[int, str]], finished: bool
    ) -> None:
        names = self._names
        with self._transaction() as connection:
            connection.execute(
                f"UPDATE {names.outbox} SET published_at = {SQLITE_NOW}"
                " WHERE id IN (SELECT value FROM json_each(?)) AND published_at IS NULL",
                (json.dumps(list(published)),),
            )
            connection.executemany(
                f"UPDATE {names.outbox} SET refused = ? WHERE id = ?", [(reason, id) for id, reason in refused]
            )
            if finished:
                connection.execute(
                    f"DELETE FROM {names.batches} WHERE lane = ? AND queue = ? AND first = ?",
                    (batch.lane, batch.queue, batch.first),
                )

    def release(self) -> None:
        """The lock is kept until the end: another relay on the same machine would not be faster."""

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._data_version() == self._version and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_EVERY_S))

    def lag(self) -> Lag:
        names = self._names
        with self._mended():
            waiting, oldest = self._connection.execute(
                f"SELECT count(*), {SQLITE_NOW} - min(created_at) FROM {names.outbox}"
                " WHERE published_at IS NULL AND refused IS NULL"
            ).fetchone()
            refused, published = self._connection.execute(
                "SELECT coalesce(sum(published_at IS NULL AND refused IS NOT NULL), 0),"
                f" coalesce(sum(published_at IS NOT NULL), 0) FROM {names.outbox}"
            ).fetchone()
            (in_doubt,) = self._connection.execute(
                f"SELECT count(*) FROM {names.batches}, json_each(ids) AS member"
                f" JOIN {names.outbox} AS mine ON mine.id = member.value WHERE published_at IS NULL AND refused IS NULL"
            ).fetchone()
        return Lag(waiting, max(0.0, oldest or 0.0), in_doubt, refused, published)

    def prune(self, older_than: float) -> int:
        sql = (
            f"DELETE FROM {self._names.outbox} WHERE id IN (SELECT id FROM {self._names.outbox}"
            f" WHERE published_at IS NOT NULL AND published_at < {SQLITE_NOW} - ? LIMIT {_PRUNE_ROWS})"
        )
        with self._transaction() as connection:
            return connection.execute(sql, (older_than,)).rowcount

    def retry(self, ids: Sequence[int]) -> int:
        where = "refused IS NOT NULL AND published_at IS NULL"
        chosen = " AND id IN (SELECT value FROM json_each(:ids))" if ids else ""
        with self._transaction() as connection:
            sql = f"UPDATE {self._names.outbox} SET refused = NULL WHERE {where}{chosen}"
            return connection.execute(sql, {"ids": json.dumps(list(ids))}).rowcount

    # --- batches

    def _again(self, connection: sqlite3.Connection, producer: str, queue: str, first: int, ids: str) -> Batch:
        numbers = {id: first + at for at, id in enumerate(json.loads(ids))}
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM {self._names.outbox} WHERE id IN (SELECT value FROM json_each(?))"
            " AND published_at IS NULL AND refused IS NULL ORDER BY id",
            (ids,),
        )
        return Batch(0, queue, producer, first, [(numbers[row[0]], Row(*row)) for row in found])

    def _waiting(self, connection: sqlite3.Connection, rows_max: int, held: Collection[str]) -> list[Row]:
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM {self._names.outbox} WHERE published_at IS NULL AND refused IS NULL"
            " AND queue NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?",
            (json.dumps(sorted(held)), rows_max),
        )
        rows: list[Row] = []
        size = 0
        for values in found:
            row = Row(*values)
            size += row.size
            if rows and size > BATCH_BYTES_MAX:
                break
            rows.append(row)
        return rows

    def _record(self, connection: sqlite3.Connection, producer: str, rows: list[Row]) -> list[Batch]:
        if not rows:
            return []
        # Numbers start at the time in microseconds, so they are new even if the database was restored from a backup.
        (last,) = connection.execute(
            f"UPDATE {self._names.numbers} SET number = max(number, ?) + ? WHERE lane = 0 RETURNING number",
            (time.time_ns() // 1000, len(rows)),
        ).fetchone()
        first = last - len(rows) + 1
        batches = []
        for queue, group in groupby(sorted(rows, key=lambda row: (row.queue, row.id)), key=lambda row: row.queue):
            chosen = list(group)
            batches.append(Batch(0, queue, producer, first, [(first + at, row) for at, row in enumerate(chosen)]))
            first += len(chosen)
        connection.executemany(
            f"INSERT INTO {self._names.batches} (lane, queue, first, ids) VALUES (0, ?, ?, ?)",
            [(batch.queue, batch.first, json.dumps([row.id for _, row in batch.rows])) for batch in batches],
        )
        return batches

    # --- the file

    def _locked(self) -> bool:
        if self._lock is None:
            lock = open(self._lock_path, "a")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            self._lock = lock
        return True

    def _data_version(self) -> int:
        """A value that changes when another connection has committed."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    @contextmanager
    def _mended(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as problem:
            raise Unavailable(f"The database is unavailable: {problem}") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mended(), immediate(self._connection) as connection:
            yield connection

"""Claims in an SQLite file: for workers on one machine, with claims that survive the process."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from batonq.databases import immediate
from batonq.idempotency import tables
from batonq.idempotency.store import Claim, ClaimState, Place, Store, Turn

_BUSY_S = 30.0


class SqliteStore(Store):
    """One connection, used by one thread at a time; several processes may share the file.

    The clock is the machine's, in seconds since 1970, so that all processes agree; a test may set another.
    """

    def __init__(self, path: str, *, table: str = tables.CLAIMS, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._path = path
        self._clock = clock
        self._names = tables.Names(table)
        self._open()
        self._connection.execute("PRAGMA journal_mode=WAL")
        with self._transaction() as connection:
            for statement in tables.sqlite_schema(self._names):
                connection.execute(statement)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)

    def after_fork(self) -> None:
        super().after_fork()
        self._parents = self._connection  # kept but not closed: closing would release the parent's locks
        self._open()

    def close(self) -> None:
        super().close()
        with self._lock:
            self._connection.close()

    def claim(self, key: str, owner: str, lease: float) -> Claim:
        with self._transaction() as connection:
            now = self._clock()
            row = connection.execute(
                f"INSERT INTO {self._names.claims} AS mine (key, owner, until) VALUES (?, ?, ?) ON CONFLICT (key)"
                " DO UPDATE SET owner = excluded.owner, done = 0, until = excluded.until, result = NULL"
                " WHERE mine.until <= ? OR (mine.owner = excluded.owner AND NOT mine.done) RETURNING key",
                (key, owner, now + lease, now),
            ).fetchone()
            if row is not None:
                return Claim(ClaimState.TAKEN)
            done, until, result = connection.execute(
                f"SELECT done, until, result FROM {self._names.claims} WHERE key = ?", (key,)
            ).fetchone()
            return Claim(ClaimState.DONE, result) if done else Claim(ClaimState.BUSY, None, until - now)

    def extend(self, key: str, owner: str, lease: float) -> bool:
        return self._changed(
            f"UPDATE {self._names.claims} SET until = ? WHERE key = ? AND owner = ? AND NOT done",
            (self._clock() + lease, key, owner),
        )

    def complete(self, key: str, owner: str, ttl: float, result: bytes | None) -> bool:
        return self._changed(
            f"INSERT INTO {self._names.claims} AS mine (key, owner, done, until, result) VALUES (?, ?, 1, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET done = 1, until = excluded.until, result = excluded.result"
            " WHERE mine.owner = excluded.owner",
            (key, owner, self._clock() + ttl, result),
        )

    def release(self, key: str, owner: str) -> bool:
        return self._changed(f"DELETE FROM {self._names.claims} WHERE key = ? AND owner = ? AND NOT done", (key, owner))

    def forget(self, key: str) -> bool:
        claim = self._changed(f"DELETE FROM {self._names.claims} WHERE key = ?", (key,))
        return self._changed(f"DELETE FROM {self._names.lines} WHERE key = ?", (key,)) or claim

    def prune(self) -> int:
        with self._transaction() as connection:
            sql = f"DELETE FROM {self._names.claims} WHERE until <= ?"
            return connection.execute(sql, (self._clock(),)).rowcount

    def begin_turn(self, key: str, sequence: int, owner: str, lease: float, first: int) -> Turn:
        with self._transaction() as connection:
            now = self._clock()
            found = connection.execute(
                f"SELECT last, owner, until FROM {self._names.lines} WHERE key = ?", (key,)
            ).fetchone()
            last, holder, until = found or (first - 1, "", 0.0)
            if sequence <= last:
                return Turn(Place.SEEN, last)
            if sequence > last + 1:
                return Turn(Place.GAP, last)
            if holder not in ("", owner) and until > now:
                return Turn(Place.BUSY, last, until - now)
            connection.execute(
                f"INSERT INTO {self._names.lines} (key, last, owner, until) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until",
                (key, last, owner, now + lease),
            )
            return Turn(Place.NEXT, last)

    def extend_turn(self, key: str, owner: str, lease: float) -> bool:
        return self._changed(
            f"UPDATE {self._names.lines} SET until = ? WHERE key = ? AND owner = ?", (self._clock() + lease, key, owner)
        )

    def end_turn(self, key: str, sequence: int, owner: str) -> bool:
        return self._changed(
            f"UPDATE {self._names.lines} SET last = ?, owner = '' WHERE key = ? AND owner = ? AND last = ?",
            (sequence, key, owner, sequence - 1),
        )

    def give_up_turn(self, key: str, owner: str) -> bool:
        return self._changed(f"UPDATE {self._names.lines} SET owner = '' WHERE key = ? AND owner = ?", (key, owner))

    def _changed(self, sql: str, parameters: tuple[object, ...]) -> bool:
        with self._transaction() as connection:
            return connection.execute(sql, parameters).rowcount > 0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, immediate(self._connection) as connection:
            yield connection

"""Claims in PostgreSQL: for workers on several machines. Times are the server's, so the
machines' clocks do not matter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from batonq.databases import load_psycopg
from batonq.idempotency import tables
from batonq.idempotency.store import THREADS_MAX, Claim, ClaimState, Place, Store, Turn

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
_CLAIM_TRIES = 10
_SCHEMA_LOCK = 0x626174_6F6E  # an advisory lock: two sessions that create the tables at the same time would fail


class PostgresStore(Store):
    """Up to `connections` connections are opened on demand and kept; each statement is its own transaction.

    For claim, effect and mark in one transaction of your own connection, see `once` and `idempotent_in_transaction`.
    """

    def __init__(
        self,
        dsn: str | Callable[[], psycopg.Connection[Any]],
        *,
        table: str = tables.CLAIMS,
        connections: int = THREADS_MAX,
        create: bool = True,
    ) -> None:
        super().__init__()
        self._psycopg = load_psycopg()
        self._tuple_row = self._psycopg.rows.tuple_row
        self._connect = dsn if callable(dsn) else lambda: self._psycopg.connect(dsn, autocommit=True)
        self._names = tables.Names(table)
        self._connections = connections
        self._begin()
        if create:
            with self._connection() as connection:
                create_tables(connection, table=table)

    def _begin(self) -> None:
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self._connections)

    def after_fork(self) -> None:
        super().after_fork()
        self._parents = self._idle  # kept but not closed: the parent continues to use them
        self._begin()

    def close(self) -> None:
        super().close()
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def claim(self, key: str, owner: str, lease: float) -> Claim:
        claims = self._names.claims
        # The conflicting row may be gone before the second statement reads it; then start again.
        for _ in range(_CLAIM_TRIES):
            taken = self._fetch(
                f"INSERT INTO {claims} AS mine (key, owner, until) VALUES (%(key)s, %(owner)s,"
                " clock_timestamp() + make_interval(secs => %(lease)s)) ON CONFLICT (key)"
                " DO UPDATE SET owner = excluded.owner, done = false, until = excluded.until, result = NULL"
                " WHERE mine.until <= clock_timestamp() OR (mine.owner = excluded.owner AND NOT mine.done) RETURNING 1",
                {"key": key, "owner": owner, "lease": lease},
            )
            if taken is not None:
                return Claim(ClaimState.TAKEN)
            found = self._fetch(
                "SELECT done, result, extract(epoch FROM until - clock_timestamp())::float8"
                f" FROM {claims} WHERE key = %(key)s",
                {"key": key},
            )
            if found is not None:
                done, result, left = found
                return Claim(ClaimState.DONE, result) if done else Claim(ClaimState.BUSY, None, max(0.0, left))
        return Claim(ClaimState.BUSY, None, lease)

    def extend(self, key: str, owner: str, lease: float) -> bool:
        return self._changed(
            f"UPDATE {self._names.claims} SET until = clock_timestamp() + make_interval(secs => %(lease)s)"
            " WHERE key = %(key)s AND owner = %(owner)s AND NOT done RETURNING 1",
            {"key": key, "owner": owner, "lease": lease},
        )

    def complete(self, key: str, owner: str, ttl: float, result: bytes | None) -> bool:
        return self._changed(
            f"INSERT INTO {self._names.claims} AS mine (key, owner, done, until, result) VALUES (%(key)s, %(owner)s,"
            " true, clock_timestamp() + make_interval(secs => %(ttl)s), %(result)s) ON CONFLICT (key)"
            " DO UPDATE SET done = true, until = excluded.until, result = excluded.result"
            " WHERE mine.owner = excluded.owner RETURNING 1",
            {"key": key, "owner": owner, "ttl": ttl, "result": result},
        )

    def release(self, key: str, owner: str) -> bool:
        return self._changed(
            f"DELETE FROM {self._names.claims} WHERE key = %(key)s AND owner = %(owner)s AND NOT done RETURNING 1",
            {"key": key, "owner": owner},
        )

    def forget(self, key: str) -> bool:
        claim = self._changed(f"DELETE FROM {self._names.claims} WHERE key = %(key)s RETURNING 1", {"key": key})
        return self._changed(f"DELETE FROM {self._names.lines} WHERE key = %(key)s RETURNING 1", {"key": key}) or claim

    def prune(self) -> int:
        sql = f"DELETE FROM {self._names.claims} WHERE until <= clock_timestamp()"
        return self._run(lambda connection: connection.execute(sql).rowcount)

    def begin_turn(self, key: str, sequence: int, owner: str, lease: float, first: int) -> Turn:
        lines = self._names.lines
        given = {"key": key, "sequence": sequence, "owner": owner, "lease": lease, "before": first - 1}

        def work(connection: psycopg.Connection[Any]) -> Turn:
            connection.execute(
                f"INSERT INTO {lines} (key, last, owner, until) VALUES (%(key)s, %(before)s, '', clock_timestamp())"
                " ON CONFLICT (key) DO NOTHING",
                given,
            )
            taken = connection.execute(
                f"UPDATE {lines} SET owner = %(owner)s,"
                " until = clock_timestamp() + make_interval(secs => %(lease)s)"
                " WHERE key = %(key)s AND last = %(sequence)s::bigint - 1"
                " AND (owner IN ('', %(owner)s) OR until <= clock_timestamp()) RETURNING last",
                given,
            ).fetchone()
            if taken is not None:
                return Turn(Place.NEXT, taken[0])
            found = connection.execute(
                f"SELECT last, extract(epoch FROM until - clock_timestamp())::float8 FROM {lines} WHERE key = %(key)s",
                given,
            ).fetchone()
            last, left = found or (first - 1, 0.0)
            if sequence <= last:
                return Turn(Place.SEEN, last)
            return Turn(Place.GAP, last) if sequence > last + 1 else Turn(Place.BUSY, last, max(0.0, left))

        return self._run(work)

    def extend_turn(self, key: str, owner: str, lease: float) -> bool:
        return self._changed(
            f"UPDATE {self._names.lines} SET until = clock_timestamp() + make_interval(secs => %(lease)s)"
            " WHERE key = %(key)s AND owner = %(owner)s RETURNING 1",
            {"key": key, "owner": owner, "lease": lease},
        )

    def end_turn(self, key: str, sequence: int, owner: str) -> bool:
        return self._changed(
            f"UPDATE {self._names.lines} SET last = %(sequence)s, owner = ''"
            " WHERE key = %(key)s AND owner = %(owner)s AND last = %(sequence)s::bigint - 1 RETURNING 1",
            {"key": key, "owner": owner, "sequence": sequence},
        )

    def give_up_turn(self, key: str, owner: str) -> bool:
        return self._changed(
            f"UPDATE {self._names.lines} SET owner = '' WHERE key = %(key)s AND owner = %(owner)s RETURNING 1",
            {"key": key, "owner": owner},
        )

    # --- connections

    def _changed(self, sql: str, given: Mapping[str, object]) -> bool:
        return self._fetch(sql, given) is not None

    def _fetch(self, sql: str, given: Mapping[str, object]) -> tuple[Any, ...] | None:
        return self._run(lambda connection: connection.execute(sql, given).fetchone())

    def _run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Retries once if the connection turns out to be dead: every statement here may be repeated."""
        try:
            with self._connection() as connection:
                return work(connection)
        except self._psycopg.OperationalError:
            with self._lock:
                stale, self._idle = self._idle, []
            for connection in stale:
                connection.close()
            with self._connection() as connection:
                return work(connection)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._free:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connect()
            try:
                connection.autocommit = True
                connection.row_factory = self._tuple_row  # the caller's function may have set another
                yield connection
            except BaseException:
                connection.close()
                raise
            with self._lock:
                self._idle.append(connection)


def create_tables(connection: psycopg.Connection[Any], *, table: str = tables.CLAIMS) -> None:
    """Create the store's tables if they do not exist; in the connection's transaction if there is one."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        for statement in tables.postgres_schema(tables.Names(table)):
            connection.execute(statement)

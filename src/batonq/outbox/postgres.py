"""The relay's side of an outbox in PostgreSQL. Several relays share the lanes: each locks some, skipping locked ones.

There are two connections: one holds the locks of lanes in an open transaction, and loses them if the relay dies or
hangs; the other one works, listens and commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from batonq.databases import load_psycopg
from batonq.errors import InvalidInput, Unavailable
from batonq.outbox.rows import Row
from batonq.outbox.schema import LANES, OUTBOX, STREAM_LANE, Names
from batonq.outbox.source import BATCH_BYTES_MAX, Batch, Lag
from batonq.outbox.writing import create_tables as create_tables
from batonq.outbox.writing import put as put
from batonq.outbox.writing import put_async as put_async
from batonq.outbox.writing import seen as seen
from batonq.outbox.writing import seen_async as seen_async

if TYPE_CHECKING:
    import psycopg

LANES_AT_ONCE = 4
HUNG_S = 120  # a relay that is suspended for this long while it holds lanes loses them
_PRUNE_ROWS = 5000
_COLUMNS = "id, queue, key, CAST(body AS text), data, CAST(options AS text)"


class PostgresSource:
    """Use `listen=False` for connections through a pooler without LISTEN: then rows are found by polling."""

    def __init__(self, dsn: str, *, table: str = OUTBOX, listen: bool = True) -> None:
        self.dsn = dsn
        self.names = Names(table)
        self._psycopg = load_psycopg()
        self._listen = listen
        self._worker: psycopg.Connection[Any] | None = None
        self._locker: psycopg.Connection[Any] | None = None
        with self.working() as connection:
            known = connection.execute("SELECT to_regclass(%s)", (self.names.outbox,)).fetchone() != (None,)
        if not known:
            self.close()
            raise InvalidInput(f"Table {table} does not exist. Run `baton outbox init`.")

    def close(self) -> None:
        for connection in (self._worker, self._locker):
            if connection is not None:
                connection.close()
        self._worker = self._locker = None

    # --- batches

    def claim(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        given = {"resting": list(resting)}
        with self.working() as connection:
            self._forget_notifications(connection)
            found = connection.execute(
                f"""SELECT lane FROM {self.names.lanes} l WHERE
                    EXISTS (SELECT FROM {self.names.batches} b WHERE b.lane = l.lane AND b.queue <> ALL(%(resting)s))
                    OR EXISTS (SELECT FROM {self.names.outbox} o WHERE o.lane = l.lane AND published_at IS NULL
                        AND refused IS NULL AND queue <> ALL(%(resting)s)) ORDER BY random()""",
                given,
            ).fetchall()
        if not found:
            return []
        holder, producers = self.lock_lanes([lane for (lane,) in found], LANES_AT_ONCE)
        if not producers:
            return []
        lanes = list(producers)
        with self.working() as connection:
            pending = connection.execute(
                f"SELECT lane, queue, first, ids FROM {self.names.batches}"
                " WHERE lane = ANY(%(lanes)s) AND queue <> ALL(%(resting)s)",
                {**given, "lanes": lanes},
            ).fetchall()
            if not pending:
                pending = self._record(connection, holder, lanes, rows_max, list(resting))
            rows = self.load_rows(connection, [id for record in pending for id in record[3]])
            return self.batches(producers, pending, rows)

    def lock_lanes(self, lanes: Sequence[int], most: int) -> tuple[tuple[int, str], dict[int, str]]:
        """Lock some of these lanes that are free. Returns the lock holder (process and transaction) and their
        producers.
        """
        with self._locking() as connection:
            rows = connection.execute(
                f"SELECT lane, producer FROM {self.names.lanes} WHERE lane = ANY(%s) LIMIT %s FOR UPDATE SKIP LOCKED",
                (list(lanes), most),
            ).fetchall()
            if not rows:
                connection.rollback()
                return (0, ""), {}
            holder = connection.execute("SELECT pg_backend_pid(), CAST(pg_current_xact_id() AS text)").fetchone()
            assert holder is not None
            return (holder[0], holder[1]), dict(rows)

    def _record(
        self,
        connection: psycopg.Connection[Any],
        holder: tuple[int, str],
        lanes: list[int],
        rows_max: int,
        resting: Any,
    ) -> list[tuple[Any, ...]]:
        """Select rows and record them as batches, in one statement, and only while the locks are held.

        Numbers start at the time in microseconds, so they are new even if the database was restored from a backup.
        """
        return connection.execute(
            f"""WITH picked AS (
                SELECT l.lane, r.id, r.queue FROM unnest(%(lanes)s::int[]) l(lane) CROSS JOIN LATERAL (
                    SELECT id, queue, sum(size) OVER (ORDER BY id) - size AS before FROM (
                        SELECT id, queue, coalesce(pg_column_size(body), 0) + coalesce(pg_column_size(data), 0) AS size
                        FROM {self.names.outbox} o WHERE o.lane = l.lane AND published_at IS NULL AND refused IS NULL
                        AND queue <> ALL(%(resting)s) AND NOT EXISTS
                            (SELECT FROM {self.names.batches} b
                            WHERE b.queue = o.queue AND b.lane IN (o.lane, {STREAM_LANE}))
                        ORDER BY id LIMIT %(rows)s
                    ) waiting
                ) r
                WHERE r.before < %(bytes)s AND {self.held_condition}
            ), grouped AS (
                SELECT lane, queue, array_agg(id ORDER BY id) AS ids, count(*) AS size FROM picked GROUP BY lane, queue
            ), placed AS (
                SELECT *, sum(size) OVER (PARTITION BY lane ORDER BY queue) - size AS before,
                    sum(size) OVER (PARTITION BY lane) AS total FROM grouped
            ), numbered AS (
                UPDATE {self.names.numbers} n SET number = {self.next_number} + t.total
                FROM (SELECT DISTINCT lane, total FROM placed) t WHERE n.lane = t.lane
                RETURNING n.lane, number - t.total AS base
            )
            INSERT INTO {self.names.batches} (lane, queue, first, ids)
            SELECT lane, queue, base + before + 1, ids FROM placed JOIN numbered USING (lane)
            RETURNING lane, queue, first, ids""",
            {
                "lanes": [lane for lane in lanes if lane >= 0],
                "rows": rows_max,
                "resting": resting,
                "bytes": BATCH_BYTES_MAX // LANES_AT_ONCE,
                "pid": holder[0],
                "xid": holder[1],
            },
        ).fetchall()

    held_condition = "EXISTS (SELECT FROM pg_stat_activity WHERE pid = %(pid)s AND CAST(backend_xid AS text) = %(xid)s)"
    next_number = "greatest(n.number, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint))"

    @staticmethod
    def batches(producers: dict[int, str], records: Sequence[tuple[Any, ...]], rows: dict[int, Row]) -> list[Batch]:
        """The recorded batches, with their unpublished rows."""
        return [
            Batch(
                lane,
                queue,
                producers[lane],
                first,
                [(first + at, rows[id]) for at, id in enumerate(members) if id in rows],
            )
            for lane, queue, first, members in records
        ]

    def load_rows(self, connection: psycopg.Connection[Any], ids: Sequence[int]) -> dict[int, Row]:
        """The unpublished rows among them."""
        if not ids:
            return {}
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM {self.names.outbox}"
            " WHERE id = ANY(%s) AND published_at IS NULL AND refused IS NULL",
            (list(ids),),
        )
        return {row[0]: Row(*row) for row in found}

    def settle(
        self, batch: Batch, published: Sequence[int], refused: Sequence[tuple[int, str]], finished: bool
    ) -> None:
        with self.working() as connection, connection.transaction():
            connection.execute(
                f"UPDATE {self.names.outbox} SET published_at = clock_timestamp()"
                " WHERE id = ANY(%s) AND published_at IS NULL",
                (list(published),),
            )
            for id, reason in refused:
                connection.execute(f"UPDATE {self.names.outbox} SET refused = %s WHERE id = %s", (reason, id))
            if finished:
                connection.execute(
                    f"DELETE FROM {self.names.batches} WHERE lane = %s AND queue = %s AND first = %s",
                    (batch.lane, batch.queue, batch.first),
                )

    def release(self) -> None:
        if self._locker is not None and not self._locker.closed:
            try:
                self._locker.rollback()
            except self._psycopg.Error:
                self._locker.close()

    # --- waking

    def wait(self, seconds: float) -> None:
        with self.working() as connection:
            for _ in connection.notifies(timeout=seconds, stop_after=1):
                pass
            self._forget_notifications(connection)

    @staticmethod
    def _forget_notifications(connection: psycopg.Connection[Any]) -> None:
        """One notification wakes as well as a thousand, and those that arrive during work would pile up."""
        for _ in connection.notifies(timeout=0):
            pass

    # --- what stands in the table

    def lag(self) -> Lag:
        with self.working() as connection:
            found = connection.execute(
                f"""SELECT
                    (SELECT count(*) FROM {self.names.outbox} WHERE published_at IS NULL AND refused IS NULL),
                    (SELECT CAST(extract(epoch FROM clock_timestamp() - min(created_at)) AS float8)
                        FROM generate_series(0, {LANES - 1}) lane CROSS JOIN LATERAL (
                            SELECT created_at FROM {self.names.outbox} o WHERE o.lane = lane.lane
                            AND published_at IS NULL AND refused IS NULL ORDER BY id LIMIT 1) first),
                    (SELECT count(*) FROM {self.names.batches} CROSS JOIN unnest(ids) AS member
                        JOIN {self.names.outbox} ON id = member WHERE published_at IS NULL AND refused IS NULL),
                    (SELECT count(*) FROM {self.names.outbox} WHERE published_at IS NULL AND refused IS NOT NULL),
                    (SELECT count(*) FROM {self.names.outbox} WHERE published_at IS NOT NULL)"""
            ).fetchone()
        assert found is not None
        waiting, oldest, in_doubt, refused, published = found
        return Lag(waiting, max(0.0, oldest or 0.0), in_doubt, refused, published)

    def prune(self, older_than: float) -> int:
        with self.working() as connection:
            return connection.execute(
                f"DELETE FROM {self.names.outbox} WHERE id IN (SELECT id FROM {self.names.outbox}"
                " WHERE published_at < clock_timestamp() - make_interval(secs => %s)"
                f" LIMIT {_PRUNE_ROWS} FOR UPDATE SKIP LOCKED)",
                (older_than,),
            ).rowcount

    def retry(self, ids: Sequence[int]) -> int:
        with self.working() as connection:
            return connection.execute(
                f"UPDATE {self.names.outbox} SET refused = NULL WHERE refused IS NOT NULL AND published_at IS NULL"
                " AND (id = ANY(%(ids)s) OR %(all)s)",
                {"ids": list(ids), "all": not ids},
            ).rowcount

    # --- connections

    @contextmanager
    def working(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection that commits each statement; reopened after it was lost."""
        with self._told():
            if self._worker is None or self._worker.closed:
                self._worker = self._psycopg.connect(self.dsn, autocommit=True)
                if self._listen:
                    self._worker.execute(f'LISTEN "{self.names.channel}"')
            yield self._worker

    @contextmanager
    def _locking(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection that holds locks; in a transaction until `release`."""
        with self._told():
            if self._locker is None or self._locker.closed:
                self._locker = self._psycopg.connect(self.dsn)
                self._locker.execute(f"SET idle_in_transaction_session_timeout = '{HUNG_S}s'")
                self._locker.commit()
            else:
                self._locker.rollback()
            yield self._locker

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.OperationalError as problem:
            for connection in (self._worker, self._locker):
                if connection is not None:
                    connection.close()
            raise Unavailable(f"The database is unavailable: {problem}") from None
        except self._psycopg.errors.InsufficientPrivilege as problem:
            raise InvalidInput(f"The database role does not have permission: {problem}") from None

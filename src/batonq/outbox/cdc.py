"""The outbox in PostgreSQL, read from its write-ahead log (`--cdc`): no polling, and in commit order.

The log tells which rows were committed; the rows are then recorded, published and marked as by any relay, and only
after that the position in the log is confirmed. The log may report a transaction a moment before other sessions can see
its rows: the relay waits until they are visible, and takes nothing after them. A slot has one reader; further relays
stand by. At the start, and once per minute, the table is read as well, for rows from before the slot and for rows to
retry.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from batonq.errors import BatonError, Unavailable
from batonq.outbox import pgoutput
from batonq.outbox.pgoutput import SlotInUse, Snapshot, Stream
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.schema import LANES, OUTBOX, STREAM_LANE
from batonq.outbox.source import Batch

SWEEP_EVERY_S = 60.0
STANDBY_S = 0.25
SOON_S = 0.01  # a reported commit becomes visible within this time, or a few times this time
_BUFFER_IDS_MAX = 10_000


class StreamSource(PostgresSource):
    """Batches from the replication stream, in a separate lane, with every lane locked."""

    def __init__(self, dsn: str, *, table: str = OUTBOX) -> None:
        super().__init__(dsn, table=table, listen=False)
        self._slot = ""
        self._stream: Stream | None = None
        self._ids: deque[tuple[int, int, int]] = deque()  # row, its transaction's number, and where that ends
        self._taken = 0  # rows up to here were recorded
        self._sweeping = True
        self._sweep_at = 0.0
        try:
            with self.working() as connection:
                self._slot = pgoutput.prepare(connection, self.names.outbox, self.names.publication, "id")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._end_stream()
        super().close()

    def claim(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        try:
            if not self._streaming():
                return []
            if self._sweeping or time.monotonic() >= self._sweep_at:
                return self._sweep(rows_max, resting)
            return self._claim_from_stream(rows_max)
        except BatonError:
            self._end_stream()
            raise

    def wait(self, seconds: float) -> None:
        if self._stream is None:
            time.sleep(min(seconds, STANDBY_S))
            return
        if self._ids:  # something is known to be waiting, so do not wait for the stream
            time.sleep(min(seconds, STANDBY_S if self._sweeping else SOON_S))
            return
        try:
            self._read(seconds)
        except BatonError:
            self._end_stream()
            raise

    def _streaming(self) -> bool:
        if self._stream is None:
            try:
                self._stream = Stream(self.dsn, self._slot, self.names.publication, "id")
            except SlotInUse:
                return False
            self._sweeping = True
        return True

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._ids.clear()
        self._taken = 0

    def _sweep(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        self._sweeping = True
        batches = super().claim(rows_max, resting)
        if not batches and not resting:
            self._sweeping = False
            self._sweep_at = time.monotonic() + SWEEP_EVERY_S
            return self._claim_from_stream(rows_max)
        self._read(0.0)  # also while the table has many rows: the server expects to hear from its reader
        return batches

    def _claim_from_stream(self, rows_max: int) -> list[Batch]:
        assert self._stream is not None
        lanes = range(STREAM_LANE, LANES)
        holder, producers = self.lock_lanes(lanes, len(lanes))
        if len(producers) < len(lanes):
            return []  # another relay is working on the table
        with self.working() as connection:
            if connection.execute(f"SELECT FROM {self.names.batches} LIMIT 1").fetchone() is not None:
                self._sweeping = True  # a queue did not accept all rows: its batch is retried, and nothing overtakes it
                return []
            if self._taken:
                self._stream.confirm(self._taken)
                self._taken = 0
            self._read(0.0)
            if not self._ids:
                self._stream.confirm_all()
                return []
            ids = self._take(rows_max, self._snapshot(connection))
            rows = self.load_rows(connection, ids)
            by_queue: dict[str, list[int]] = {}
            for id in ids:
                if id in rows:
                    by_queue.setdefault(rows[id].queue, []).append(id)
            records = self._record_stream(connection, holder, by_queue)
            return self.batches(producers, records, rows)

    @staticmethod
    def _snapshot(connection: Any) -> Snapshot:
        (text,) = connection.execute("SELECT CAST(pg_current_snapshot() AS text)").fetchone()
        return Snapshot(text)

    def _take(self, rows_max: int, snapshot: Snapshot) -> list[int]:
        ids: list[int] = []
        while self._ids and len(ids) < rows_max and snapshot.sees(self._ids[0][1]):
            id, _, end = self._ids.popleft()
            ids.append(id)
            if not self._ids or self._ids[0][2] != end:
                self._taken = end
        return ids

    def _record_stream(
        self, connection: Any, holder: tuple[int, str], by_queue: dict[str, list[int]]
    ) -> Sequence[tuple[Any, ...]]:
        total = sum(len(ids) for ids in by_queue.values())
        if not total:
            return []
        records: list[tuple[Any, ...]] = []
        with connection.transaction():
            found = connection.execute(
                f"UPDATE {self.names.numbers} n SET number = {self.next_number} + %(total)s"
                f" WHERE n.lane = {STREAM_LANE} AND {self.held_condition} RETURNING number",
                {"total": total, "pid": holder[0], "xid": holder[1]},
            ).fetchone()
            if found is None:
                raise Unavailable("The locks of the lanes were lost; the rows are read again.")
            first = found[0] - total + 1
            for queue, ids in by_queue.items():
                connection.execute(
                    f"INSERT INTO {self.names.batches} (lane, queue, first, ids) VALUES (%s, %s, %s, %s)",
                    (STREAM_LANE, queue, first, ids),
                )
                records.append((STREAM_LANE, queue, first, ids))
                first += len(ids)
        return records

    def _read(self, seconds: float) -> None:
        assert self._stream is not None
        for number, end, ids in self._stream.read(seconds, _BUFFER_IDS_MAX - len(self._ids)):
            self._ids.extend((id, number, end) for id in ids)

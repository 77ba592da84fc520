"""PostgreSQL's logical replication protocol: only the part that an outbox needs.

A stream connection uses the replication protocol; the server's plugin `pgoutput`, which every PostgreSQL has, reports
the rows inserted by each committed transaction, in commit order.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from batonq.errors import InvalidInput, Unavailable
from batonq.outbox.schema import SCHEMA_LOCK

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

_EPOCH_2000_S = 946_684_800
_STATUS_EVERY_S = 5.0  # the server disconnects a client that is silent for a minute
_IN_USE = b"55006"
_NUMBERS = 1 << 32
_BEGIN_NUMBER = struct.Struct(">QQI")
_COMMIT_END = struct.Struct(">BQQ")


class Transaction(NamedTuple):
    """A committed transaction: its number, where it ends in the log, and the ids of the inserted rows."""

    number: int  # its last 32 bits
    end: int
    ids: list[int]


class Snapshot:
    """The transactions that a query saw, from PostgreSQL's text format: `xmin:xmax:one,another`.

    A stream reports a commit when it is in the log, which may be before other sessions can see its rows.
    """

    def __init__(self, text: str) -> None:
        _, end, running = text.split(":")
        self._end = int(end)
        self._running = {int(number) % _NUMBERS for number in running.split(",") if number}

    def sees(self, number: int) -> bool:
        """Numbers are compared as in PostgreSQL: half of the circle is before, half after."""
        before_end = (self._end - number) % _NUMBERS
        return 0 < before_end < _NUMBERS // 2 and number not in self._running


class SlotInUse(Unavailable):
    """Another relay reads this replication slot; this one waits for its turn."""


class Decoder:
    """Decodes pgoutput messages, version 1, into transactions."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._places: dict[int, int] = {}  # relation → index of the id column
        self._number = 0
        self._ids: list[int] = []
        self.inside = False  # inside a transaction

    def feed(self, message: bytes) -> Transaction | None:
        kind = message[:1]
        if kind == b"B":
            _, _, self._number = _BEGIN_NUMBER.unpack_from(message, 1)
            self._ids = []
            self.inside = True
        elif kind == b"R":
            self._relation(message)
        elif kind == b"I":
            self._ids.append(self._inserted(message))
        elif kind == b"C":
            _, _, end = _COMMIT_END.unpack_from(message, 1)
            self.inside = False
            return Transaction(self._number, end, self._ids)
        return None

    def _relation(self, message: bytes) -> None:
        (relation,) = struct.unpack_from(">I", message, 1)
        at = message.index(b"\0", 5) + 1  # its schema
        at = message.index(b"\0", at) + 2  # its name, and a byte
        (count,) = struct.unpack_from(">H", message, at)
        at += 2
        for place in range(count):
            end = message.index(b"\0", at + 1)
            if message[at + 1 : end].decode() == self._column:
                self._places[relation] = place
            at = end + 9

    def _inserted(self, message: bytes) -> int:
        (relation,) = struct.unpack_from(">I", message, 1)
        at = 8  # after the relation, the letter N and the number of columns
        for _ in range(self._places[relation]):
            at += 1 if message[at : at + 1] in (b"n", b"u") else 5 + struct.unpack_from(">I", message, at + 1)[0]
        (length,) = struct.unpack_from(">I", message, at + 1)
        return int(message[at + 5 : at + 5 + length])


class Stream:
    """A replication connection on a slot. Unconfirmed transactions are sent again on the next connection."""

    def __init__(self, dsn: str, slot: str, publication: str, column: str) -> None:
        self._decoder = Decoder(column)
        self._confirmed = 0
        self._seen = 0  # how far the server has sent everything
        self._told_at = 0.0
        with _told():
            self._connection = self._connect(dsn, slot, publication)

    @staticmethod
    def _connect(dsn: str, slot: str, publication: str) -> PGconn:
        from psycopg import pq
        from psycopg.conninfo import make_conninfo

        connection = pq.PGconn.connect(make_conninfo(dsn, replication="database").encode())
        if connection.status != pq.ConnStatus.OK:
            raise Unavailable(f"The database is unavailable: {connection.error_message.decode().strip()}")
        options = f"proto_version '1', publication_names '\"{publication}\"'"
        result = connection.exec_(f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({options})'.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            text = result.error_message.decode().strip()
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            connection.finish()
            raise (
                SlotInUse(text) if state == _IN_USE else Unavailable(f"Replication slot {slot} cannot be read: {text}")
            )
        return connection

    def close(self) -> None:
        self._connection.finish()

    def read(self, seconds: float, ids_max: int) -> list[Transaction]:
        """Committed transactions: those that are available, or the first that arrives within this many seconds."""
        found: list[Transaction] = []
        size = 0
        with _told():
            self._tell_sometimes()
            while size < ids_max:
                length, data = self._connection.get_copy_data(1)
                if length == 0:
                    if found or not self._wait(seconds):
                        break
                    seconds = 0.0
                    continue
                if length < 0:
                    raise Unavailable("The database ended the replication stream.")
                transaction = self._message(bytes(data))
                if transaction is not None and transaction.ids:
                    found.append(transaction)
                    size += len(transaction.ids)
        return found

    def confirm(self, end: int) -> None:
        """Transactions up to here need not be sent again, and the server may delete its log of them."""
        self._confirmed = max(self._confirmed, end)
        with _told():
            self._tell()

    def confirm_all(self) -> None:
        """Nothing that was reported is unfinished: commits to other tables need not be kept either."""
        if self._seen > self._confirmed:
            self.confirm(self._seen)

    def _message(self, data: bytes) -> Transaction | None:
        kind = data[:1]
        if kind == b"w":
            return self._decoder.feed(data[25:])
        if kind == b"k":
            if not self._decoder.inside:
                self._seen = max(self._seen, struct.unpack_from(">Q", data, 1)[0])
            if data[17]:
                self._tell()
        return None

    def _wait(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._connection.socket], [], [], max(0.0, seconds))
        if ready:
            self._connection.consume_input()
        return bool(ready)

    def _tell_sometimes(self) -> None:
        if time.monotonic() - self._told_at >= _STATUS_EVERY_S:
            self._tell()

    def _tell(self) -> None:
        now = int((time.time() - _EPOCH_2000_S) * 1_000_000)
        at = self._confirmed
        self._connection.put_copy_data(struct.pack(">cQQQqB", b"r", at, at, at, now, 0))
        self._connection.flush()
        self._told_at = time.monotonic()


@contextmanager
def _told() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as problem:
        raise Unavailable(f"The replication stream was lost: {problem}") from None


def prepare(connection: Any, table: str, publication: str, column: str) -> str:
    """Create the publication and the slot if they do not exist. Returns the slot's name.

    Slots belong to the whole server, so their names contain the database.
    """
    level, database = connection.execute(
        "SELECT current_setting('wal_level'), oid FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    if level != "logical":
        raise InvalidInput("--cdc needs wal_level = logical on the server. Set it, or leave --cdc out.")
    # Two relays that start at the same time would create it twice. A session lock is used, because a slot cannot be
    # created in a transaction.
    connection.execute("SELECT pg_advisory_lock(%s)", (SCHEMA_LOCK,))
    try:
        return _made(connection, table, publication, column, f"{publication[:50]}_{database}")
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (SCHEMA_LOCK,))


def _made(connection: Any, table: str, publication: str, column: str, slot: str) -> str:
    known = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone()
    if known is None:
        columns = f' ("{column}")' if connection.info.server_version >= 150000 else ""
        connection.execute(f"CREATE PUBLICATION \"{publication}\" FOR TABLE {table}{columns} WITH (publish = 'insert')")
    found = connection.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone()
    if found is None:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    elif found[0] == "lost":
        raise InvalidInput(
            f"The server has deleted log that the replication slot {slot} still needed. Drop the slot with "
            f"SELECT pg_drop_replication_slot('{slot}') and start again. No row is lost, because the table is "
            "read first."
        )
    return slot

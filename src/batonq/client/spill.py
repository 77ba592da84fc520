"""Storage of a buffer's messages until they are sent: in memory, or in a file that survives the process."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import NamedTuple, Protocol

from batonq.errors import InvalidInput, OverLimit

_VERSION = 1
_SCHEMA = """
CREATE TABLE message (position INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL);
CREATE TABLE refused (position INTEGER PRIMARY KEY, data BLOB NOT NULL, error TEXT NOT NULL);
CREATE TABLE producer (id TEXT NOT NULL);
"""


class Refused(NamedTuple):
    """A message that the server will never accept as it is, with the server's error."""

    position: int
    data: bytes
    error: str


class Store(Protocol):
    """Messages by position. Positions increase and are never reused. `producer` is the id that numbered them."""

    producer: str
    count: int
    stored_bytes: int

    def put(self, data: bytes) -> int: ...

    def first(self, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """The oldest unsent messages, with consecutive positions: at least one, if there is any."""
        ...

    def remove(self, positions: Sequence[int]) -> None:
        """Remove sent messages."""
        ...

    def refuse(self, position: int, error: str) -> None:
        """Set a message aside. It still counts until it is taken."""
        ...

    def refused(self) -> list[Refused]: ...

    def take_refused(self) -> list[Refused]:
        """Return the refused messages and remove them."""
        ...

    def close(self) -> None: ...


class MemoryStore:
    def __init__(self) -> None:
        self.producer = token_hex(8)
        self.count = 0
        self.stored_bytes = 0
        self._next = 1
        self._waiting: dict[int, bytes] = {}  # in order of position
        self._refused: list[Refused] = []

    def put(self, data: bytes) -> int:
        position = self._next
        self._next += 1
        self._waiting[position] = data
        self.count += 1
        self.stored_bytes += len(data)
        return position

    def first(self, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        return _run(self._waiting.items(), count, bytes_max)

    def remove(self, positions: Sequence[int]) -> None:
        for position in positions:
            self._forget(self._waiting.pop(position))

    def refuse(self, position: int, error: str) -> None:
        self._refused.append(Refused(position, self._waiting.pop(position), error))

    def refused(self) -> list[Refused]:
        return list(self._refused)

    def take_refused(self) -> list[Refused]:
        taken, self._refused = self._refused, []
        for each in taken:
            self._forget(each.data)
        return taken

    def close(self) -> None:
        pass

    def _forget(self, data: bytes) -> None:
        self.count -= 1
        self.stored_bytes -= len(data)


class FileStore:
    """An SQLite file. A message for which `put` returned survives any end of the process. With `durable` it also
    survives a crash of the machine, at the cost of a sync per message. Only one process at a time can use the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = False) -> None:
        self.path = os.fspath(path)
        try:
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            self._prepare(durable)
        except sqlite3.Error as problem:
            if hasattr(self, "_db"):
                self._db.close()
            if "locked" in str(problem):
                raise InvalidInput(
                    f"{self.path} is in use by another process. Use a separate spill file per process."
                ) from None
            raise InvalidInput(f"{self.path} cannot be used as a spill file: {problem}") from None

    def _prepare(self, durable: bool) -> None:
        db = self._db
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT")
        elif version != _VERSION:
            raise InvalidInput(
                f"{self.path} was written by another release (version {version}). Send its messages with that "
                "release first."
            )
        self.count, self.stored_bytes = 0, 0
        for table in ("message", "refused"):
            found = db.execute(f"SELECT count(*), coalesce(sum(length(data)), 0) FROM {table}").fetchone()
            self.count, self.stored_bytes = self.count + found[0], self.stored_bytes + found[1]
        # While messages with an unknown outcome exist, their numbers must belong to the same producer.
        known = db.execute("SELECT id FROM producer").fetchone()
        self.producer: str = known[0] if known is not None and self.count else token_hex(8)
        with self._transaction():  # this takes the lock, whatever was there before
            db.execute("DELETE FROM producer")
            db.execute("INSERT INTO producer VALUES (?)", (self.producer,))

    def put(self, data: bytes) -> int:
        try:
            cursor = self._db.execute("INSERT INTO message (data) VALUES (?)", (data,))
        except sqlite3.Error as problem:
            raise OverLimit(f"{self.path} cannot be written ({problem}), so the message was not accepted.") from None
        self.count += 1
        self.stored_bytes += len(data)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def first(self, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        rows = self._db.execute("SELECT position, data FROM message ORDER BY position LIMIT ?", (count,))
        return _run(rows.fetchall(), count, bytes_max)

    def remove(self, positions: Sequence[int]) -> None:
        size = 0
        with self._transaction() as db:
            for position in positions:
                (length,) = db.execute("SELECT length(data) FROM message WHERE position = ?", (position,)).fetchone()
                db.execute("DELETE FROM message WHERE position = ?", (position,))
                size += length
        self.count -= len(positions)
        self.stored_bytes -= size

    def refuse(self, position: int, error: str) -> None:
        with self._transaction() as db:
            select = "SELECT position, data, ? FROM message WHERE position = ?"
            db.execute(f"INSERT INTO refused {select}", (error, position))
            db.execute("DELETE FROM message WHERE position = ?", (position,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def refused(self) -> list[Refused]:
        rows = self._db.execute("SELECT position, data, error FROM refused ORDER BY position")
        return [Refused(*row) for row in rows]

    def take_refused(self) -> list[Refused]:
        taken = self.refused()
        self._db.execute("DELETE FROM refused")
        self.count -= len(taken)
        self.stored_bytes -= sum(len(each.data) for each in taken)
        return taken

    def close(self) -> None:
        self._db.close()


def _run(items: Iterable[tuple[int, bytes]], count: int, bytes_max: int) -> list[tuple[int, bytes]]:
    """The first rows, as long as their positions are consecutive and they fit."""
    found: list[tuple[int, bytes]] = []
    size = 0
    for position, data in items:
        size += len(data)
        if found and (len(found) >= count or size > bytes_max or position != found[-1][0] + 1):
            break
        found.append((position, data))
    return found

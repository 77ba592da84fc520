"""Where a buffer keeps messages until they are sent: in memory, or in a file that outlives the process."""

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
    """A message that the server will never take as it is, and what it said."""

    position: int
    data: bytes
    error: str


class Store(Protocol):
    """Messages by position; positions rise and are never given twice. `producer` names who numbered them."""

    producer: str
    count: int
    stored_bytes: int

    def put(self, data: bytes) -> int: ...

    def first(self, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """The oldest that were not sent: at least one, if there is any, with positions one after the other."""
        ...

    def remove(self, positions: Sequence[int]) -> None:
        """They were sent."""
        ...

    def refuse(self, position: int, error: str) -> None:
        """Put one aside: it still counts, until somebody takes it."""
        ...

    def refused(self) -> list[Refused]: ...

    def take_refused(self) -> list[Refused]:
        """The same, and they are no longer kept."""
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
    """An SQLite file. What `put` returned for survives the end of the process however it ends; with `durable` it
    survives the machine's too, at the price of a sync for each message. One process at a time has the file."""

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = False) -> None:
        self.path = os.fspath(path)
        try:
            self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            self._prepare(durable)
        except sqlite3.Error as problem:
            if hasattr(self, "_db"):
                self._db.close()
            if "locked" in str(problem):
                raise InvalidInput(f"{self.path} is in use by another process: give each a file of its own") from None
            raise InvalidInput(f"{self.path} cannot be used to keep messages in: {problem}") from None

    def _prepare(self, durable: bool) -> None:
        db = self._db
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT")
        elif version != _VERSION:
            raise InvalidInput(f"{self.path} was written by another release (version {version}): send it with that one")
        self.count, self.stored_bytes = 0, 0
        for table in ("message", "refused"):
            found = db.execute(f"SELECT count(*), coalesce(sum(length(data)), 0) FROM {table}").fetchone()
            self.count, self.stored_bytes = self.count + found[0], self.stored_bytes + found[1]
        # While there are messages whose fate may be in doubt, their numbers must stay those of the same producer.
        known = db.execute("SELECT id FROM producer").fetchone()
        self.producer: str = known[0] if known is not None and self.count else token_hex(8)
        with self._transaction():  # the lock is taken here, whatever was there before
            db.execute("DELETE FROM producer")
            db.execute("INSERT INTO producer VALUES (?)", (self.producer,))

    def put(self, data: bytes) -> int:
        try:
            cursor = self._db.execute("INSERT INTO message (data) VALUES (?)", (data,))
        except sqlite3.Error as problem:
            raise OverLimit(f"{self.path} cannot be written ({problem}): the message was not taken") from None
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
    """The first of these, as far as their positions follow each other and they fit."""
    found: list[tuple[int, bytes]] = []
    size = 0
    for position, data in items:
        size += len(data)
        if found and (len(found) >= count or size > bytes_max or position != found[-1][0] + 1):
            break
        found.append((position, data))
    return found

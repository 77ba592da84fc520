"""Plays a case on a connection of its own, and judges the bytes that came back."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field

from tests.fuzz.cases import Case, End

END_S = 30.0  # a server that has not ended a half-closed connection by then never will
SILENCE_S = 0.05  # a client that leaves its connection open waits this long for more
CLOSED_S = 10.0
ANSWERS_BYTES_MAX = 64 << 20
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[!-9;-~]+: ?[^\r\n]*\r\n)*)\r\n")
_LENGTH = re.compile(rb"(?i)^content-length: ?(\d+)\r$", re.MULTILINE)


@dataclass(slots=True)
class Played:
    case: Case
    began_s: float
    ended_s: float = 0.0
    statuses: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    connection: Stalled | None = None  # of a case that ends with a stall


class Stalled:
    """A connection that is left open."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def close(self) -> None:
        """At once, whatever is still to be sent."""
        self._writer.transport.abort()


class Player:
    """`context`: plays over TLS, unless a case is plain."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.context = context
        self._reading: set[asyncio.Future[None]] = set()

    async def play(self, case: Case) -> Played:
        played = Played(case, time.monotonic())
        try:
            async with asyncio.timeout(END_S + sum(case.pauses_s)):
                answers = await self._talk(case, played, None if case.plain else self.context)
        except TimeoutError:
            played.problems.append(f"the connection had not ended after {END_S:.0f} s")
            answers = b""
        except OSError:  # a reset: the server may refuse to read on
            answers = b""
        played.ended_s = time.monotonic()
        self._judge(played, answers)
        return played

    async def wait_closed(self) -> None:
        """When all connections have been closed: until nothing of them is left in this loop."""
        if self._reading:
            await asyncio.wait(self._reading, timeout=CLOSED_S)

    async def _talk(self, case: Case, played: Played, context: ssl.SSLContext | None) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(case.address, 0), ssl=context, limit=1 << 20
        )
        transport = writer.transport
        connected: socket.socket = writer.get_extra_info("socket")
        answers = bytearray()
        if not case.reads:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        reading = asyncio.ensure_future(_read(reader, answers))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        stays = False
        try:
            for number, segment in enumerate(case.segments):
                writer.write(segment)
                await writer.drain()
                await asyncio.sleep(case.pauses_s[number] if number < len(case.pauses_s) else 0)
            if case.end is End.STALL:
                played.connection = Stalled(writer)
                stays = True
            elif case.end is End.RESET:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                transport.abort()
            elif case.end is End.OPEN:
                await _until_silent(answers, reading)
            else:
                if transport.can_write_eof():
                    writer.write_eof()
                    await reading
                else:
                    await _until_silent(answers, reading)
        except (OSError, RuntimeError, ValueError):  # it has answered and closed before everything was sent
            await asyncio.wait([reading], timeout=1.0)
        finally:
            if not stays:
                reading.cancel()
                transport.abort()
        return bytes(answers)

    @staticmethod
    def _judge(played: Played, answers: bytes) -> None:
        played.statuses, rest = parse_answers(answers)
        cut = played.case.end is not End.HALF_CLOSE or not answers
        if rest and not cut and not played.case.plain:
            played.problems.append(f"what was answered is not HTTP: {rest[:200]!r}")
        for status in played.statuses:
            if status >= 500 and status != 503:
                played.problems.append(f"status {status}")
        wanted = played.case.statuses
        if wanted is not None and tuple(played.statuses) != wanted:
            played.problems.append(f"statuses {_short(played.statuses)}, not {_short(list(wanted))}")


def parse_answers(answers: bytes) -> tuple[list[int], bytes]:
    """The statuses of the answers on one connection, without 1xx, and what is left that is not an answer."""
    statuses = []
    at = 0
    while at < len(answers):
        head = _HEAD.match(answers, at)
        if head is None:
            break
        status = int(head[1])
        at = head.end()
        if status < 200:
            continue
        statuses.append(status)
        length = _LENGTH.search(head[2])
        # An answer to HEAD states a length and has no body.
        if length is not None and status not in (204, 304) and not answers.startswith(b"HTTP/1.1 ", at):
            if len(answers) == at:
                break
            at += int(length[1])
    return statuses, answers[at:] if at <= len(answers) else b"(cut)"


async def _read(reader: asyncio.StreamReader, answers: bytearray) -> None:
    try:
        while piece := await reader.read(1 << 16):
            if len(answers) < ANSWERS_BYTES_MAX:
                answers += piece
    except (OSError, asyncio.IncompleteReadError):
        pass


async def _until_silent(answers: bytearray, reading: asyncio.Future[None]) -> None:
    had = -1
    while len(answers) != had and not reading.done():
        had = len(answers)
        await asyncio.wait([reading], timeout=SILENCE_S)


def _short(statuses: list[int]) -> str:
    return str(statuses) if len(statuses) <= 12 else f"{statuses[:12]} … ({len(statuses)})"

"""One shard's frames in PostgreSQL: see log/backend.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from batonq.errors import Fenced, LogCorrupt, LogGap
from batonq.log.backend import Bounds, Entry, WrongEnd
from batonq.log.frames import NO_DIGEST, Frame
from batonq.log.interface import Room
from batonq.log.postgres import schema
from batonq.log.postgres.connection import Line, Refused, wait_for_event

FRAME_BYTES_MAX = 256 << 20  # a value is at most 1 GiB, and its text form on the wire may be twice as long
READ_BYTES = 8 << 20
READ_FRAMES = 1024
FULL_S = 10.0  # how long after a refusal for lack of space only the reserve may be used
DISK_FULL = "53100"
UNIQUE_VIOLATION = "23505"


class PostgresBackend:
    """`appending` is this shard's own connection, `reading` is shared; `grown` is set after an append, which `announce`
    reports to others.
    """

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(
        self,
        shard: int,
        *,
        where: str,
        appending: Line,
        reading: Line,
        grown: Callable[[], asyncio.Event],
        announce: Callable[[], None],
        poll_s: float,
    ) -> None:
        self.shard = shard
        self.where = where
        self._appending = appending
        self._reading = reading
        self._grown = grown
        self._announce = announce
        self._poll_s = poll_s
        self._full_at_s = -FULL_S

    async def begin(self) -> None:
        """Make sure that the log exists."""
        await self._reading.run(schema.BEGIN_LOG, (self.shard, NO_DIGEST))

    async def bounds(self) -> Bounds:
        first, stop, _, _ = await self._tail_row()
        full = time.monotonic() - self._full_at_s < FULL_S
        return Bounds(first, stop, Room.RESERVE if full else Room.PLENTY)

    async def append(self, frame: Frame) -> None:
        parameters = {
            "shard": self.shard,
            "number": frame.number,
            "epoch": frame.epoch,
            "digest": frame.digest,
            "previous": frame.previous_digest,
            "bytes": frame.size,
            "data": b"".join((frame.header, frame.rows, frame.variable)),
        }
        try:
            stored = await self._appending.run(schema.APPEND, parameters)
        except Refused as refused:
            if refused.sqlstate == DISK_FULL:
                self._full_at_s = time.monotonic()
            if refused.sqlstate == UNIQUE_VIOLATION:
                raise LogCorrupt(
                    f"{self.where} has a frame {frame.number}, although it says that it ends before it"
                ) from None
            raise
        if not stored:
            await self._tell_why(frame)
        self._announce()

    async def _tell_why(self, frame: Frame) -> None:
        _, stop, epoch, digest = await self._tail_row()
        if stop == frame.number and epoch > frame.epoch:
            raise Fenced(f"epoch {frame.epoch} has ended: {self.where} is at epoch {epoch}")
        if stop == frame.number and digest != frame.previous_digest:
            raise LogCorrupt(f"{self.where} ends with another frame {stop - 1} than the committed one")
        raise WrongEnd(f"{self.where} ends with frame {stop - 1}")

    async def _tail_row(self) -> tuple[int, int, int, bytes]:
        rows = await self._reading.run(schema.TAIL, (self.shard,))
        if not rows:
            raise LogCorrupt(f"{self.where} was deleted from the database")
        first, stop, epoch, digest = rows[0]
        return first, stop, epoch, bytes(digest)

    async def find(self, number: int) -> bytes | None:
        rows = await self._reading.run(schema.FIND, (self.shard, number))
        return bytes(rows[0][0]) if rows else None

    async def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        while True:
            grown = self._grown()  # before reading, so that nothing is missed in between
            rows = await self._reading.run(
                schema.READ, {"shard": self.shard, "start": start, "frames": READ_FRAMES, "bytes": READ_BYTES}
            )
            if not rows or rows[0][0] != start:
                first, stop, _, _ = await self._tail_row()
                if start < first:
                    raise LogGap(f"{self.where} begins with frame {first}; frame {start} is no longer retained")
                if start < stop and rows:
                    raise LogCorrupt(f"{self.where}: frame {start} is missing, frame {rows[0][0]} follows")
                if start > stop:
                    raise LogCorrupt(f"{self.where} ends with frame {stop - 1}, although frame {start - 1} was read")
            if not rows:
                await wait_for_event(grown, self._poll_s)
                continue
            yield [Entry(number, bytes(data)) for number, data in rows]
            start = rows[-1][0] + 1

    async def drop_front(self, before: int) -> None:
        await self._reading.run(schema.DROP, {"shard": self.shard, "before": before})

    async def close(self) -> None:
        await self._appending.close()

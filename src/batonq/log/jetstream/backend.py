"""One shard's frames in a JetStream stream: see log/backend.py. A frame's number is its stream sequence."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from nats.js.api import ConsumerConfig, DeliverPolicy, Header, StreamInfo
from nats.js.errors import APIError

from batonq.errors import LogCorrupt, LogGap
from batonq.log.backend import Bounds, Entry, Unreachable, WrongEnd
from batonq.log.frames import Frame
from batonq.log.interface import Room
from batonq.log.jetstream.client import Parts
from batonq.log.jetstream.connections import Lines
from batonq.log.jetstream.requests import (
    NO_MESSAGE,
    NO_ROOM,
    NO_STREAM,
    WRONG_LAST_SEQUENCE,
    Puller,
    ask,
    ask_repeatedly,
)

T = TypeVar("T")
HEADERS_BYTES = 1024  # overhead of a message beside the frame
FULL_S = 10.0  # how long after a refusal for lack of space only the reserve may be used
RESERVE_PART = 10  # a tenth of the stream's limit
GONE_S = 10.0  # how long a stream must be missing before it counts as deleted


def replica_lags(info: StreamInfo) -> tuple[tuple[str, int], ...]:
    """How many messages each replica of a stream is behind its leader."""
    replicas = (info.cluster.replicas or ()) if info.cluster is not None else ()
    return tuple((peer.name or "", peer.lag or 0) for peer in replicas)


class JetStreamBackend:
    def __init__(
        self,
        shard: int,
        *,
        stream: str,
        subject: str,
        lines: Lines,
        timeout_s: float,
    ) -> None:
        self.shard = shard
        self.where = f"stream {stream}"
        self._stream = stream
        self._subject = subject
        self._lines = lines
        self._client, self._context = lines.home
        self._leader = ""  # the server that leads the stream, as far as known
        self._timeout_s = timeout_s
        self._full_at_s = -FULL_S
        self._missing_since_s: float | None = None

    @property
    def frame_bytes_max(self) -> int:
        return self._client.max_payload - HEADERS_BYTES

    async def bounds(self) -> Bounds:
        state, config = (info := await self._info()).state, info.config
        first, stop = max(state.first_seq, 1), state.last_seq + 1
        if state.num_deleted or stop - first != state.messages:
            raise LogCorrupt(
                f"{self.where} has {state.messages} messages at sequences {first} to {stop - 1}: some were "
                "deleted. Nothing was skipped. The shard is stopped until an operator has repaired or "
                "restored the log."
            )
        return Bounds(first, stop, self._room(state.bytes, config.max_bytes or -1), replica_lags(info))

    def _room(self, used: int, limit: int) -> Room:
        if limit > 0 and used > limit - limit // (RESERVE_PART * RESERVE_PART):
            return Room.NONE
        full = time.monotonic() - self._full_at_s < FULL_S
        return Room.RESERVE if full or (limit > 0 and used > limit - limit // RESERVE_PART) else Room.PLENTY

    async def append(self, frame: Frame) -> None:
        headers = {
            Header.EXPECTED_STREAM.value: self._stream,
            Header.EXPECTED_LAST_SEQUENCE.value: str(frame.number - 1),
        }
        data: Any = Parts((frame.header, frame.rows, frame.variable))
        line = self._lines.to(self._leader)
        publish = line.context.publish(self._subject, data, timeout=self._timeout_s, headers=headers)
        try:
            acknowledged = await ask(line.client, self.where, publish, self._timeout_s)
        except Unreachable:
            self._lines.doubt(line)
            raise
        except APIError as refused:
            if refused.err_code in WRONG_LAST_SEQUENCE:
                raise WrongEnd(f"{self.where}: {refused.description}") from None
            if refused.err_code in NO_ROOM:
                self._full_at_s = time.monotonic()
            raise self._unsettled(refused) from None
        if acknowledged.seq != frame.number or acknowledged.duplicate:
            raise LogCorrupt(f"{self.where} stored frame {frame.number} at sequence {acknowledged.seq}")

    async def find(self, number: int) -> bytes | None:
        """Reads from the stream's leader, because the stream does not allow direct reads from others."""
        try:
            message = await self._ask_repeatedly(lambda: self._context.get_msg(self._stream, seq=number))
        except APIError as refused:
            if refused.err_code == NO_MESSAGE:
                return None
            raise self._unsettled(refused) from None
        return message.data or b""

    async def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        puller = Puller(self._lines.home, self._stream, self.where, self._timeout_s, self._lines.to)
        try:
            await self._check_start(start)
            await puller.open(ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start))
            while True:
                entries: list[Entry] = []
                for message in await puller.batch():
                    number = message.metadata.sequence.stream
                    if number != start:
                        if entries:
                            yield entries
                        await self._tell_hole(start, number)
                    entries.append(Entry(number, message.data))
                    start += 1
                if entries:
                    yield entries
        except Unreachable:
            self._lines.doubt(puller.line)
            raise
        finally:
            await puller.close()

    async def _check_start(self, start: int) -> None:
        """Checked first, because a consumer would start with the first message that exists."""
        bounds = await self.bounds()
        if start < bounds.first:
            raise LogGap(f"{self.where} begins with frame {bounds.first}; frame {start} is no longer retained")

    async def _tell_hole(self, start: int, number: int) -> None:
        """Another frame than `start` arrived: was the front dropped, was the read
        disturbed, or is the frame missing?
        """
        await self._check_start(start)
        if number > start and await self.find(start) is None:
            raise LogCorrupt(f"{self.where}: frame {start} is missing, frame {number} follows. Nothing was skipped.")
        raise Unreachable(f"{self.where}: frame {number} arrived in place of frame {start}")

    async def drop_front(self, before: int) -> None:
        try:
            await self._ask(self._context.purge_stream(self._stream, seq=before))
        except APIError as refused:
            raise self._unsettled(refused) from None

    async def close(self) -> None:
        pass

    async def _info(self) -> StreamInfo:
        try:
            info = await self._ask_repeatedly(lambda: self._context.stream_info(self._stream))
        except APIError as refused:
            if refused.err_code == NO_STREAM:
                raise self._missing() from None
            raise self._unsettled(refused) from None
        self._missing_since_s = None
        self._leader = (info.cluster and info.cluster.leader) or ""
        return info

    def _missing(self) -> Unreachable | LogCorrupt:
        """The stream existed: a server that has just started, or that elects a leader, may not know it for a while."""
        now_s = time.monotonic()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        if now_s - self._missing_since_s < GONE_S:
            return Unreachable(f"{self.where} is not known to the servers at the moment")
        return LogCorrupt(f"{self.where} was deleted: the servers have not known it for {GONE_S:.0f} s")

    def _unsettled(self, refused: APIError) -> Unreachable:
        return Unreachable(f"{self.where}: {refused.description} ({refused.err_code})")

    async def _ask_repeatedly(self, question: Callable[[], Awaitable[T]]) -> T:
        return await ask_repeatedly(self._client, self.where, question, self._timeout_s)

    async def _ask(self, question: Awaitable[T]) -> T:
        return await ask(self._client, self.where, question, self._timeout_s)

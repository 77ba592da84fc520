"""Reads the retained history of a queue on one shard: messages in the order in which they entered the queue, whether
they are deleted or not. Nothing is leased, and no counter changes.

A message is as it was when it entered the queue. Only committed messages are read.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Any, NamedTuple

from batonq.core.ids import message_id, message_ids
from batonq.core.payload import AS_IS, NO_DIGEST, Lineage, Payload, Payloads, columns_of, decode, read_payloads
from batonq.core.records import ArrivedFlag, Type, arrived_prefix, part_of, skip
from batonq.core.shard.state.columns import halves_of
from batonq.errors import LogError, Unavailable
from batonq.log.frames import Frame
from batonq.node.messages.message_history import payload_at
from batonq.node.messages.received import Render, in_envelope
from batonq.node.shard_host.host import ShardHost

LIMIT_MAX = 1_000  # messages per page
BYTES_MAX = 12 << 20  # of the messages of one page, unless a single message is larger
CACHED_BYTES_MAX = 16 << 20  # of the frames that a shard keeps between two pages
TURN_BYTES = 2 << 20  # read before other requests get a turn
CONTENT_BITS = 0xFF & ~(NO_DIGEST | AS_IS)


class RetainedMessage(NamedTuple):
    """One message of the retained history."""

    position: int  # in the shard's log; positions of one queue on one shard only grow
    sequence: int  # the message's number in the queue
    message_id: str
    time_ms: int  # when it entered the queue: was sent, or arrived from another queue
    sent_ms: int
    group: str
    dedup_id: str
    trace: str
    sender: str
    priority: int
    attributes: bytes  # see core/payload.py
    body: bytes
    content: int  # type of the body, with the flags of a payload store, see core/payload.py


@dataclass(slots=True)
class RetainedPage:
    """Messages of the retained history as columns. A column that no message uses is empty."""

    shard: int
    numbers_from: int = 0  # added to a sequence to number a message in its queue, see Spread
    positions: Sequence[int] = ()
    sequences: Sequence[int] = ()
    times_ms: Sequence[int] = ()  # when each message entered the queue
    sents_ms: Sequence[int] = ()  # if they differ from the times
    priorities: Sequence[int] = ()
    bodies: Sequence[bytes] = ()
    contents: Sequence[int] = ()  # type of each body, with flags, see payload.py
    digests: Sequence[bytes] = ()
    senders: Sequence[str] = ()
    groups: Sequence[str] = ()
    dedup_ids: Sequence[str] = ()
    traces: Sequence[str] = ()
    lineages: Sequence[bytes] = ()
    attributes: Sequence[bytes] = ()
    left: int = 0  # committed messages after the last one of this page
    first: int = 0  # position of the oldest retained message; 0: none is retained

    def __len__(self) -> int:
        return len(self.positions)

    def first_messages(self, count: int) -> RetainedPage:
        """The page with only its first messages."""
        more = len(self.positions) - count
        if not more:
            return self
        columns: dict[str, Any] = {
            each.name: column[:count]
            for each in fields(self)
            if isinstance(column := getattr(self, each.name), Sequence) and len(column)
        }
        return replace(self, left=self.left + more, **columns)

    def message_ids(self) -> list[str]:
        """The id of each message: its first one, if it was moved."""
        ids = message_ids(self.shard, self.sequences)
        if not self.lineages:
            return ids
        return [_first_id(lineage) or own for lineage, own in zip(self.lineages, ids, strict=True)]

    def messages(self) -> Iterator[RetainedMessage]:
        """The messages one by one."""
        columns = zip(
            self.positions,
            [self.numbers_from + sequence for sequence in self.sequences],
            self.message_ids(),
            self.times_ms,
            self.sents_ms or self.times_ms,
            self.groups or repeat(""),
            self.dedup_ids or repeat(""),
            self.traces or repeat(""),
            self.senders or repeat(""),
            self.priorities,
            self.attributes or repeat(b""),
            self.bodies,
            [content & CONTENT_BITS for content in self.contents],
            strict=False,
        )
        return map(RetainedMessage._make, columns)


class RetainedBounds(NamedTuple):
    """Where the retained history of a queue on one shard begins and ends. Positions are 0 if nothing is retained."""

    first: int
    last: int  # of the newest committed message
    before: int  # reading after this position begins with the first message of the time that was asked for
    messages: int  # how many are retained


def bounds_of(host: ShardHost, queue: int, time_ms: int) -> RetainedBounds:
    """Raises QueueDoesNotExist, NotRetained, Unavailable."""
    if not host.serving:
        raise Unavailable(host.why)
    retained = host.shard.retained_of(queue, host.now_ms())
    count = retained.index_after((host.log.next << 16) - 1)
    if not count:
        return RetainedBounds(0, 0, 0, 0)
    last = retained.position_at(count - 1)
    index = min(retained.index_at_time(time_ms), count)
    before = retained.position_at(index) - 1 if index < count else last
    return RetainedBounds(retained.first, last, before, count)


def _first_id(lineage: bytes) -> str:
    return Lineage.decode(lineage).message_id if lineage else ""


def _run_of_sends(words: array[int], first: int, last: int, count: int) -> tuple[array[int], int]:
    """The rows of consecutive Sent records, and the size of their payloads; no rows if the records are not alike."""
    start, stop = first & 0xFFFF, (last & 0xFFFF) + 1
    if stop - start != count:
        return array("Q"), 0
    run = words[start << 3 : stop << 3]
    heads = run[0::8]
    if heads[0] & 0xFF != Type.SENT or heads.count(heads[0]) != count:
        return array("Q"), 0
    return run, sum(halves_of(run[6::8])[1::2])


class RetainedReader:
    """Reads retained history of one shard. It keeps a few frames, because a page often ends within a frame."""

    def __init__(self, render: Render = in_envelope) -> None:
        """`render` makes the body of a copy of a published message, see envelope.py."""
        self._render = render
        self._frames: dict[int, tuple[Frame, array[int]]] = {}
        self._bytes = 0

    async def read(
        self,
        host: ShardHost,
        queue: int,
        after_position: int,
        limit_messages: int,
        limit_bytes: int = BYTES_MAX,
        senders: bool = True,
    ) -> RetainedPage:
        """The messages after a position, up to a number and a size, but at least one if there is one. `senders`:
        whether their senders are read too.

        Raises QueueDoesNotExist, NotRetained, and LogError if a message cannot be read.
        """
        if not host.serving:
            raise Unavailable(host.why)
        shard, log = host.shard, host.log
        retained = shard.retained_of(queue, host.now_ms())
        start = retained.index_after(max(after_position, (log.first << 16) - 1))
        committed = retained.index_after((log.next << 16) - 1)
        positions = retained.positions(start, min(limit_messages, LIMIT_MAX, committed - start))
        page = RetainedPage(shard.number, shard.numbers_from(queue), first=retained.first if len(retained) else 0)
        if not positions:
            return page
        rows, payloads = await self._read(host, queue, positions, limit_bytes, senders)
        count = len(payloads.bodies)
        heads = rows[0::8]
        page.positions, page.sequences, page.times_ms = positions[:count], rows[1::8], rows[2::8]
        if heads.count(heads[0]) == count:
            page.priorities = [heads[0] >> 16 & 0xFF] * count
        else:
            page.priorities = [head >> 16 & 0xFF for head in heads]
        if any(head & 0xFF == Type.ARRIVED for head in {*heads}):
            page.sents_ms = [
                w3 if head & 0xFF == Type.ARRIVED else time
                for head, time, w3 in zip(heads, rows[2::8], rows[3::8], strict=True)
            ]
        page.bodies, page.contents, page.digests, page.senders, page.groups = payloads[:5]
        page.dedup_ids, page.traces, page.lineages, page.attributes = payloads[5:]
        page.left = committed - start - count
        return page

    async def _read(
        self, host: ShardHost, queue: int, positions: array[int], limit_bytes: int, senders: bool
    ) -> tuple[array[int], Payloads]:
        """The rows and payloads of the messages at these positions, as many as fit."""
        rows, extents = array("Q"), array("Q")
        sections: list[bytes] = []
        moved: list[int] = []  # places of messages whose payload is in an older record
        room, turn = limit_bytes, TURN_BYTES
        at = 0
        while at < len(positions) and room > 0:
            number = positions[at] >> 16
            frame, words = await self._frame(host, number)
            stop = bisect_left(positions, (number + 1) << 16, at)
            run, size = _run_of_sends(words, positions[at], positions[stop - 1], stop - at)
            if run and size <= room:  # most frames: nothing but messages of this queue
                rows += run
                extents += run[6::8]
                sections += [frame.variable] * (stop - at)
                room -= size
                at = stop
            while at < stop:
                row = positions[at] & 0xFFFF
                own = words[row << 3 : row + 1 << 3]
                w6, flags = own[6], own[0] >> 8 & 0xFF
                if own[0] & 0xFF == Type.ARRIVED:
                    if flags & ArrivedFlag.OVERLAY:
                        moved.append(at)
                    else:
                        w6 = skip(w6, arrived_prefix(flags))
                room -= w6 >> 32
                if room < 0 and at:
                    break
                rows += own
                extents.append(w6)
                sections.append(frame.variable)
                at += 1
            turn -= frame.size
            if turn < 0:
                turn = TURN_BYTES
                await asyncio.sleep(0)  # let client requests run in between
        payloads = None if moved else read_payloads(sections, extents, senders)
        if payloads is None:  # some were moved, or are copies of published messages in an envelope
            payloads = await self._read_each(host, queue, positions, rows, sections, extents, set(moved))
        return rows, payloads

    async def _read_each(
        self,
        host: ShardHost,
        queue: int,
        positions: array[int],
        rows: array[int],
        sections: list[bytes],
        extents: array[int],
        moved: set[int],
    ) -> Payloads:
        payloads = []
        for at, (section, extent) in enumerate(zip(sections, extents, strict=True)):
            if at not in moved:
                if (extent & 0xFFFFFFFF) + (extent >> 32) > len(section):
                    raise LogError(f"A retained message of shard {host.shard.number} is not complete in its frame.")
                payload: Payload | None = decode(part_of(section, extent))
            else:
                payload = await payload_at(host, positions[at], rows[at * 8 + 1])
            if payload is None:
                raise LogError(
                    f"The body of message {message_id(host.shard.number, rows[at * 8 + 1])} is no longer in the log. "
                    f"Seek past position {host.shard.number}:{positions[at]}."
                )
            payloads.append(self._render(queue, payload) if payload.envelope else payload)
        return columns_of(payloads)

    async def _frame(self, host: ShardHost, number: int) -> tuple[Frame, array[int]]:
        known = self._frames.get(number)
        if known is not None:
            return known
        log = host.log
        if log.is_cold(number):
            await asyncio.get_running_loop().run_in_executor(None, log.warm, [number])
            if not host.serving:
                raise Unavailable(host.why)
        frame = log.frame(number)
        found = frame, frame.words()
        size = frame.size + len(frame.rows)
        while self._frames and self._bytes + size > CACHED_BYTES_MAX:
            old, _ = self._frames.pop(next(iter(self._frames)))
            self._bytes -= old.size + len(old.rows)
        if size <= CACHED_BYTES_MAX:
            self._frames[number] = found
            self._bytes += size
        return found

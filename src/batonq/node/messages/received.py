"""Turns leases into messages: reads the leased messages from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from batonq.core.commands import Failure, Lease, Leases
from batonq.core.ids import message_id, message_ids
from batonq.core.payload import AS_IS, IN_STORE, NO_DIGEST, REFERS, STORED, Lineage, Payload, Payloads, columns_of
from batonq.core.records import PAYLOADS_VERSION
from batonq.core.shard.machine import Shard
from batonq.errors import LogError, MessageGone
from batonq.log.interface import Log
from batonq.node.alarms.book import AlarmBook
from batonq.node.messages.envelope import render
from batonq.node.messages.log_reader import read_message, read_run
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.waiters import NO_LEASES

ANSWER_BYTES_MAX = 12 * 1024 * 1024  # of the messages of one receive, unless a single message is larger
FEW_LEASES = 10  # this many fit, whatever their size
CONTENT_BITS = 0xFF & ~(NO_DIGEST | AS_IS | REFERS)  # of a body that is shown
_new = tuple.__new__  # what a named tuple's own constructor calls, without an extra Python frame


class Delivery(NamedTuple):
    """A message delivered to its holder, with the receipt for the lease."""

    message_id: str
    receipt: str
    body: bytes
    body_md5: bytes  # empty: not computed yet
    attributes: bytes  # see core/payload.py
    sender: str
    group: str
    dedup_id: str
    trace: str
    sequence: int  # the message's number in the queue, see Spread.numbers_from
    sent_ms: int
    first_received_ms: int
    receive_count: int
    deadline_ms: int
    priority: int
    lineage: Lineage | None
    failure: Failure | None = None  # of an earlier attempt in this queue
    content: int = 0  # type of the body, see core/payload.py


def nothing_to_give_back() -> None:
    """For a receive that got nothing, or whose client asks for the same leases again."""


@dataclass(slots=True)
class Received:
    """The outcome of a Receive: messages as columns. A column that no message uses is empty. The broker adds the
    receipts and `give_back`.
    """

    shard: int
    leases: Leases = field(default_factory=lambda: NO_LEASES)
    bodies: Sequence[bytes] = ()
    contents: Sequence[int] = ()  # type of each body, with flags, see payload.py
    digests: Sequence[bytes] = ()
    senders: Sequence[str] = ()  # only if the command asks for whole messages
    groups: Sequence[str] = ()
    dedup_ids: Sequence[str] = ()
    traces: Sequence[str] = ()
    lineages: Sequence[bytes] = ()
    attributes: Sequence[bytes] = ()
    failures: Mapping[int, Failure] = field(default_factory=dict)  # of earlier attempts, by the message's slot
    numbers_from: int = 0  # added to a sequence to number a message in its queue, see Spread
    stored: bool = False  # a body is in the payload store, and `bodies` has a pointer to it
    receipts: Sequence[str] = ()
    rows: Sequence[Delivery] = ()  # for several shards: replaces the columns
    give_back: Callable[[], None] = nothing_to_give_back  # makes undelivered messages visible again

    def __len__(self) -> int:
        return len(self.bodies) or len(self.rows)

    @property
    def is_bare(self) -> bool:
        """Whether the messages have only bodies, whatever happened to them before."""
        return not (self.attributes or self.groups or self.dedup_ids or self.traces or self.lineages or self.rows)

    def message_ids(self) -> list[str]:
        """The id of each message: its first one, if it was moved."""
        ids = message_ids(self.shard, self.leases.sequences)
        if not self.lineages:
            return ids
        return [_first_id(lineage) or own for lineage, own in zip(self.lineages, ids, strict=True)]

    def deliveries(self) -> Sequence[Delivery]:
        """The messages one by one."""
        if self.rows or not self.bodies:
            return self.rows
        leases, numbers_from = self.leases, self.numbers_from
        contents, digests = self.contents, self.digests
        if max(contents) & NO_DIGEST:
            digests = [b"" if content & NO_DIGEST else md5 for content, md5 in zip(contents, digests, strict=True)]
        columns = zip(
            self.message_ids(),
            self.receipts or repeat(""),
            self.bodies,
            digests,
            self.attributes or repeat(b""),
            self.senders or repeat(""),
            self.groups or repeat(""),
            self.dedup_ids or repeat(""),
            self.traces or repeat(""),
            [numbers_from + sequence for sequence in leases.sequences],
            leases.sents_ms,
            leases.first_receives_ms(),
            leases.counts or repeat(1),
            repeat(leases.deadline_ms),
            leases.priorities or repeat(leases.priority),
            [Lineage.decode(lineage) if lineage else None for lineage in self.lineages] or repeat(None),
            map(self.failures.get, leases.slots) if self.failures else repeat(None),
            [content & CONTENT_BITS for content in contents],
        )
        return [_new(Delivery, row) for row in columns]


def _first_id(lineage: bytes) -> str:
    return Lineage.decode(lineage).message_id if lineage else ""


Render = Callable[[int, Payload], Payload]  # the payload of a copy of a published message, for a queue by number


def in_envelope(queue: int, payload: Payload) -> Payload:
    """A copy of a published message in SNS's envelope, if nothing is known about its subscription."""
    del queue
    return render(payload, "", "")


class Deliveries:
    """Reads leased messages, for all shards that a node serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, alarms: AlarmBook, render: Render = in_envelope) -> None:
        self._loop = loop
        self._alarms = alarms
        self.render = render

    async def warm(self, host: ShardHost, leases: Leases) -> None:
        """Read bodies that are not in memory on a thread, so that the loop does not wait for the disk."""
        cold = _cold(host, leases.positions)
        if cold:
            await self._loop.run_in_executor(None, host.log.warm, cold)

    @staticmethod
    def is_cold(host: ShardHost, leases: Leases) -> bool:
        """Whether reading these messages would have to wait for the disk. If so, call `warm` first."""
        return bool(_cold(host, leases.positions))

    def read(self, queue: int, host: ShardHost, leases: Leases, whole: bool, room: int = ANSWER_BYTES_MAX) -> Received:
        """The leased messages. Those that do not fit into one answer are given back. Check `is_cold` first."""
        if len(leases.slots) > FEW_LEASES or room < ANSWER_BYTES_MAX:
            leases = _fitting(queue, host, leases, room)
        payloads = None if leases.overlays or not leases.slots else _read_shared(host.log, leases, whole)
        if payloads is None:
            leases, payloads = self._read_each(queue, host, leases)
        shard = host.shard
        stored = False
        if shard.format >= PAYLOADS_VERSION and any(map(IN_STORE.__and__, payloads.contents)):
            stored = any(map(STORED.__and__, payloads.contents))
            payloads = payloads._replace(contents=[content & ~REFERS for content in payloads.contents])
        return Received(shard.number, leases, *payloads, shard.failures_of(leases), shard.numbers_from(queue), stored)

    def _read_each(self, queue: int, host: ShardHost, leases: Leases) -> tuple[Leases, Payloads]:
        """Read the messages one by one. Returns the leases of those that could be read, and their payloads."""
        places: list[int] = []
        payloads: list[Payload] = []
        for at, lease in enumerate(leases):
            try:
                payload = read_message(host.shard, host.log, lease)
                payloads.append(self.render(queue, payload) if payload.envelope else payload)
                places.append(at)
            except MessageGone:
                continue  # purged before the reply was sent
            except LogError as problem:
                self._unreadable(queue, host.shard, lease, problem)
        return leases.pick(places), columns_of(payloads)

    def _unreadable(self, queue: int, shard: Shard, lease: Lease, problem: LogError) -> None:
        """Report a body that cannot be read. Its message stays where it is, and the others are delivered."""
        name = shard.queue_name(queue)
        text = f"Message {message_id(shard.number, lease.sequence)} of {name} cannot be read: {problem.message}"
        self._alarms.put("message-unreadable", text, queue=name)


def _read_shared(log: Log, leases: Leases, whole: bool) -> Payloads | None:
    """The payloads, read at once for all requests that were served together; None: they must be read one by one."""

    def read(run: Leases) -> Payloads | None:
        try:
            return read_run(log, run, whole)
        except LogError:
            return None

    payloads: Payloads | None = leases.shared("whole payloads" if whole else "payloads", read)
    if leases.whole is None:
        return payloads
    if payloads is None:  # because of one message, which another request may have
        return read(leases)
    return payloads.part(leases.start, leases.start + len(leases.slots))


def _fitting(queue: int, host: ShardHost, leases: Leases, room: int) -> Leases:
    """The leases that fit into `room` bytes. The others are given back, because they were never handed out."""
    if sum([extent >> 32 for extent in leases.extents]) <= room:
        return leases
    first = room == ANSWER_BYTES_MAX  # a single message is delivered, whatever its size
    for at, extent in enumerate(leases.extents):
        room -= extent >> 32
        if room < 0 and (at or not first):
            host.give_back(queue, leases.part(at, len(leases)).claims())
            return leases.part(0, at).apart()  # what does not fit must not be read for a run that these are part of
    return leases


def _cold(host: ShardHost, positions: Sequence[int]) -> list[int]:
    """The frames among these positions that are not in memory."""
    is_cold = host.log.is_cold
    return [number for number in {position >> 16 for position in positions} if is_cold(number)]

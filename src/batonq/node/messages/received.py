"""Turns leases into messages: reads the leased messages from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batonq.core.commands import Lease, Leases
from batonq.core.ids import message_id, message_ids
from batonq.core.payload import AS_IS, NO_DIGEST, Lineage, Payload
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.messages import Failure
from batonq.errors import LogError, MessageGone
from batonq.node.events import AlarmBoard
from batonq.node.messages.log_reader import read_message, read_run
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.waiters import NO_LEASES

ANSWER_BYTES_MAX = 12 * 1024 * 1024  # of the messages of one receive, unless a single message is larger
FEW_LEASES = 10  # this many fit, whatever their size
CONTENT_BITS = 0xFF & ~(NO_DIGEST | AS_IS)


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
    """The outcome of a Receive: messages as columns. The broker adds the receipts and `give_back`."""

    shard: int
    leases: Leases = field(default_factory=lambda: NO_LEASES)
    bodies: Sequence[bytes] = ()
    contents: Sequence[int] = ()  # for messages that have only bodies: type of each body, see payload.py
    digests: Sequence[bytes] = ()
    payloads: Sequence[Payload] = ()  # all parts of each message; empty: the messages have only bodies
    failures: Mapping[int, Failure] = field(default_factory=dict)  # of earlier attempts, by the message's slot
    numbers_from: int = 0  # added to a sequence to number a message in its queue, see Spread
    receipts: Sequence[str] = ()
    rows: Sequence[Delivery] = ()  # for several shards: replaces the columns
    give_back: Callable[[], None] = nothing_to_give_back  # makes undelivered messages visible again

    def __len__(self) -> int:
        return len(self.bodies) or len(self.rows)

    @property
    def is_bare(self) -> bool:
        """Whether the messages have only bodies, whatever happened to them before."""
        return not self.payloads and not self.rows

    def message_ids(self) -> list[str]:
        return message_ids(self.shard, self.leases.sequences)

    def deliveries(self) -> Sequence[Delivery]:
        """The messages one by one."""
        if self.rows or not self.bodies:
            return self.rows
        payloads = self.payloads or map(_bare_payload, self.contents, self.digests, self.bodies)
        receipts = self.receipts or [""] * len(self.bodies)
        return [
            self._delivery(lease, payload, receipt)
            for lease, payload, receipt in zip(self.leases, payloads, receipts, strict=True)
        ]

    def _delivery(self, lease: Lease, payload: Payload, receipt: str) -> Delivery:
        lineage = Lineage.decode(payload.lineage) if payload.lineage else None
        own_id = lineage.message_id if lineage is not None else ""
        return Delivery(
            own_id or message_id(self.shard, lease.sequence),
            receipt,
            payload.body,
            payload.body_md5,
            payload.attributes,
            payload.sender,
            payload.group,
            payload.dedup_id,
            payload.trace,
            self.numbers_from + lease.sequence,
            lease.sent_ms,
            lease.first_received_ms,
            lease.receive_count,
            lease.deadline_ms,
            lease.priority,
            lineage,
            self.failures.get(lease.slot),
            payload.content,
        )


def _bare_payload(content: int, digest: bytes, body: bytes) -> Payload:
    return Payload(0, "", "", "", "", b"", b"", body, b"" if content & NO_DIGEST else digest, content & CONTENT_BITS)


class Deliveries:
    """Reads leased messages, for all shards that a node serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, alarms: AlarmBoard) -> None:
        self._loop = loop
        self._alarms = alarms

    async def warm(self, host: ShardHost, leases: Leases) -> None:
        """Read bodies that are not in memory on a thread, so that the loop does not wait for the disk."""
        cold = _cold(host, leases.positions)
        if cold:
            await self._loop.run_in_executor(None, host.log.warm, cold)

    @staticmethod
    def is_cold(host: ShardHost, leases: Leases) -> bool:
        """Whether reading these messages would have to wait for the disk. If so, call `warm` first."""
        return bool(leases.shared("cold", lambda some: _cold(host, some.positions)))

    def read(self, queue: int, host: ShardHost, leases: Leases, whole: bool, room: int = ANSWER_BYTES_MAX) -> Received:
        """The leased messages. Those that do not fit into one answer are given back. Check `is_cold` first."""
        if len(leases) > FEW_LEASES or room < ANSWER_BYTES_MAX:
            leases = _fitting(queue, host, leases, room)
        shard = host.shard
        received = Received(shard.number, leases, numbers_from=shard.numbers_from(queue))
        received.failures = shard.failures_of(leases)
        if not whole and not leases.overlays and leases:
            found = _read_bare(host, leases)
            if found is not None:
                received.contents, received.digests, received.bodies = found
                return received
        places: list[int] = []
        payloads: list[Payload] = []
        for at, lease in enumerate(leases):
            try:
                payloads.append(read_message(shard, host.log, lease))
                places.append(at)
            except MessageGone:
                continue  # purged before the reply was sent
            except LogError as problem:
                self._unreadable(queue, shard, lease, problem)
        received.leases = leases.pick(places)
        received.payloads = payloads
        received.bodies = [payload.body for payload in payloads]
        return received

    def _unreadable(self, queue: int, shard: Shard, lease: Lease, problem: LogError) -> None:
        """Report a body that cannot be read. Its message stays where it is, and the others are delivered."""
        name = shard.queue_name(queue)
        text = f"Message {message_id(shard.number, lease.sequence)} of {name} cannot be read: {problem.message}"
        self._alarms.put(f"unreadable:{queue}", text, severity="critical", queue=name)


def _read_bare(host: ShardHost, leases: Leases) -> tuple[list[int], list[bytes], list[bytes]] | None:
    """Contents, MD5s and bodies, if the messages have only bodies; None: each must be read on its own."""

    def read(some: Leases) -> tuple[list[int], list[bytes], list[bytes]] | None:
        try:
            return read_run(host.log, some.positions, some.extents)
        except LogError:
            return None

    found: tuple[list[int], list[bytes], list[bytes]] | None = leases.shared("bare", read)
    if leases.whole is None:
        return found
    if found is None:  # some message has more than a body
        return read(leases)
    start, end = leases.start, leases.start + len(leases)
    contents, digests, bodies = found
    return contents[start:end], digests[start:end], bodies[start:end]


def _fitting(queue: int, host: ShardHost, leases: Leases, room: int) -> Leases:
    """The leases that fit into `room` bytes. The others are given back, because they were never handed out."""
    first = room == ANSWER_BYTES_MAX  # a single message is delivered, whatever its size
    for at, extent in enumerate(leases.extents):
        room -= extent >> 32
        if room < 0 and (at or not first):
            host.give_back(queue, leases.part(at, len(leases)).claims())
            return leases.part(0, at)
    return leases


def _cold(host: ShardHost, positions: Sequence[int]) -> list[int]:
    """The frames among these positions that are not in memory."""
    is_cold = host.log.is_cold
    return [number for number in {position >> 16 for position in positions} if is_cold(number)]

"""Leases into deliveries: the message read from the log, with the receipt for its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.core.commands import FirstLeases, Lease
from batonq.core.ids import message_id, message_ids
from batonq.core.payload import AS_IS, Lineage
from batonq.core.shard.machine import Shard
from batonq.core.shard.state import Failure
from batonq.errors import LogError, MessageGone
from batonq.node.events import AlarmBoard
from batonq.node.host import ShardHost
from batonq.node.reading import read_message, read_run
from batonq.node.receipts import Receipts

ANSWER_BYTES_MAX = 12 * 1024 * 1024  # of the messages of one receive, unless a single one is larger
FEW_LEASES = 10  # so many fit, however large they are

Plain = tuple[str, str, bytes, bytes]  # message id, receipt, MD5 and body of a message that is nothing else


class QueueRef(Protocol):
    """What has to be known of a queue to hand out its messages."""

    @property
    def account(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...


class Delivery(NamedTuple):
    """A message in the hands of its holder, with the receipt for the lease."""

    message_id: str
    receipt: str
    body: bytes
    body_md5: bytes  # empty: nobody has asked for it yet
    attributes: bytes  # see core/payload.py
    sender: str
    group: str
    dedup_id: str
    trace: str
    sequence: int  # its number in the queue, see Spread.numbers_from
    sent_ms: int
    first_received_ms: int
    receive_count: int
    deadline_ms: int
    priority: int
    lineage: Lineage | None
    failure: Failure | None = None  # of an earlier attempt in this queue
    content: int = 0  # what the body is, see core/payload.py


class Deliveries:
    """Makes them, for all shards that a node serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receipts: Receipts, alarms: AlarmBoard) -> None:
        self._loop = loop
        self._receipts = receipts
        self._alarms = alarms

    async def warm(self, host: ShardHost, positions: Sequence[int]) -> None:
        """Have bodies that lie on a cold part of the disk read by a thread: the loop must not wait for them."""
        cold = _cold(host, positions)
        if cold:
            await self._loop.run_in_executor(None, host.log.warm, cold)

    @staticmethod
    def is_cold(host: ShardHost, leases: FirstLeases) -> bool:
        """Whether reading these messages would have to wait for the disk: then `warm` first."""
        return bool(_cold(host, leases.positions))

    def of(self, queue: QueueRef, host: ShardHost, leases: list[Lease], room: int = ANSWER_BYTES_MAX) -> list[Delivery]:
        """The leased messages with their receipts; those that do not fit into one answer are given back."""
        if len(leases) > FEW_LEASES or room < ANSWER_BYTES_MAX:
            leases = _fitting(queue, host, leases, room)
        shard, log = host.shard, host.log
        number = shard.number
        receipts = self._receipts.seal_many(queue.account, queue.number, number, leases)
        numbers_from = shard.numbers_from(queue.number)
        deliveries: list[Delivery] = []
        for lease, receipt in zip(leases, receipts, strict=True):
            try:
                payload = read_message(shard, log, lease)
            except MessageGone:
                continue  # purged before the reply could leave
            except LogError as problem:
                self._unreadable(queue, number, lease, problem)
                continue
            lineage = Lineage.decode(payload.lineage) if payload.lineage else None
            own_id = lineage.message_id if lineage is not None else ""
            deliveries.append(
                Delivery(
                    own_id or message_id(number, lease.sequence),
                    receipt,
                    payload.body,
                    payload.body_md5,
                    payload.attributes,
                    payload.sender,
                    payload.group,
                    payload.dedup_id,
                    payload.trace,
                    numbers_from + lease.sequence,
                    lease.sent_ms,
                    lease.first_received_ms,
                    lease.receive_count,
                    lease.deadline_ms,
                    lease.priority,
                    lineage,
                    _failure(shard, lease) if shard.failures else None,
                    payload.content,
                )
            )
        return deliveries

    def _unreadable(self, queue: QueueRef, shard: int, lease: Lease, problem: LogError) -> None:
        """A body that cannot be read keeps its message where it is, and the others go out."""
        text = f"Message {message_id(shard, lease.sequence)} of {queue.name} cannot be read: {problem.message}"
        self._alarms.put(f"unreadable:{queue.number}", text, severity="critical", queue=queue.name)

    # --- runs of first leases of plain messages, as columns

    def plain(self, queue: QueueRef, host: ShardHost, leases: FirstLeases) -> list[Plain] | None:
        """The leased messages, if all of them are nothing but a text; None: they have to be expanded (`of`)."""
        found = self.run(queue, host, leases)
        if found is None:
            return None
        receipts, contents, digests, bodies = found
        if any(content & ~AS_IS for content in contents):
            return None
        return [*zip(message_ids(host.shard.number, leases.sequences), receipts, digests, bodies, strict=True)]

    def run(
        self, queue: QueueRef, host: ShardHost, leases: FirstLeases
    ) -> tuple[list[str], list[int], list[bytes], list[bytes]] | None:
        """Receipts, and the rest as `read` has it."""
        found = self.read(host, leases)
        if found is None:
            return None
        seal = self._receipts.seal_first
        return seal(queue.account, queue.number, host.shard.number, leases.slots, leases.sequences), *found

    @staticmethod
    def read(host: ShardHost, leases: FirstLeases) -> tuple[list[int], list[bytes], list[bytes]] | None:
        """Contents, MD5s and bodies of the leased messages, if all of them are nothing else.

        None: they have to be expanded. Ask `is_cold` before. A content may have `payload.NO_DIGEST` and
        `payload.AS_IS` in it.
        """
        overlays = host.shard.overlays
        if host.is_late(leases) or (overlays and not overlays.keys().isdisjoint(leases.slots)):
            return None
        extents = leases.extents
        if len(extents) > FEW_LEASES and sum([extent >> 32 for extent in extents]) > ANSWER_BYTES_MAX:
            return None
        try:
            return read_run(host.log, leases.positions, leases.extents)
        except LogError:
            return None

    async def front(self, queue: QueueRef, host: ShardHost, front: FirstLeases) -> list[Delivery]:
        """The leased messages, whatever they are; their leases extended if they are late. Raises BatonError."""
        leases = host.shard.expand(front)
        if host.is_late(front):
            leases = await host.extend_late(queue.number, leases, front.leased_ms)
        await self.warm(host, front.positions)
        return self.of(queue, host, leases)


def _fitting(queue: QueueRef, host: ShardHost, leases: list[Lease], room: int) -> list[Lease]:
    """As many of the leases as fit into `room` bytes; the others were never handed out, and are the next one's."""
    first = room == ANSWER_BYTES_MAX  # a single message goes out, whatever its size
    for at, lease in enumerate(leases):
        room -= lease.length
        if room < 0 and (at or not first):
            host.give_back(queue.number, leases[at:])
            return leases[:at]
    return leases


def _cold(host: ShardHost, positions: Sequence[int]) -> list[int]:
    """The frames among these places that are not in memory."""
    is_cold = host.log.is_cold
    return [number for number in {position >> 16 for position in positions} if is_cold(number)]


def _failure(shard: Shard, lease: Lease) -> Failure | None:
    return shard.failures.get(lease.slot) if shard.columns.sequence[lease.slot] == lease.sequence else None

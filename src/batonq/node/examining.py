"""Looking at a queue's messages for a job: which are meant, and what they become.

This runs beside the serving of requests, so it goes in small steps and lets the others in between; what is there may
change meanwhile, and the shard checks again what is handed to it. Only committed messages are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from batonq.core.commands import Chosen, Job
from batonq.core.ids import message_id
from batonq.core.payload import Lineage, Payload, encode_payload
from batonq.core.shard.columns import NIL
from batonq.core.shard.jobs import movable_states
from batonq.core.shard.machine import Shard
from batonq.errors import LogError, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log
from batonq.node.picking import EditImpossible, decode_pick
from batonq.node.reading import place_of, read_place

LOOKED_AT_MAX = 1_000  # in one go
CHOSEN_MAX = 100  # for the shard to move in one go: some milliseconds
CHOSEN_BYTES_MAX = 4 << 20
TURN_MESSAGES = 50  # looked at before others have their turn
TURN_BYTES = 256 << 10
SAMPLE_MAX = 10


class Served(Protocol):
    """A shard's host, as far as it is needed here."""

    shard: Shard
    log: Log
    serving: bool
    why: str
    point: Callable[[], asyncio.Future[None] | None]

    def now_ms(self) -> int: ...


class Sample(NamedTuple):
    """A message that a dry run found, as it would be moved."""

    message_id: str
    sequence: int
    body: bytes
    content: int
    attributes: bytes
    error_class: str
    reason: str
    sent_ms: int


class Examined(NamedTuple):
    new: int  # messages that the job has not looked at before
    through: int  # up to this sequence
    chosen: list[Chosen]
    sample: list[Sample]


async def examine(host: Served, job: Job, most: int, sample: int = 0) -> Examined:
    """Look at some messages behind the job's place, and choose at most so many; the first of them are the sample.

    Raises EditImpossible when one of them cannot be changed as the job wants it, and Unavailable.
    """
    shard = host.shard
    columns = shard.columns
    pick = decode_pick(job.selection)
    movable = movable_states(job)
    chosen: list[Chosen] = []
    samples: list[Sample] = []
    count = looked_at = chosen_bytes = turn_bytes = turn = 0
    through = job.cursor
    await _committed(host)
    slot = await _behind(host, job.source, through)
    while looked_at < LOOKED_AT_MAX and len(chosen) < most and chosen_bytes < CHOSEN_BYTES_MAX:
        queue = shard.queues.get(job.source)
        if queue is None or queue.closed:
            raise QueueDoesNotExist
        nothing_dead = job.only_dead and not queue.dead
        if slot == NIL or columns.sequence[slot] > job.through_sequence or nothing_dead:
            through = job.through_sequence
            break
        sequence = columns.sequence[slot]
        count += sequence > job.seen
        if columns.state[slot] in movable:
            if job.key and shard.edited.get(slot) == job.key:
                chosen.append(Chosen(slot, sequence, None, count))
            else:
                turn_bytes += columns.extent[slot] >> 32
                payload = await _read(host, slot, sequence)
                failure = shard.failures.get(slot)
                age_ms = max(0, host.now_ms() - columns.sent[slot])
                if payload is not None and pick.matches(payload, failure, age_ms):
                    changed = _changed(shard, pick.changed, payload, sequence) if pick.edits else payload
                    encoded = encode_payload(changed) if pick.edits else None
                    chosen_bytes += len(encoded) if encoded else 0
                    chosen.append(Chosen(slot, sequence, encoded, count))
                    if len(samples) < sample:
                        samples.append(_sample(shard, slot, sequence, changed))
        through = sequence
        looked_at += 1
        turn += 1
        if turn >= TURN_MESSAGES or turn_bytes >= TURN_BYTES:
            turn = turn_bytes = 0
            await asyncio.sleep(0)
        slot = await _next(host, job.source, slot, sequence)
    return Examined(count, through, chosen, samples)


def _changed(shard: Shard, change: Callable[[Payload], Payload], payload: Payload, sequence: int) -> Payload:
    try:
        return change(payload)
    except EditImpossible as problem:
        raise EditImpossible(
            f"Message {message_id(shard.number, sequence)} cannot be changed like this: {problem}."
        ) from None


def _sample(shard: Shard, slot: int, sequence: int, payload: Payload) -> Sample:
    past = Lineage.decode(payload.lineage)
    failure = shard.failures.get(slot)
    return Sample(
        past.message_id or message_id(shard.number, sequence),
        sequence,
        payload.body,
        payload.content,
        payload.attributes,
        failure.error_class if failure is not None and failure.error_class else past.error_class,
        failure.reason if failure is not None and failure.reason else past.reason,
        shard.columns.sent[slot],
    )


async def _committed(host: Served) -> None:
    point = host.point()
    if point is not None:
        await point
    if not host.serving:
        raise Unavailable(host.why)


async def _read(host: Served, slot: int, sequence: int) -> Payload | None:
    """A message's payload; None when it cannot be read, or is not there any more."""
    columns = host.shard.columns
    number = columns.position[slot] >> 16
    if host.log.is_cold(number):  # the disk may be slow: others need not wait for it
        await asyncio.get_running_loop().run_in_executor(None, host.log.warm, [number])
        if columns.sequence[slot] != sequence or not columns.state[slot]:
            return None
    try:
        return read_place(host.log, place_of(host.shard, slot))
    except LogError:
        pass
    # It may have been copied forward into a frame that is not committed yet.
    await _committed(host)
    if columns.sequence[slot] != sequence or not columns.state[slot]:
        return None
    try:
        return read_place(host.log, place_of(host.shard, slot))
    except LogError:
        return None


async def _next(host: Served, number: int, slot: int, sequence: int) -> int:
    """The message behind one that was looked at; others may have had their turn since."""
    shard = host.shard
    if not host.serving:
        raise Unavailable(host.why)
    queue = shard.queues.get(number)
    if queue is None or queue.closed:
        raise QueueDoesNotExist
    if shard.stands(queue, slot, sequence):
        return shard.columns.queue_next[slot]
    return await _behind(host, number, sequence)


async def _behind(host: Served, number: int, sequence: int) -> int:
    """The first message after a sequence; NIL when there is none."""
    shard = host.shard
    slot, found = shard.seek(number, sequence)
    while not found:
        at = shard.columns.sequence[slot]
        await asyncio.sleep(0)
        if not host.serving:
            raise Unavailable(host.why)
        slot, found = shard.seek(number, sequence, slot, at)
    return slot

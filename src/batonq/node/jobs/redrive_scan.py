"""Examines a queue's messages for a job: which ones match, and what they become.

The scan runs beside the serving of requests, so it works in small steps and lets other requests run in between. The
queue may change meanwhile, so the shard checks the selected messages again. Only committed messages are read.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from batonq.core.commands import Chosen, Job
from batonq.core.ids import message_id
from batonq.core.payload import REFERS, STORED, Content, Lineage, Payload, encode_payload
from batonq.core.shard.commands.jobs import movable_states
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import InvalidInput, LogError, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log
from batonq.node.jobs.redrive_filter import EditImpossible, decode_pick
from batonq.node.messages.log_reader import RecentFrames, read_place

LOOKED_AT_MAX = 1_000  # per call
CHOSEN_MAX = 100  # per call, for the shard to move: some milliseconds of work
CHOSEN_BYTES_MAX = 4 << 20
TURN_MESSAGES = 50  # examined before other requests get a turn
TURN_BYTES = 64 << 10  # the shape of a larger body takes a turn of its own
SAMPLE_MAX = 10


class Served(Protocol):
    """The parts of a shard's host that a scan needs."""

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
    current_id: str


class Examined(NamedTuple):
    new: int  # messages that the job has not looked at before
    through: int  # up to this sequence
    chosen: list[Chosen]
    sample: list[Sample]
    not_found: int = 0  # new messages given by id that do not exist


async def examine(host: Served, job: Job, most: int, sample: int = 0) -> Examined:
    """Look at messages behind the job's cursor, and choose at most `most`. The first `sample` ones are the sample.

    Raises EditImpossible when a message cannot be changed as the job requires, and Unavailable.
    """
    look = _Look(host, job, most, sample)
    await _committed(host)
    if look.pick.sequences is not None:
        return await _examine_listed(look, look.pick.sequences)
    shard = host.shard
    slot = await _behind(host, job.source, look.through)
    while look.goes_on:
        queue = _queue(host, job.source)
        nothing_dead = job.only_dead and not queue.dead
        if slot == NIL or shard.sequence_at(slot) > job.through_sequence or nothing_dead:
            look.through = job.through_sequence
            break
        sequence = shard.sequence_at(slot)
        await look.at(slot, sequence)
        slot = await _next(host, job.source, slot, sequence)
    return look.result()


async def _examine_listed(look: _Look, sequences: array[int]) -> Examined:
    """Like `examine`, for messages given by id: goes from each listed message to the next, and skips those between."""
    host, job = look.host, look.job
    slot, before = NIL, 0
    for index in range(bisect_right(sequences, look.through), len(sequences)):
        if not look.goes_on:
            return look.result()
        sequence = sequences[index]
        slot = await _behind(host, job.source, sequence - 1, slot, before)
        before = host.shard.sequence_at(slot) if slot != NIL else 0
        if before == sequence:
            await look.at(slot, sequence)
        else:
            await look.nothing_at(sequence)
    look.through = job.through_sequence
    return look.result()


class _Look:
    """The messages that one call has looked at so far."""

    def __init__(self, host: Served, job: Job, most: int, sample: int) -> None:
        self.host, self.job, self.most, self.sample = host, job, most, sample
        self.pick = decode_pick(job.selection)
        self.through = job.cursor
        self.count = self.not_found = 0
        self._movable = movable_states(job)
        self._frames = RecentFrames(host.log)
        self._chosen: list[Chosen] = []
        self._samples: list[Sample] = []
        self._looked_at = self._chosen_bytes = self._turn_bytes = self._turn = 0

    @property
    def goes_on(self) -> bool:
        return (
            self._looked_at < LOOKED_AT_MAX and len(self._chosen) < self.most and self._chosen_bytes < CHOSEN_BYTES_MAX
        )

    def result(self) -> Examined:
        return Examined(self.count, self.through, self._chosen, self._samples, self.not_found)

    async def at(self, slot: int, sequence: int) -> None:
        self.count += sequence > self.job.seen
        shard = self.host.shard
        if shard.state_at(slot) in self._movable:
            if shard.was_edited_by(slot, self.job.key):
                self._choose(slot, sequence, None)
            elif self.pick.reads or self.pick.edits or len(self._samples) < self.sample:
                await self._read(slot, sequence)
            else:
                self._choose(slot, sequence, None)
        await self._looked(sequence)

    async def nothing_at(self, sequence: int) -> None:
        self.count += sequence > self.job.seen
        self.not_found += sequence > self.job.seen
        await self._looked(sequence)

    async def _read(self, slot: int, sequence: int) -> None:
        shard, pick = self.host.shard, self.pick
        self._turn_bytes += shard.place(slot).length
        payload = await _read(self.host, slot, sequence, self._frames)
        failure = shard.failure_of(slot)
        age_ms = max(0, self.host.now_ms() - shard.sent_at(slot))
        if payload is None or not pick.matches(payload, failure, age_ms):
            return
        changed = _changed(shard, pick.changed, payload, sequence) if pick.edits else payload
        self._choose(slot, sequence, encode_payload(changed) if pick.edits else None)
        if len(self._samples) < self.sample:
            self._samples.append(_sample(shard, slot, sequence, changed))

    def _choose(self, slot: int, sequence: int, encoded: bytes | None) -> None:
        self._chosen_bytes += len(encoded) if encoded else 0
        self._chosen.append(Chosen(slot, sequence, encoded, self.count, self.not_found))

    async def _looked(self, sequence: int) -> None:
        """Let other requests run from time to time."""
        self.through = sequence
        self._looked_at += 1
        self._turn += 1
        if self._turn >= TURN_MESSAGES or self._turn_bytes >= TURN_BYTES:
            self._turn = self._turn_bytes = 0
            await asyncio.sleep(0)


def _changed(shard: Shard, change: Callable[[Payload], Payload], payload: Payload, sequence: int) -> Payload:
    try:
        return change(payload)
    except EditImpossible as problem:
        raise EditImpossible(
            f"Message {message_id(shard.number, sequence)} cannot be changed like this: {problem}."
        ) from None


def _sample(shard: Shard, slot: int, sequence: int, payload: Payload) -> Sample:
    past = Lineage.decode(payload.lineage)
    failure = shard.failure_of(slot)
    current_id = message_id(shard.number, sequence)
    return Sample(
        past.message_id or current_id,
        sequence,
        payload.body,
        int(Content.TEXT) if payload.content & STORED else payload.content & ~REFERS,
        payload.attributes,
        failure.error_class if failure is not None and failure.error_class else past.error_class,
        failure.reason if failure is not None and failure.reason else past.reason,
        shard.sent_at(slot),
        current_id,
    )


async def _committed(host: Served) -> None:
    point = host.point()
    if point is not None:
        await point
    if not host.serving:
        raise Unavailable(host.why)


async def _read(host: Served, slot: int, sequence: int, frames: RecentFrames) -> Payload | None:
    """A message's payload; None when it cannot be read, or is not there any more."""
    shard = host.shard
    number = shard.place(slot).position >> 16
    if host.log.is_cold(number):  # the disk may be slow: others need not wait for it
        await asyncio.get_running_loop().run_in_executor(None, host.log.warm, [number])
        if not shard.has(slot, sequence):
            return None
    try:
        return read_place(host.log, shard.place(slot), frames)
    except LogError:
        pass
    # The message may have been carried forward into a frame that is not committed yet.
    await _committed(host)
    if not shard.has(slot, sequence):
        return None
    try:
        return read_place(host.log, shard.place(slot))
    except LogError:
        return None


async def _next(host: Served, number: int, slot: int, sequence: int) -> int:
    """The message after the given one. Other requests may have changed the queue since."""
    shard = host.shard
    if not host.serving:
        raise Unavailable(host.why)
    queue = _queue(host, number)
    if shard.stands(queue, slot, sequence):
        return shard.next_in_queue(slot)
    return await _behind(host, number, sequence)


def _queue(host: Served, number: int) -> QueueState:
    queue = host.shard.queues.get(number)
    if queue is None or queue.closed:
        raise QueueDoesNotExist
    return queue


async def _behind(host: Served, number: int, sequence: int, slot: int = NIL, at: int = 0) -> int:
    """The first message after a sequence; NIL when there is none. A known earlier message shortens the search."""
    shard = host.shard
    slot, found = shard.seek(number, sequence, slot, at)
    while not found:
        at = shard.sequence_at(slot)
        await asyncio.sleep(0)
        if not host.serving:
            raise Unavailable(host.why)
        slot, found = shard.seek(number, sequence, slot, at)
    return slot


async def examine_all(host: Served, job: Job) -> tuple[Job, list[Sample]]:
    """Examine all messages that a job would look at, in steps.

    Returns the job as it would end, and a sample of what it would move. Raises InvalidInput when its edit is
    impossible.
    """
    loop = asyncio.get_running_loop()
    state = host.shard.queue_state(job.source)
    job = replace(
        job,
        started_ms=host.now_ms(),
        through_sequence=host.shard.next_sequence - 1,
        to_move=job.listed or (state.dead if job.only_dead else state.messages),
    )
    most = job.max_messages or 1 << 60
    sample: list[Sample] = []
    while job.cursor < job.through_sequence and job.matched < most:
        began_s = loop.time()
        try:
            found = await examine(host, job, most - job.matched, SAMPLE_MAX - len(sample))
        except EditImpossible as problem:
            raise InvalidInput(str(problem)) from None
        await asyncio.sleep(loop.time() - began_s)  # half of the time is left to other requests
        sample += found.sample
        job = replace(
            job,
            cursor=found.through,
            seen=max(job.seen, found.through),
            examined=job.examined + found.new,
            matched=job.matched + len(found.chosen),
            not_found=job.not_found + found.not_found,
        )
    return replace(job, state="COMPLETED", ended_ms=host.now_ms()), sample

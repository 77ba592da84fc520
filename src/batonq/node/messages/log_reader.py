"""Reads messages from the log: payloads, and the lineages that overlay them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from batonq.core.commands import Arrival, Entry, Lease, Leases, MessageView, Place
from batonq.core.payload import (
    Lineage,
    Payload,
    Payloads,
    decode,
    encode_payload,
    merge_lineage,
    read_payloads,
    with_lineage,
)
from batonq.core.records import ROW_BYTES, Reason
from batonq.core.shard.machine import Shard
from batonq.core.shard.moves.transfers import NO_LINEAGE
from batonq.errors import LogGap, MessageGone
from batonq.log.frames import Frame
from batonq.log.interface import Log

RECENT_MAX = 4  # frames that a scan keeps
_W6 = 48  # offset of the seventh word in a row


class Frames(Protocol):
    """A log, or frames of it that were read before."""

    def frame(self, number: int) -> Frame: ...


class RecentFrames:
    """The last frames that were read, for a scan: neighbouring messages often have their records in one frame."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._frames: dict[int, Frame] = {}

    def frame(self, number: int) -> Frame:
        frame = self._frames.get(number)
        if frame is None:
            frame = self._log.frame(number)
            if len(self._frames) >= RECENT_MAX:
                del self._frames[next(iter(self._frames))]
            self._frames[number] = frame
        return frame


def record_variable(frames: Frames, position: int) -> bytes:
    """The variable part of the record at a position."""
    frame = frames.frame(position >> 16)
    at = (position & 0xFFFF) * ROW_BYTES + _W6
    extent = int.from_bytes(frame.rows[at : at + 8], "little")
    offset = extent & 0xFFFFFFFF
    return frame.variable[offset : offset + (extent >> 32)]


def lay_over(frames: Frames, payload: Payload, overlays: Sequence[int]) -> Payload:
    """The payload with the lineages of later moves merged into it, oldest first."""
    lineage = Lineage.decode(payload.lineage)
    for position in overlays:
        lineage = merge_lineage(lineage, Lineage.decode(record_variable(frames, position)))
    return with_lineage(payload, lineage)


def read_message(shard: Shard, log: Log, message: Lease | MessageView, frames: Frames | None = None) -> Payload:
    """The payload of a leased or peeked message. The message may have been carried forward since."""
    try:
        payload = decode(log.read_variable(message.position, message.offset, message.length))
        return lay_over(frames or log, payload, message.overlays) if message.overlays else payload
    except LogGap:
        if not shard.has(message.slot, message.sequence):
            raise MessageGone from None
        return read_place(log, shard.place(message.slot))


def read_run(log: Log, leases: Leases, senders: bool) -> Payloads | None:
    """The payloads of leased messages, without overlays; None: they must be read one by one."""
    positions = leases.positions
    number = positions[0] >> 16
    if min(positions) >> 16 == number == max(positions) >> 16:
        section = log.section(number)
        return None if section is None else read_payloads([section] * len(positions), leases.extents, senders)
    numbers = [position >> 16 for position in positions]
    sections = {number: log.section(number) for number in set(numbers)}
    if None in sections.values():
        return None
    return read_payloads([sections[number] for number in numbers], leases.extents, senders)  # type: ignore[misc]


def read_place(log: Log, place: Place, frames: Frames | None = None) -> Payload:
    payload = decode(log.read_variable(place.position, place.offset, place.length))
    return lay_over(frames or log, payload, place.overlays) if place.overlays else payload


def make_arrival(shard: Shard, log: Log, entry: Entry) -> Arrival:
    """An entry of a channel as its destination needs it. Only for entries whose frame is committed."""
    slot = entry.slot
    departing = shard.departing(slot)
    payload = read_place(log, shard.place(slot))
    new = shard.owed_lineage(slot)
    if new is not NO_LINEAGE:  # a copy of a published message goes as it is
        payload = with_lineage(payload, merge_lineage(Lineage.decode(payload.lineage), new))
    redriven = entry.reason == Reason.REDRIVE
    return Arrival(
        source_shard=shard.number,
        number=entry.number,
        queue=entry.destination_queue,
        reason=entry.reason,
        priority=departing.priority,
        sent_ms=departing.sent_ms,
        receive_count=departing.receive_count,
        payload=encode_payload(payload),
        group=payload.group,
        fifo=departing.fifo,
        origin=0 if redriven else departing.origin,
        redriven=shard.redriver(departing.queue) if redriven else departing.redriven,
        maximum=departing.maximum,
    )

"""Truncates a log at the front: carries living messages forward, writes a Base, and deletes the front.

History is kept by time and bytes, in addition to what living messages need. The log never grows beyond twice the living
bytes plus the history. Messages are copied in small steps between client requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from batonq.core.records import ROW_BYTES, Type
from batonq.errors import Unavailable
from batonq.log.frames import HEADER_BYTES, Frame
from batonq.log.interface import Room
from batonq.node.backup.front_holds import FrontHolds
from batonq.node.clock import Clock
from batonq.node.messages.log_reader import record_variable
from batonq.node.settings import Settings
from batonq.node.shard_host.archiving import Archiving
from batonq.node.shard_host.host import ShardHost

SEGMENTS_AT_ONCE = 8  # deleted under one Base
RESERVE_CARRY_BYTES = 1 << 20  # on a full disk, a segment with more living bytes than this stays
FULL_LOOK_EVERY_MS = 5_000  # on a full disk, how often the oldest segment is examined
MESSAGE_OVERHEAD_BYTES = ROW_BYTES + HEADER_BYTES
_HOLDS_MESSAGE = frozenset((Type.SENT, Type.EDITED, Type.ARRIVED, Type.CARRIED))
_LOW32 = 0xFFFFFFFF


def living_bytes(host: ShardHost) -> int:
    """The approximate size of a shard's living messages in its log."""
    return sum(state.bytes + state.messages * MESSAGE_OVERHEAD_BYTES for state in list(host.shard.queues.values()))


def boundary(host: ShardHost, settings: Settings, now_ms: int, base_bytes: int = 0) -> int:
    """The frame before which the log should be deleted; its first frame when nothing should be.

    Each truncation writes a Base of `base_bytes`, so the Base counts as living. Otherwise a Base longer than the
    retained history would be written again and again, even on an idle node.
    """
    segments = host.log.segments()
    if len(segments) < 2:
        return host.log.first
    retained = sum(segment.bytes for segment in segments)
    full = host.log.room() is not Room.PLENTY
    twice = 2 * (living_bytes(host) + base_bytes)
    most = twice if full else twice + settings.history_bytes
    oldest_ms = now_ms - int(settings.history_hours * 3_600_000)
    start = segments[0].first
    spent_bytes = 0  # once anything is deleted: space for the Base, and for as much again before the next one
    for segment in segments[:-1][:SEGMENTS_AT_ONCE]:
        old = segment.last_time_ms < oldest_ms and retained + spent_bytes > twice + settings.segment_bytes
        if not segment.sealed or not (old or retained + spent_bytes > most):
            break
        retained -= segment.bytes
        spent_bytes = 2 * base_bytes
        start = segment.stop
    if full and start == segments[0].first and segments[0].sealed:
        start = segments[0].stop  # `run` checks whether little enough in it is living
    return host.log.droppable(start)


class Truncation:
    """Truncates one shard's log. `run` deletes what may go; it is called repeatedly, one call at a time."""

    def __init__(
        self,
        host: ShardHost,
        clock: Clock,
        settings: Settings,
        archiving: Archiving | None = None,
        holds: FrontHolds | None = None,
    ) -> None:
        self._archiving = archiving
        self._holds = holds
        self.host = host
        self._clock = clock
        self._settings = settings
        self._base_bytes = 0  # size of the last Base that was written
        self._full_look_at_ms = 0

    async def run(self) -> int:
        """Delete as much as is due. Returns the number of bytes. Raises Unavailable when the shard stops."""
        host = self.host
        log = host.log
        until = boundary(host, self._settings, self._clock.now_ms(), self._base_bytes)
        if self._archiving is not None and until > log.first:
            until = self._archiving.until(log, until)
        if self._holds is not None:
            until = self._holds.limit(log, until)
        if until > log.first:
            until = self._keep_retained(until)
        if until <= log.first or not self._worth_a_look():
            return 0
        for first, stop in [(segment.first, segment.stop) for segment in log.segments() if segment.stop <= until]:
            slots = host.shard.to_carry(until, await self._slots(first, stop))
            if not self._has_room(slots):
                return 0
            await self._carry(slots, until)
        while left := host.shard.to_carry(until, ()):  # moved within the shard meanwhile: messages that share payloads
            await self._carry(left, until)
        if self._keep_retained(until) < until:
            return 0  # a message whose payload is at the front has moved to a queue that retains it, and is deleted
        self._base_bytes = host.run(host.shard.write_base, until, self._clock.now_ms(), log.frame_bytes_max)
        await self._committed()
        before = log.bytes_retained()
        if self._holds is not None:
            until = self._holds.limit(log, until)  # a backup may have begun meanwhile
        log.drop_front(until)
        self._full_look_at_ms = 0
        return before - log.bytes_retained()

    def _keep_retained(self, until: int) -> int:
        """The frame up to which the log may be deleted, when `until` is wanted: retained history stays.

        This holds on a full disk too. Deletes still work there, and a shorter `retainSeconds` frees space.
        """
        front = self.host.shard.retained_front(self._clock.now_ms())
        return until if front >= until else self.host.log.droppable(max(front, self.host.log.first))

    async def _slots(self, first: int, stop: int) -> list[int]:
        slots: list[int] = []
        for number in range(first, stop):
            slots += message_slots(self.host.log.frame(number))
            await asyncio.sleep(0)  # let client requests run in between
        return slots

    def _worth_a_look(self) -> bool:
        if self.host.log.room() is Room.PLENTY:
            return True
        now_ms = self._clock.now_ms()
        if now_ms < self._full_look_at_ms:
            return False
        self._full_look_at_ms = now_ms + FULL_LOOK_EVERY_MS
        return True

    def _has_room(self, slots: list[int]) -> bool:
        """Whether the messages may be copied.

        On a full disk the reserve is for deletes, so only a segment with few living bytes is worth copying.
        """
        if self.host.log.room() is Room.PLENTY:
            return True
        living = sum(self.host.shard.place(slot).length for slot in slots)
        return living + self._base_bytes <= min(RESERVE_CARRY_BYTES, self._settings.segment_bytes // 4)

    async def _carry(self, slots: list[int], until: int) -> None:
        """Copy messages forward in bounded steps."""
        host = self.host
        rows = step_bytes = 0
        for slot in slots:
            overlays = host.shard.place(slot).overlays
            if overlays and overlays[-1] >> 16 >= host.log.next:
                await self._committed()  # the message's lineage is not in the log yet
            host.make_room()
            copied = self._carry_one(slot, until << 16)
            rows += 1
            step_bytes += copied
            if rows >= self._settings.carry_rows or step_bytes >= self._settings.carry_bytes:
                rows = step_bytes = 0
                await self._committed()
        await self._committed()

    def _carry_one(self, slot: int, limit: int) -> int:
        """Copy one message forward if it still lives at the front. Returns the number of bytes copied."""
        shard, log = self.host.shard, self.host.log
        place = shard.place(slot)
        at_front = place.position < limit or (place.overlays and place.overlays[0] < limit)
        if not shard.is_used(slot) or not at_front:
            return 0  # deleted, or carried already
        payload = log.read_variable(place.position, place.offset, place.length)
        overlays = [record_variable(log, overlay) for overlay in place.overlays]
        self.host.run(shard.carry, slot, payload, overlays, self._clock.now_ms())
        return place.length

    async def _committed(self) -> None:
        if not self.host.serving:
            raise Unavailable(self.host.why)
        point = self.host.point()
        if point is not None:
            await point
        else:
            await asyncio.sleep(0)


def message_slots(frame: Frame) -> Iterator[int]:
    """The slots of the messages whose payload, or a copy of it, begins in a frame."""
    words = frame.words()
    for row, word in enumerate(words[0::8]):
        if word & 0xFF in _HOLDS_MESSAGE:
            yield words[8 * row + 7] & _LOW32

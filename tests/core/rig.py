"""Shards under test: each with its log in memory, a follower that is fed every frame, and channels between them.

Nothing here decides; it drives the commands of `core`, seals a frame when asked, and checks after each that the state
is valid and that whoever folds the same frames has the same state; where another takes over, byte for byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from batonq.core.commands import Arrival, Claim, Entry, Lease, MessageView
from batonq.core.payload import Lineage, Payload, decode, encode_payload, merge_lineage, with_lineage
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, Type
from batonq.core.shard.machine import Shard
from tests.support import ask

T0 = 1_700_000_000_000  # when every test begins; a whole second
_LOW32 = 0xFFFFFFFF


class Row(NamedTuple):
    """One record as the log's format describes it, taken apart."""

    position: int
    type: Type
    flags: int
    priority: int
    reason: int
    queue: int
    sequence: int
    time: int
    until: int
    w4: int
    w5: int
    slot: int
    auxiliary: int
    variable: bytes


class SealedFrame(NamedTuple):
    number: int
    words: array[int]
    variable: bytes

    def rows(self) -> list[Row]:
        return [self.row(index) for index in range(len(self.words) >> 3)]

    def row(self, index: int) -> Row:
        w0, w1, w2, w3, w4, w5, w6, w7 = self.words[index * 8 : index * 8 + 8]
        return Row(
            position=self.number << 16 | index,
            type=Type(w0 & 0xFF),
            flags=w0 >> 8 & 0xFF,
            priority=w0 >> 16 & 0xFF,
            reason=w0 >> 24 & 0xFF,
            queue=w0 >> 32,
            sequence=w1,
            time=w2,
            until=w3,
            w4=w4,
            w5=w5,
            slot=w7 & _LOW32,
            auxiliary=w7 >> 32,
            variable=self.part(w6),
        )

    def part(self, w6: int) -> bytes:
        offset = w6 & _LOW32
        return self.variable[offset : offset + (w6 >> 32)]


class Rig:
    """One shard, its log and its follower."""

    def __init__(self, number: int = 0, now: int = T0) -> None:
        self.number = number
        self.now = now
        self.frames: dict[int, SealedFrame] = {}
        self.next_frame = 1
        self.shard = Shard(number)
        self.shard.begin_frame(1)
        self.follower = Shard(number)
        self.shard.take_ownership(1, now, 0)
        self.commit()

    # --- the log -------------------------------------------------------------------------------

    def commit(self) -> list[Row]:
        """Seal the open frame, if anything is in it, and let the follower fold it; returns its records."""
        while self.shard.frame.finished:
            number, rows, variable = self.shard.frame.take_finished()
            assert number == self.next_frame
            self._keep(rows, variable)
        if not self.shard.frame.row_count:
            return []
        kept = self._keep(*self.shard.seal())
        self.shard.begin_frame(self.next_frame)
        return kept

    def _keep(self, rows: bytes, variable: bytes) -> list[Row]:
        words: array[int] = array("Q")
        words.frombytes(rows)
        frame = SealedFrame(self.next_frame, words, variable)
        self.frames[frame.number] = frame
        self.next_frame += 1
        self.follower.apply_frame(*frame)
        return frame.rows()

    def check(self) -> list[Row]:
        """Commit; then every invariant holds, and the follower's state is the same. Returns what was committed."""
        rows = self.commit()
        self.shard.validate()
        self.follower.validate()
        if self.follower.picture(self.now) != self.shard.picture(self.now):
            assert_same_state(self.follower, self.shard, self.now)  # tells the difference
            raise AssertionError("two states differ, and their dumps do not")
        return rows

    def replayed(self) -> Shard:
        """A shard that has folded the whole retained log."""
        fresh = Shard(self.number)
        first = min(self.frames)
        if first > 1:
            fresh.before_base = first
        for number in sorted(self.frames):
            fresh.apply_frame(*self.frames[number])
        assert not fresh.before_base, "the retained log has no Base"
        return fresh

    def loaded(self) -> Shard:
        """A shard made from a snapshot of this one."""
        fresh = Shard(self.number)
        fresh.load(self.shard.save())
        return fresh

    def restart(self, successor: Shard, grace_ms: int = 0) -> None:
        """`successor`, whose state is this shard's, becomes the owner; its follower starts from the log."""
        self.commit()
        assert_same_state(successor, self.shard, self.now)
        successor.begin_frame(self.next_frame)
        self.follower = self.replayed()
        self.shard = successor
        self.shard.take_ownership(self.shard.epoch + 1, self.now, grace_ms)

    def truncate(self, boundary: int) -> None:
        """Carry what lives below frame `boundary`, write a Base, drop the front, and begin the follower anew."""
        self.commit()
        shard, columns = self.shard, self.shard.columns
        named = [
            row.slot
            for number in sorted(self.frames)
            if number < boundary
            for row in self.frames[number].rows()
            if row.type in (Type.SENT, Type.EDITED, Type.ARRIVED, Type.CARRIED)
        ]
        for slot in shard.to_carry(boundary, named):
            extent = columns.extent[slot]
            overlays = [self.row(position).variable for position in shard.messages.overlays.get(slot, ())]
            shard.carry(slot, self._payload_bytes(columns.position[slot], extent), overlays, self.now)
        self.commit()
        shard.write_base(boundary, self.now)
        self.commit()
        for number in [number for number in self.frames if number < boundary]:
            del self.frames[number]
        self.follower = self.replayed()

    def row(self, position: int) -> Row:
        return self.frames[position >> 16].row(position & 0xFFFF)

    def _payload_bytes(self, position: int, extent: int) -> bytes:
        return self.frames[position >> 16].part(extent)

    # --- what a consumer sees --------------------------------------------------------------------

    def payload(self, message: Lease | MessageView) -> Payload:
        """A message's payload with all its lineages laid over it. Everything before must be committed."""
        payload = decode(self._payload_bytes(message.position, message.offset | message.length << 32))
        lineage = Lineage.decode(payload.lineage)
        for position in message.overlays:
            lineage = merge_lineage(lineage, Lineage.decode(self.row(position).variable))
        return with_lineage(payload, lineage)

    def view(self, slot: int) -> MessageView:
        return self.shard.view(slot)

    def messages(self, queue: int) -> list[MessageView]:
        return self.shard.peek(queue, 0, 1_000_000)

    # --- between shards ----------------------------------------------------------------------------

    def arrival(self, entry: Entry) -> Arrival:
        """What the host makes of a committed channel entry."""
        columns = self.shard.columns
        view = self.view(entry.slot)
        payload = self.payload(view)
        lineage = merge_lineage(Lineage.decode(payload.lineage), self.shard.owed_lineage(entry.slot))
        departing = self.shard.departing(entry.slot)
        queue = self.shard.queues[columns.queue[entry.slot]]
        redriven = entry.reason == Reason.REDRIVE
        return Arrival(
            source_shard=self.number,
            number=entry.number,
            queue=entry.destination_queue,
            reason=entry.reason,
            priority=view.priority,
            sent_ms=view.sent_ms,
            receive_count=view.receive_count,
            payload=encode_payload(with_lineage(payload, lineage)),
            group=payload.group,
            fifo=departing.fifo,
            origin=0 if redriven else departing.origin,
            redriven=self.shard.redriver(queue.number) if redriven else self.shard.messages.redriven.get(entry.slot, 0),
            maximum=self.shard.messages.maxima.get(entry.slot, 0) or self.shard.messages.kept_maxima.get(entry.slot, 0),
        )


def assert_same_state(one: Shard, other: Shard, now: int) -> None:
    mine, others = one.dump(now), other.dump(now)
    if mine == others:
        return
    at = next(index for index, (a, b) in enumerate(zip(mine, others, strict=False)) if a != b)
    before = slice(max(0, at - 200), at + 200)
    raise AssertionError(f"two states differ at {at}:\n{mine[before].decode()}\n---\n{others[before].decode()}")


make_send = ask.message


def claim(lease: Lease) -> Claim:
    return Claim(lease.slot, lease.sequence, lease.epoch)


class Bench(Rig):
    """A rig with the short words that unit tests use: one queue number, bodies as text."""

    def queue(self, number: int = 1, **fields: Any) -> int:
        """Set a queue's policy: a new queue, or new settings for an old one."""
        name = f"q{number}.fifo" if fields.get("fifo") else f"q{number}"
        self.shard.set_policy(QueuePolicy(number, "tenant", name, **fields), self.now)
        return number

    def limit(self, **limits: int) -> None:
        """Give the shard smaller limits."""
        self.shard.journal.limits = replace(self.shard.journal.limits, **limits)

    def later(self, ms: int) -> int:
        self.now += ms
        self.shard.advance(self.now)
        return self.now

    def send(self, queue: int, *bodies: str, **fields: Any) -> list[Any]:
        return ask.send(self.shard, queue, [make_send(body, **fields) for body in bodies], self.now)

    def receive(
        self, queue: int, count: int = 10, visibility_ms: int | None = None, holder: str = "h", attempt: str = ""
    ) -> list[Lease]:
        return ask.receive(self.shard, queue, count, visibility_ms, self.now, holder, attempt)

    def bodies(self, leases: Iterable[Lease | MessageView]) -> list[str]:
        self.commit()
        return [self.payload(lease).body.decode() for lease in leases]

    def waiting(self, queue: int) -> list[str]:
        return self.bodies(self.messages(queue))

    def delete(self, queue: int, *leases: Lease, strict: bool = False) -> list[Any]:
        return ask.delete(self.shard, queue, [claim(lease) for lease in leases], self.now, strict)


def deliver(source: Bench | Rig, destination: Bench | Rig, limit: int = 100) -> list[tuple[int, int]]:
    """One round of a channel: what is owed is committed, arrives, and is settled."""
    source.commit()
    entries = source.shard.pending_entries(destination.number, 0, limit)
    results = destination.shard.arrive([source.arrival(entry) for entry in entries], destination.now)
    destination.commit()
    if results:
        source.shard.settle(destination.number, results, source.now)
    return results

"""Handing messages out: leases for the next messages of a queue, in the order that lines.py decides.

A message whose time is over is never given out, even when more expire at once than timers have recorded by now.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.commands import FirstLeases, Lease
from batonq.core.records import LeaseFlag, State, Type
from batonq.core.shard.columns import NIL
from batonq.core.shard.once import SendingOnce
from batonq.core.shard.queuestate import QueueState
from batonq.core.shard.runs import FIRST_LEASE
from batonq.core.shard.state import encode_notes
from batonq.errors import OverLimit

ATTEMPT_WINDOW_MS = 300_000
_VISIBLE, _IN_FLIGHT = int(State.VISIBLE), int(State.IN_FLIGHT)
_LEASED = int(Type.LEASED)


class Receiving(SendingOnce):
    def receive(
        self,
        number: int,
        max_messages: int,
        visibility_ms: int | None,
        now: int,
        holder: str,
        attempt: str = "",
    ) -> list[Lease]:
        """Lease up to `max_messages` to `holder`."""
        return self.receive_at(number, max_messages, visibility_ms, self.begin(now), holder, attempt)

    def receive_at(
        self,
        number: int,
        max_messages: int,
        visibility_ms: int | None,
        now: int,
        holder: str,
        attempt: str = "",
    ) -> list[Lease]:
        """The same at a time that `begin` or `pass_time` has given: for many receives one after the other.

        A queue that has more to look at than one receive may is in `woken` afterwards.
        """
        queue = self.queue_state(number)
        policy = queue.policy
        visibility = policy.visibility_ms if visibility_ms is None else visibility_ms
        if attempt:
            again = self._receive_again(queue, attempt, now + visibility, now)
            if again:
                return again
            if not queue.fifo or self._attempts_full(now):
                attempt = ""  # decided here, so that the records say what is remembered
        room = policy.in_flight_max - queue.in_flight
        if room <= 0:
            if queue.fifo:
                return []
            raise OverLimit(
                "The queue's limit of messages in flight is reached. Delete messages, or wait until their leases "
                "expire."
            )
        if not queue.visible:
            return []
        wanted = min(max_messages, room)
        slots = self._choose_fifo(queue, wanted, now) if queue.fifo else None
        if slots is None:
            leases = self._lease_standard(queue, wanted, now, now + visibility, holder)
        else:
            w6 = self.frame.put(encode_notes(holder, attempt)) if slots else 0
            flags = int(LeaseFlag.ATTEMPT) if attempt else 0
            leases = [self._lease(queue, slot, now, now + visibility, holder, w6, flags) for slot in slots]
        if attempt and leases:
            taken = tuple((lease.slot, lease.sequence, lease.epoch) for lease in leases)
            self._on_attempt(number, attempt, now + ATTEMPT_WINDOW_MS, taken)
        return leases

    def _lease_standard(self, queue: QueueState, wanted: int, now: int, deadline: int, holder: str) -> list[Lease]:
        ready = queue.ready
        front = ready.front(wanted)
        if front and not self._any_expired(front, now):
            return self.expand(self._lease_front(queue, front, now, deadline, [(holder, len(front))]))
        ageing_ms = queue.policy.ageing_ms
        leases: list[Lease] = []
        w6 = given_up = 0
        while len(leases) < wanted:
            slot = ready.next_standard(ageing_ms)
            if slot == NIL:
                break
            if self._is_over(queue, slot, now):
                given_up += 1
                if given_up > self.limits.given_up_max:
                    self.woken.add(queue.number)
                    break
                self._put_away(queue, slot, now)
                continue
            if not w6:
                w6 = self.frame.put(encode_notes(holder, ""))
            leases.append(self._lease(queue, slot, now, deadline, holder, w6, 0))
        return leases

    def receive_front(
        self, number: int, max_messages: int, visibility_ms: int | None, now: int, holder: str
    ) -> FirstLeases | None:
        """Lease the front of a queue in which there is no choice to make, as one run.

        None: there is a choice, or nothing to lease; nothing was done, and `receive` must be called.
        """
        now = self.begin(now)
        queue = self.queue_state(number)
        policy = queue.policy
        wanted = min(max_messages, policy.in_flight_max - queue.in_flight)
        if queue.fifo or wanted <= 0:
            return None
        front = self._plain_front(queue, wanted, now)
        if not front:
            return None
        visibility = policy.visibility_ms if visibility_ms is None else visibility_ms
        return self._lease_front(queue, front, now, now + visibility, [(holder, len(front))])

    def receive_together(
        self, number: int, wants: Sequence[tuple[str, int]], visibility_ms: int | None, now: int
    ) -> tuple[FirstLeases, list[int]] | None:
        """The same for several requests, (holder, messages) each, in their order: all leases, and how many each got."""
        now = self.begin(now)
        queue = self.queue_state(number)
        policy = queue.policy
        wanted = min(sum([count for _, count in wants]), policy.in_flight_max - queue.in_flight)
        if queue.fifo or wanted <= 0:
            return None
        front = self._plain_front(queue, wanted, now)
        left = len(front)
        if not left:
            return None
        holders: list[tuple[str, int]] = []
        for holder, count in wants:
            holders.append((holder, min(count, left)))
            left -= holders[-1][1]
        visibility = policy.visibility_ms if visibility_ms is None else visibility_ms
        leases = self._lease_front(queue, front, now, now + visibility, [one for one in holders if one[1]])
        return leases, [count for _, count in holders]

    def _lease_front(
        self, queue: QueueState, slots: Sequence[int], now: int, deadline: int, holders: Sequence[tuple[str, int]]
    ) -> FirstLeases:
        """First leases: nothing at the front of a fresh line can have used up its receives."""
        columns = self.columns
        frame = self.frame
        w6, *others = [frame.put(encode_notes(holder, "")) for holder, _ in holders]
        position = frame.number << 16 | len(frame.rows) >> 3
        w0 = _LEASED | columns.priority[slots[0]] << 16 | queue.number << 32
        if isinstance(slots, range):
            first, end = slots.start, slots.stop
            sequences, lasts = columns.sequence[first:end], columns.last[first:end]
            positions, extents = columns.position[first:end], columns.extent[first:end]
            sents = columns.sent[first:end]
        else:
            sequences = array("Q", [columns.sequence[slot] for slot in slots])
            lasts = array("Q", [columns.last[slot] for slot in slots])
            positions = array("Q", [columns.position[slot] for slot in slots])
            extents = array("Q", [columns.extent[slot] for slot in slots])
            sents = array("Q", [columns.sent[slot] for slot in slots])
        # What differs between the rows is laid over what they share, a column at a time.
        rows = array("Q", (w0, 0, now, deadline, FIRST_LEASE, 0, w6, 0)) * len(slots)
        rows[1::8] = sequences
        rows[5::8] = lasts
        if others:
            at = 0
            for note, (_, count) in zip((w6, *others), holders, strict=True):
                rows[at + 6 : at + 8 * count : 8] = array("Q", (note,)) * count
                at += 8 * count
        rows[7::8] = array("Q", [*slots])
        frame.extend(rows)
        self._on_first_leases(queue, slots, now, deadline, position, holders)
        return FirstLeases(slots, sequences, positions, extents, sents, now, deadline)

    def expand(self, front: FirstLeases) -> list[Lease]:
        """A run of first leases, one by one."""
        priorities, overlays = self.columns.priority, self.overlays
        leased_ms, deadline_ms = front.leased_ms, front.deadline_ms
        return [
            Lease(
                slot,
                sequence,
                1,
                1,
                deadline_ms,
                sent_ms,
                leased_ms if leased_ms > sent_ms else sent_ms,
                priorities[slot],
                position,
                extent & 0xFFFFFFFF,
                extent >> 32,
                overlays.get(slot, ()) if overlays else (),
            )
            for slot, sequence, position, extent, sent_ms in zip(*front[:5], strict=True)
        ]

    def _choose_fifo(self, queue: QueueState, wanted: int, now: int) -> list[int]:
        """From the front of one group, then of the next; a message that is not VISIBLE ends its group's turn."""
        columns = self.columns
        lines = self.lines
        chosen: list[int] = []
        passed: list[int] = []
        given_up = 0
        while len(chosen) < wanted:
            lane = queue.ready.best_lane(queue.policy.ageing_ms)
            if lane is None:
                break
            line = lane.quiet
            slot = lines.head[line]
            if self._is_over(queue, slot, now):
                given_up += 1
                if given_up > self.limits.given_up_max:
                    self.woken.add(queue.number)
                    break
                self._put_away(queue, slot, now)
                continue
            while slot != NIL and len(chosen) < wanted and columns.state[slot] == _VISIBLE:
                if self._is_over(queue, slot, now):
                    break  # it moves when it has become the head
                chosen.append(slot)
                slot = columns.line_next[slot]
            # Out of the ring while the others are looked at; `refresh`, when its messages are leased, puts it right.
            lines.leave_ring(lane, line)
            passed.append(line)
            if lane.empty:
                del queue.ready.lanes[lane.priority]
        for line in passed:
            queue.ready.refresh(line)
        return chosen

    def _is_over(self, queue: QueueState, slot: int, now: int) -> bool:
        """Must a VISIBLE message not be given out any more: expired, or received as often as it may be?"""
        return self.columns.expires[slot] <= now // 1000 or self._exhausted(queue, slot)

    def _put_away(self, queue: QueueState, slot: int, now: int) -> None:
        """What becomes of such a message; of one that is both, that it has expired."""
        if self.columns.expires[slot] <= now // 1000:
            self._expire_message(slot, now)
        else:
            self._give_up(queue, slot, now)

    def _plain_front(self, queue: QueueState, wanted: int, now: int) -> Sequence[int]:
        """The front of a queue, if it can be leased as one run of plain messages; else empty."""
        front = queue.ready.front(wanted)
        if front and ((self.overlays and not self.overlays.keys().isdisjoint(front)) or self._any_expired(front, now)):
            return ()
        return front

    def _any_expired(self, slots: Sequence[int], now: int) -> bool:
        """Are messages among these whose time is over? Timers take a bounded number at once, so it can happen."""
        expires = self.columns.expires
        if isinstance(slots, range):
            return min(expires[slots.start : slots.stop]) <= now // 1000
        return min([expires[slot] for slot in slots]) <= now // 1000

    def _lease(self, queue: QueueState, slot: int, now: int, deadline: int, holder: str, w6: int, flags: int) -> Lease:
        columns = self.columns
        sequence = columns.sequence[slot]
        priority = columns.priority[slot]
        epoch = columns.epoch[slot] + 1
        count = columns.count[slot] + 1
        aux = ATTEMPT_WINDOW_MS << 32 if flags else 0
        position = self.frame.add(
            _LEASED | flags << 8 | priority << 16 | queue.number << 32,
            sequence,
            now,
            deadline,
            epoch | count << 32,
            columns.last[slot],
            w6,
            slot | aux,
        )
        self._on_leased(queue, slot, now, deadline, epoch, count, position, holder)
        return self._lease_view(slot)

    def _lease_view(self, slot: int) -> Lease:
        columns = self.columns
        sent = columns.sent[slot]
        extent = columns.extent[slot]
        return Lease(
            slot,
            columns.sequence[slot],
            columns.epoch[slot],
            columns.count[slot],
            columns.until[slot],
            sent,
            sent + columns.first_received[slot] - 1,
            columns.priority[slot],
            columns.position[slot],
            extent & 0xFFFFFFFF,
            extent >> 32,
            self.overlays.get(slot, ()) if self.overlays else (),
        )

    def _attempts_full(self, now: int) -> bool:
        """To remember one more, the oldest must be over: it is forgotten then."""
        if len(self.attempts) < self.limits.attempts_max:
            return False
        return next(iter(self.attempts.values())).expires_ms > now

    def _receive_again(self, queue: QueueState, attempt: str, deadline: int, now: int) -> list[Lease]:
        known = self.attempts.get((queue.number, attempt))
        if known is None or known.expires_ms <= now:
            return []
        columns = self.columns
        for slot, sequence, epoch in known.leases:
            if columns.sequence[slot] != sequence or columns.epoch[slot] != epoch or columns.state[slot] != _IN_FLIGHT:
                return []
            if columns.until[slot] <= now:
                return []  # it has run out, and its record is yet to come
        leases = []
        for slot, _, _ in known.leases:
            flags = int(LeaseFlag.ATTEMPT)
            position = self._row(Type.EXTENDED, queue.number, slot, now, until=deadline, flags=flags)
            self._on_extended(slot, deadline, position, True)
            leases.append(self._lease_view(slot))
        return leases

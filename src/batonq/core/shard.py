"""A shard: the commands of delivery. Each decides against the state, writes its records into the open frame, applies
them at once, and returns the reply; the host releases the reply when the frame is committed.

Time is an argument, in milliseconds; `advance(now)` comes before every decision, so that what is due is recorded first.
"""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.arrivals import Arrivals
from batonq.core.columns import NIL
from batonq.core.commands import Accepted, Claim, Counters, Lease, MessageView, Nack, Send
from batonq.core.ids import key_hash, message_id
from batonq.core.lifecycle import RECEIPTS, Rule, Standing, Verdict
from batonq.core.payload import content_mark, encode, plain_header
from batonq.core.persist import Persist
from batonq.core.policy import QueuePolicy
from batonq.core.queuestate import QueueState
from batonq.core.records import Flag, Reason, State, Type
from batonq.core.runs import FIRST_LEASE
from batonq.core.state import encode_notes
from batonq.core.validate import Validate
from batonq.errors import BatonError, DeduplicationConflict, InvalidInput, OverLimit, QueueDoesNotExist

REQUEST_WINDOW_MS = 120_000  # an SDK has given up on a request by then
ATTEMPT_WINDOW_MS = 300_000
VISIBILITY_MAX_MS = 43_200_000
REASON_CHARACTERS_MAX = 500
CLASS_CHARACTERS_MAX = 100
SLOTS_MAX = 100_000_000
DEDUP_ENTRIES_MAX = 50_000_000
ATTEMPTS_MAX = 100_000
PURGE_STEP = 5_000

_SHARD_FULL = "The shard holds as many messages as it can; receive and delete some."
_VISIBLE, _IN_FLIGHT, _OWED = int(State.VISIBLE), int(State.IN_FLIGHT), int(State.OWED)
_SENT, _LEASED, _DELETED = int(Type.SENT), int(Type.LEASED), int(Type.DELETED)


class Shard(Arrivals, Persist, Validate):
    # --- the frame ---------------------------------------------------------------------------------

    def begin_frame(self, number: int) -> None:
        """The open frame was sealed; start filling the next one, which will have this number."""
        self.frame.begin(number)

    def seal(self) -> tuple[bytes, bytes]:
        return self.frame.seal()

    def _row(
        self,
        kind: Type,
        queue: int,
        slot: int,
        now: int,
        *,
        until: int = 0,
        flags: int = 0,
        reason: int = 0,
        w6: int = 0,
    ) -> int:
        """A record of a message's life, with the words that most of them share."""
        columns = self.columns
        return self.frame.add(
            kind | flags << 8 | columns.priority[slot] << 16 | reason << 24 | queue << 32,
            columns.sequence[slot],
            now,
            until,
            columns.epoch[slot] | columns.count[slot] << 32,
            columns.last[slot],
            w6,
            slot,
        )

    def queue_state(self, number: int) -> QueueState:
        queue = self.queues.get(number)
        if queue is None or queue.closed:
            raise QueueDoesNotExist()
        return queue

    # --- ownership and control -----------------------------------------------------------------------

    def take_ownership(self, epoch: int, base_ms: int, grace_ms: int) -> None:
        """The first record of a new owner. Leases that were running get `grace_ms` more."""
        assert epoch > self.epoch, "an owner's epoch is above every one before"
        base_ms = max(base_ms, self.last_time_ms)
        self.frame.add(Type.EPOCH, epoch, base_ms, base_ms, grace_ms, 0, 0, 1)
        self._on_epoch(epoch, base_ms, grace_ms)

    def set_policy(self, policy: QueuePolicy, now: int) -> None:
        now = self.begin(now)
        w6 = self.frame.put(policy.encode())
        self.frame.add(Type.POLICY_SET | policy.queue << 32, policy.version, now, 0, 0, 0, w6, 0)
        self._on_policy(policy)

    def close_queue(self, number: int, version: int, now: int) -> None:
        """The queue was deleted: nothing more is taken or given; `purge` then removes its messages."""
        now = self.begin(now)
        queue = self.queue_state(number)
        self.frame.add(Type.QUEUE_CLOSED | number << 32, version, now, 0, 0, 0, 0, 0)
        queue.closed = True

    def purge(self, number: int, now: int, through: int = 0) -> tuple[int, bool]:
        """One step of a purge: remove messages up to sequence `through` (0: all there are), a bounded number of them.

        Returns how many were removed and whether that was all; call again until it was.
        """
        now = self.begin(now)
        queue = self.queues[number]
        columns = self.columns
        through = through or self.next_sequence - 1
        slot = queue.head
        survivor = steps = 0
        while slot != NIL and columns.sequence[slot] <= through and steps < PURGE_STEP:
            survivor = columns.sequence[slot] + 1
            slot = columns.queue_next[slot]
            steps += 1
        final = slot == NIL or columns.sequence[slot] > through
        before = queue.deleted
        w0 = Type.QUEUE_PURGED | Reason.PURGED << 24 | number << 32
        self.frame.add(w0, survivor, now, int(final), steps, 0, 0, 0)
        self._on_purged(queue, survivor, now, final)
        return queue.deleted - before, final

    @property
    def closing(self) -> list[int]:
        """Queues that are closed and still have messages or an entry here."""
        return [number for number, queue in self.queues.items() if queue.closed]

    # --- send ------------------------------------------------------------------------------------------

    def send(self, number: int, sends: Sequence[Send], now: int, invocation: int = 0) -> list[Accepted | BatonError]:
        """Take messages; one result each. A repeated invocation gets the first one's answer."""
        now = self.begin(now)
        queue = self.queue_state(number)
        if invocation:
            known = self.requests.get(invocation, now // 1000)
            if known is not None and known.fingerprint == len(sends):
                queue.duplicates += len(sends)
                first = known.sequence
                return [Accepted(first + i, message_id(self.number, first + i), True) for i in range(len(sends))]
        first_sequence = self.next_sequence
        if self._sends_are_plain(queue, sends):
            results = self._send_run(queue, sends, now)
        else:
            results = [self._send(queue, send, now) for send in sends]
        if invocation and self.next_sequence == first_sequence + len(sends):
            until = now + REQUEST_WINDOW_MS
            w0 = Type.REQUESTED | number << 32
            self.frame.add(w0, first_sequence, now, until, len(sends), invocation, 0, 0)
            self.requests.put(invocation, first_sequence, -(-until // 1000), len(sends), now // 1000)
        return results

    @staticmethod
    def _sends_are_plain(queue: QueueState, sends: Sequence[Send]) -> bool:
        """May they be taken as one run? Nothing about them needs a decision of its own."""
        policy = queue.policy
        if queue.fifo or policy.delay_ms or policy.messages_max or policy.bytes_max:
            return False
        priority = sends[0].priority
        sender = sends[0].sender
        for send in sends:
            if (
                send.group
                or send.dedup_id
                or send.attributes
                or send.delay_ms
                or send.ttl_ms is not None
                or send.max_receives
                or send.trace
                or send.priority != priority
                or send.sender != sender
            ):
                return False
        return True

    def _send_run(self, queue: QueueState, sends: Sequence[Send], now: int) -> list[Accepted | BatonError]:
        columns = self.columns
        count = len(sends)
        slots = columns.take_run(count)
        if slots[-1] >= SLOTS_MAX:
            columns.free.extend(slot for slot in reversed(slots) if slot < columns.used)
            return [OverLimit(_SHARD_FULL) for _ in sends]
        first = sequence = self.next_sequence
        priority = sends[0].priority
        expires_s = -(-(now + queue.policy.retention_ms) // 1000)
        before, behind = plain_header(sends[0].sender, now)
        header_bytes = len(before) + 16 + len(behind)
        frame = self.frame
        position = frame.number << 16 | frame.row_count
        parts, offset = frame.parts, frame.variable_bytes
        w0 = _SENT | priority << 16 | queue.number << 32
        aux = expires_s << 32
        rows: list[int] = []
        extents: list[int] = []
        for send, slot in zip(sends, slots, strict=True):
            body = send.body
            parts.append(before + send.body_md5 + behind)
            parts.append(body)
            length = header_bytes + len(body)
            extent = offset | length << 32
            offset += length
            rows += (w0, sequence, now, now, 0, 0, extent, slot | aux)
            extents.append(extent)
            sequence += 1
        frame.variable_bytes = offset
        frame.extend(rows)
        self._on_sends(queue, slots, first, now, expires_s, priority, position, extents)
        shard = self.number
        return [Accepted(number, message_id(shard, number), False) for number in range(first, sequence)]

    def _send(self, queue: QueueState, send: Send, now: int) -> Accepted | BatonError:
        policy = queue.policy
        number = queue.number
        columns = self.columns
        payload = encode(send, now)
        key = 0
        flags = int(Flag.FIFO) if queue.fifo else 0
        if send.dedup_id:
            scope = send.group if policy.dedup_per_group else ""
            key = key_hash(number, queue.purge_generation, scope, send.dedup_id)
            known = self.dedup.get(key, now // 1000)
            if known is not None:
                if send.strict_content and known.fingerprint != content_mark(payload):
                    return DeduplicationConflict()
                queue.duplicates += 1
                return Accepted(known.sequence, message_id(self.number, known.sequence), True)
            if len(self.dedup) >= DEDUP_ENTRIES_MAX:
                return OverLimit("Too many deduplication keys are remembered; send later or shorten the window.")
            flags |= Flag.DEDUPLICATED | (Flag.DEDUP_LIVES if policy.dedup_lives else 0)
        full = self._full(queue, len(payload))
        if full:
            return OverLimit(full)
        slot = columns.allocate()
        if slot >= SLOTS_MAX:
            return OverLimit(_SHARD_FULL)
        sequence = self.next_sequence
        delay = policy.delay_ms if send.delay_ms is None else send.delay_ms
        visible_ms = now + delay
        ttl = policy.retention_ms if send.ttl_ms is None else send.ttl_ms
        expires_s = -(-(visible_ms + ttl) // 1000)
        group = send.group
        tenant = key_hash(group) if group else 0
        frame = self.frame
        w6 = frame.put(payload)
        maximum = send.max_receives
        w0 = _SENT | flags << 8 | send.priority << 16 | maximum << 24 | number << 32
        position = frame.add(w0, sequence, now, visible_ms, tenant, key, w6, slot | expires_s << 32)
        self._on_sent(queue, slot, sequence, now, visible_ms, tenant, expires_s, send.priority, maximum, position, w6)
        if key:
            self._on_dedup(queue, slot, sequence, now, key, content_mark(payload), policy.dedup_lives)
        return Accepted(sequence, message_id(self.number, sequence), False)

    # --- receive ---------------------------------------------------------------------------------------

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
        now = self.begin(now)
        queue = self.queue_state(number)
        policy = queue.policy
        visibility = policy.visibility_ms if visibility_ms is None else visibility_ms
        if attempt:
            again = self._receive_again(queue, attempt, now + visibility, now)
            if again:
                return again
        room = policy.in_flight_max - queue.in_flight
        if room <= 0:
            if queue.fifo:
                return []
            raise OverLimit("Too many messages of the queue are in flight; delete some or let their leases run out.")
        if not queue.visible:
            return []
        wanted = min(max_messages, room)
        slots = self._choose_fifo(queue, wanted, now) if queue.fifo else None
        if slots is None:
            leases = self._lease_standard(queue, wanted, now, now + visibility, holder)
        else:
            w6 = self.frame.put(encode_notes(holder, attempt)) if slots else 0
            flags = int(Flag.ATTEMPT) if attempt else 0
            leases = [self._lease(queue, slot, now, now + visibility, holder, w6, flags) for slot in slots]
        if attempt and leases and len(self.attempts) < ATTEMPTS_MAX:
            taken = tuple((lease.slot, lease.sequence, lease.epoch) for lease in leases)
            self._on_attempt(number, attempt, now + ATTEMPT_WINDOW_MS, taken)
        return leases

    def _lease_standard(self, queue: QueueState, wanted: int, now: int, deadline: int, holder: str) -> list[Lease]:
        ready = queue.ready
        front = ready.front(wanted)
        if front:
            return self._lease_run(queue, front, now, deadline, holder)
        ageing_ms = queue.policy.ageing_ms
        leases: list[Lease] = []
        w6 = 0
        while len(leases) < wanted:
            slot = ready.next_standard(ageing_ms)
            if slot == NIL:
                break
            if self._exhausted(queue, slot):
                self._give_up(queue, slot, now)
                continue
            if not w6:
                w6 = self.frame.put(encode_notes(holder, ""))
            leases.append(self._lease(queue, slot, now, deadline, holder, w6, 0))
        return leases

    def _lease_run(self, queue: QueueState, slots: list[int], now: int, deadline: int, holder: str) -> list[Lease]:
        """First leases: nothing at the front of a fresh line can have used up its receives."""
        columns = self.columns
        sequences, sents, positions, lasts = columns.sequence, columns.sent, columns.position, columns.last
        extents = columns.extent
        priority = columns.priority[slots[0]]
        frame = self.frame
        w6 = frame.put(encode_notes(holder, ""))
        position = frame.number << 16 | frame.row_count
        w0 = _LEASED | priority << 16 | queue.number << 32
        rows: list[int] = []
        leases: list[Lease] = []
        overlays = self.overlays
        for slot in slots:
            sequence = sequences[slot]
            sent = sents[slot]
            extent = extents[slot]
            rows += (w0, sequence, now, deadline, FIRST_LEASE, lasts[slot], w6, slot)
            over = overlays.get(slot, ()) if overlays else ()
            leases.append(
                Lease(
                    slot,
                    sequence,
                    1,
                    1,
                    deadline,
                    sent,
                    now if now > sent else sent,
                    priority,
                    positions[slot],
                    extent & 0xFFFFFFFF,
                    extent >> 32,
                    over,
                )
            )
        frame.extend(rows)
        self._on_first_leases(queue, slots, now, deadline, position, holder)
        return leases

    def _choose_fifo(self, queue: QueueState, wanted: int, now: int) -> list[int]:
        """From the front of one group, then of the next; a message that is not VISIBLE ends its group's turn."""
        columns = self.columns
        lines = self.lines
        chosen: list[int] = []
        passed: list[int] = []
        while len(chosen) < wanted:
            lane = queue.ready.best_lane(queue.policy.ageing_ms)
            if lane is None:
                break
            line = lane.quiet
            slot = lines.head[line]
            if self._exhausted(queue, slot):
                self._give_up(queue, slot, now)
                continue
            while slot != NIL and len(chosen) < wanted and columns.state[slot] == _VISIBLE:
                if self._exhausted(queue, slot):
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

    def _receive_again(self, queue: QueueState, attempt: str, deadline: int, now: int) -> list[Lease]:
        known = self.attempts.get((queue.number, attempt))
        if known is None or known.expires_ms <= now:
            return []
        columns = self.columns
        for slot, sequence, epoch in known.leases:
            if columns.sequence[slot] != sequence or columns.epoch[slot] != epoch or columns.state[slot] != _IN_FLIGHT:
                return []
        leases = []
        for slot, _, _ in known.leases:
            flags = int(Flag.ATTEMPT)
            position = self._row(Type.EXTENDED, queue.number, slot, now, until=deadline, flags=flags)
            self._on_extended(slot, deadline, position, True)
            leases.append(self._lease_view(slot))
        return leases

    # --- what a receipt may do -------------------------------------------------------------------------

    def standing(self, number: int, claim: Claim, now: int) -> Standing:
        columns = self.columns
        slot = claim.slot
        if slot >= columns.used or columns.sequence[slot] != claim.sequence or columns.queue[slot] != number:
            return Standing.GONE
        state = columns.state[slot]
        if state == State.FREE:
            return Standing.GONE
        if columns.epoch[slot] != claim.epoch or state == _OWED:
            return Standing.SUPERSEDED
        return Standing.HELD if state == _IN_FLIGHT and columns.until[slot] > now else Standing.LAPSED

    def _verdict(self, action: str, queue: QueueState, claim: Claim, now: int, strict: bool) -> Verdict:
        standing = self.standing(queue.number, claim, now)
        if strict or queue.policy.strict_receipts:
            rule = Rule.STRICT
        else:
            rule = Rule.FIFO if queue.fifo else Rule.STANDARD
        return RECEIPTS[action, rule, standing]

    def delete(self, number: int, claims: Sequence[Claim], now: int, strict: bool = False) -> list[BatonError | None]:
        now = self.begin(now)
        queue = self.queue_state(number)
        if not queue.fifo and self._held(number, claims, now):
            self._acknowledge_run(queue, claims, now)
            return [None] * len(claims)
        results: list[BatonError | None] = []
        for claim in claims:
            verdict = self._verdict("delete", queue, claim, now, strict)
            if verdict.stale:
                queue.stale_deletes += 1
            if verdict.act:
                reason = int(verdict.reason)
                flags = int(Flag.LATE) if reason == Reason.LATE_ACK else 0
                self._row(Type.DELETED, number, claim.slot, now, flags=flags, reason=reason)
                self._on_deleted(queue, claim.slot, now, reason)
            results.append(verdict.error() if verdict.error else None)
        return results

    def _held(self, number: int, claims: Sequence[Claim], now: int) -> bool:
        """Are these the current leases of different, plain messages? Then every rule says: delete them."""
        columns = self.columns
        used, sequences, queues = columns.used, columns.sequence, columns.queue
        states, epochs, untils = columns.state, columns.epoch, columns.until
        slots = set()
        for slot, sequence, epoch in claims:
            if (
                slot >= used
                or sequences[slot] != sequence
                or states[slot] != _IN_FLIGHT
                or epochs[slot] != epoch
                or queues[slot] != number
                or untils[slot] <= now
                or not self.plain(slot)
            ):
                return False
            slots.add(slot)
        return len(slots) == len(claims)

    def _acknowledge_run(self, queue: QueueState, claims: Sequence[Claim], now: int) -> None:
        columns = self.columns
        priorities, counts, lasts = columns.priority, columns.count, columns.last
        w0 = _DELETED | Reason.ACK << 24 | queue.number << 32
        rows: list[int] = []
        slots: list[int] = []
        for slot, sequence, epoch in claims:
            rows += (w0 | priorities[slot] << 16, sequence, now, 0, epoch | counts[slot] << 32, lasts[slot], 0, slot)
            slots.append(slot)
        self.frame.extend(rows)
        self._on_acknowledged(queue, slots)

    def change_visibility(
        self, number: int, changes: Sequence[tuple[Claim, int]], now: int, strict: bool = False
    ) -> list[BatonError | None]:
        """Each lease now ends that many milliseconds from now; zero gives the message back."""
        now = self.begin(now)
        queue = self.queue_state(number)
        columns = self.columns
        results: list[BatonError | None] = []
        for claim, visibility_ms in changes:
            verdict = self._verdict("change", queue, claim, now, strict)
            error: BatonError | None = verdict.error() if verdict.error else None
            slot = claim.slot
            if verdict.act:
                began = columns.sent[slot] + columns.leased[slot]
                if not visibility_ms:
                    self._return(slot, now, now, Reason.RELEASED)
                elif now + visibility_ms > began + VISIBILITY_MAX_MS:
                    error = InvalidInput(
                        f"Value {visibility_ms // 1000} for parameter VisibilityTimeout is invalid. Reason: Total "
                        "VisibilityTimeout for the message is beyond the limit [43200 seconds]."
                    )
                else:
                    position = self._row(Type.EXTENDED, number, slot, now, until=now + visibility_ms)
                    self._on_extended(slot, now + visibility_ms, position, False)
            results.append(error)
        return results

    def nack(self, number: int, nacks: Sequence[Nack], now: int) -> list[BatonError | None]:
        now = self.begin(now)
        queue = self.queue_state(number)
        results: list[BatonError | None] = []
        for nack in nacks:
            verdict = self._verdict("nack", queue, nack.claim, now, True)
            if verdict.error:
                results.append(verdict.error())
            elif not 0 <= nack.delay_ms <= queue.policy.retention_ms:
                results.append(InvalidInput("The delay of a nack must be between 0 and the queue's retention."))
            elif len(nack.reason) > REASON_CHARACTERS_MAX or len(nack.error_class) > CLASS_CHARACTERS_MAX:
                results.append(
                    InvalidInput(
                        f"A nack's reason has at most {REASON_CHARACTERS_MAX} characters, "
                        f"its error class {CLASS_CHARACTERS_MAX}."
                    )
                )
            else:
                self._return(
                    nack.claim.slot,
                    now,
                    now + nack.delay_ms,
                    Reason.NACK,
                    nack.error_class,
                    nack.reason,
                    nack.dead_letter,
                )
                results.append(None)
        return results

    # --- reading ---------------------------------------------------------------------------------------

    def counters(self, number: int) -> Counters:
        queue = self.queue_state(number)
        return queue.counters(self.columns.sent[queue.head] if queue.head != NIL else 0)

    def peek(self, number: int, after_sequence: int, limit: int) -> list[MessageView]:
        """Messages in order of arrival, whatever their state, without touching them."""
        queue = self.queue_state(number)
        columns = self.columns
        slot = queue.head
        views: list[MessageView] = []
        while slot != NIL and len(views) < limit:
            if columns.sequence[slot] > after_sequence:
                views.append(self.view(slot))
            slot = columns.queue_next[slot]
        return views

    def view(self, slot: int) -> MessageView:
        columns = self.columns
        lease = self._lease_view(slot)
        failure = self.failures.get(slot)
        return MessageView(
            slot=slot,
            sequence=lease.sequence,
            state=columns.state[slot],
            until_ms=lease.deadline_ms,
            epoch=lease.epoch,
            receive_count=lease.receive_count,
            sent_ms=lease.sent_ms,
            first_received_ms=lease.first_received_ms if columns.first_received[slot] else 0,
            expires_ms=columns.expires[slot] * 1000,
            priority=lease.priority,
            position=lease.position,
            offset=lease.offset,
            length=lease.length,
            overlays=lease.overlays,
            holder=self.holders.get(slot, ""),
            error_class=failure.error_class if failure else "",
            reason=failure.reason if failure else "",
        )

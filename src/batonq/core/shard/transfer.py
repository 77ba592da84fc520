"""Moving messages out of a queue: returns, dead letters, and the source's side of the protocol between shards.

A message that leaves its queue is `Owed` under the next number of the channel to its destination. It cannot be leased
or deleted until the destination has `Arrived` or refused it and the source has `Settled` the number. Within one shard
the three records are written in one frame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from batonq.core.catalog.names import queue_arn
from batonq.core.commands import Alarm, Entry, Job
from batonq.core.ids import message_id
from batonq.core.payload import Lineage
from batonq.core.records import FORMAT_VERSION, ArrivedFlag, Reason, ReturnedFlag, State, Type
from batonq.core.shard.columns import NIL
from batonq.core.shard.queue_state import QueueState
from batonq.core.shard.replay import Replay
from batonq.core.shard.state import FOREVER_MS, encode_notes
from batonq.core.spread import parse, takes

REFUSED_BACKOFF_MS = 1_000
REFUSED_BACKOFF_MAX_MS = 300_000
JOB_BACKOFF_MAX_MS = 60_000
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


class Transfer(Replay):
    # --- returns and exhausted messages ------------------------------------------------------------

    def _return(
        self,
        slot: int,
        now: int,
        visible_ms: int,
        reason: Reason,
        error_class: str = "",
        text: str = "",
        dead_letter: bool = False,
        charged: bool = True,
    ) -> None:
        """End a lease without a delete. If that failure used up the last attempt, the message is dead-lettered or
        becomes DEAD.

        A return that is not `charged` was no attempt by a consumer, so it never exhausts the message.
        """
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        spent = charged and (dead_letter or (policy.dead_letter_on_failure and self._exhausted(queue, slot)))
        if spent and not policy.dead_letter_queue:
            visible_ms = FOREVER_MS
        w6 = self.frame.put(encode_notes(error_class, text)) if error_class or text else 0
        flags = 0 if charged else int(ReturnedFlag.UNCHARGED)
        position = self._row(
            Type.RETURNED, queue.number, slot, now, until=visible_ms, flags=flags, reason=reason, w6=w6
        )
        self._on_returned(queue, slot, now, visible_ms, reason, position, error_class, text, charged)
        if spent and policy.dead_letter_queue:
            self.owe(slot, self.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.DEAD_LETTER, now)

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
        w4: int | None = None,
        auxiliary: int = 0,
    ) -> int:
        """Write a record about a message, with the words that most such records share; returns its position."""
        columns = self.columns
        return self.frame.add(
            kind | flags << 8 | columns.priority[slot] << 16 | reason << 24 | queue << 32,
            columns.sequence[slot],
            now,
            until,
            columns.epoch[slot] | columns.count[slot] << 32 if w4 is None else w4,
            columns.last[slot],
            w6,
            slot | auxiliary << 32,
        )

    def _exhausted(self, queue: QueueState, slot: int) -> bool:
        """Whether the message has been received as often as it may be in this queue."""
        maximum = self.maxima.get(slot, 0) if self.maxima else 0
        maximum = maximum or queue.policy.max_receives
        if not maximum:
            return False
        free = self.uncharged.get(slot, 0) if self.uncharged else 0
        return self.columns.epoch[slot] - free >= maximum

    def _give_up(self, queue: QueueState, slot: int, now: int) -> None:
        """Dead-letter a VISIBLE message that has no attempt left, or make it DEAD if there is no dead-letter queue."""
        policy = queue.policy
        if policy.dead_letter_queue:
            self.owe(slot, self.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.DEAD_LETTER, now)
            return
        reason = Reason.UNDELIVERABLE
        position = self._row(Type.RETURNED, queue.number, slot, now, until=FOREVER_MS, reason=reason)
        self._on_returned(queue, slot, now, FOREVER_MS, reason, position, "", "")

    def _full(self, queue: QueueState, added_bytes: int, others: int = 0, other_bytes: int = 0) -> str:
        """Why a queue's limits refuse one more message, in addition to `others` that are sent with it; empty if the
        queue has room.
        """
        policy = queue.policy
        messages, size = queue.messages + others, queue.bytes + other_bytes
        if policy.messages_max and messages >= policy.messages_max:
            return f"Queue {policy.name} is full: it holds {messages} messages, its limit."
        if policy.bytes_max and size + added_bytes > policy.bytes_max:
            return f"Queue {policy.name} is full: it holds {size} bytes, and its limit is {policy.bytes_max}."
        return ""

    # --- the source --------------------------------------------------------------------------------

    def dead_letter_shard(self, queue: QueueState, slot: int) -> int:
        """The shard of the dead-letter queue to which this message goes."""
        policy = queue.policy
        return self.place_of(slot, policy.dead_letter_queue, policy.dead_letter_shard, policy.dead_letter_spread)

    def place_of(self, slot: int, to: int, shard: int, spread: str) -> int:
        """The shard of queue `to` that a message of this shard belongs on. In a FIFO queue that is the shard of its
        group, or the first shard that may still have the group. In a standard queue it is this shard, if the queue has
        it, and the next shard of the queue after each refusal.
        """
        if not spread:
            return shard
        there = parse(spread)
        if self.queues[self.columns.queue[slot]].fifo:
            way = there.asked(self.group_of(slot))
            passed = self.passed.get(slot, 0)
            if passed >> 16 != to or passed & 0xFFFF not in way:
                return way[0]
            return way[min(way.index(passed & 0xFFFF) + 1, len(way) - 1)]
        taking = there.taking
        start = taking.index(self.number) if self.number in taking else self.number
        return taking[(start + self.refusals.get(slot, 0)) % len(taking)]

    def _goes_on(self, queue: QueueState, slot: int, shard: int, to: int, reason: int) -> bool:
        """Whether the queue has another shard to ask, after one answered that the message's group has moved."""
        spread = queue.policy.dead_letter_spread
        if reason == Reason.REDRIVE:
            job = self.jobs.active_on(queue.number)
            spread = "" if job is None else job.destination_spread or job.origin_spreads.get(str(to), "")
        return bool(spread) and shard in parse(spread).asked(self.group_of(slot))[:-1]

    def owe(self, slot: int, shard: int, to: int, reason: Reason, now: int) -> None:
        """Start moving a message to queue `to` on `shard`. Within this shard the message arrives or is refused at
        once.
        """
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        channel = self.channels.get(shard)
        number = channel.last + 1 if channel is not None else 1
        lineage = self._lineage(queue, slot, reason, now)
        w6 = self.frame.put(lineage.encode())
        position = self.frame.add(
            Type.OWED | columns.priority[slot] << 16 | reason << 24 | queue.number << 32,
            columns.sequence[slot],
            now,
            shard | number << 16,
            columns.epoch[slot] | columns.count[slot] << 32,
            columns.last[slot],
            w6,
            slot | to << 32,
        )
        self._on_owed(queue, slot, now, shard, number, to, reason, position)
        if shard == self.number:
            verdict = self._move_within(queue, slot, to, reason, w6, now)
            self._settle(shard, [(number, verdict)], now)

    def _lineage(self, queue: QueueState, slot: int, reason: Reason, now: int) -> Lineage:
        """The new part of a message's lineage. The host merges it with the lineage in the payload."""
        columns = self.columns
        own_id = message_id(self.number, columns.sequence[slot])
        failure = self.failures.get(slot)
        moved = {Reason.REDRIVE: "redrive", Reason.EXPIRY_DEAD_LETTER: "expiry"}.get(reason, "dead_letter")
        lineage = Lineage(
            first_queue=queue.number,
            first_arn=queue_arn(queue.policy.tenant, queue.policy.name),
            first_id=own_id,
            first_failure_ms=failure.first_ms if failure else 0,
            last_failure_ms=failure.last_ms if failure else 0,
            attempts=columns.count[slot],
            error_class=failure.error_class if failure else "",
            reason=failure.reason if failure else "",
            moved_ms=now,
            moved=moved,
        )
        if reason == Reason.REDRIVE:
            died_here = State.DEAD in (columns.state[slot], columns.doomed[slot])
            return replace(lineage, attempts=lineage.attempts if died_here else 0, sent_ms=now)
        lineage = replace(
            lineage,
            source_queue=queue.number,
            source_shard=self.number,
            source_arn=lineage.first_arn,
            message_id=own_id,
        )
        return replace(lineage, dedup_id=own_id, sent_ms=now) if queue.fifo else lineage

    def owed_lineage(self, slot: int) -> Lineage:
        """The lineage of an OWED message, computed again, because its Owed record may be older than the Base."""
        queue = self.queues[self.columns.queue[slot]]
        return self._lineage(queue, slot, Reason(self.owed_to[slot][3]), self.columns.until[slot])

    def _move_within(self, queue: QueueState, slot: int, to: int, reason: Reason, w6: int, now: int) -> int:
        columns = self.columns
        target = self.queues.get(to)
        verdict = self._acceptance(target, queue.fifo, columns.extent[slot] >> 32, self.group_of(slot))
        if target is queue and verdict == Reason.REFUSED_FULL:
            verdict = Reason.ACCEPTED  # the message needs no more room than it frees
        number = self.channels[self.number].last
        if verdict != Reason.ACCEPTED or target is None:
            w0 = Type.ARRIVED | (ArrivedFlag.REFUSED | ArrivedFlag.OVERLAY) << 8 | verdict << 24 | to << 32
            self.frame.add(w0, 0, now, 0, 0, slot | number << 32, 0, 0)
            return verdict
        keeps = reason != Reason.REDRIVE and not target.fifo
        sent_ms = columns.sent[slot] if keeps else now
        count = columns.count[slot] if reason != Reason.REDRIVE else 0
        expires_s = self._expiry_s(target, reason, sent_ms, now)
        priority = columns.priority[slot]
        sequence = self.next_sequence
        new = columns.allocate()
        w0 = Type.ARRIVED | ArrivedFlag.OVERLAY << 8 | priority << 16 | reason << 24 | to << 32
        position = self.frame.add(w0, sequence, now, sent_ms, count, slot, w6, new | expires_s << 32)
        self._on_moved(target, new, slot, sequence, now, sent_ms, count, expires_s, priority, position, reason)
        return Reason.ACCEPTED

    @staticmethod
    def _expiry_s(target: QueueState, reason: int, sent_ms: int, now: int) -> int:
        """The expiry of an arriving message. Retention counts from the first send, but from now for a message that
        was dead-lettered because it expired.
        """
        start_ms = now if reason == Reason.EXPIRY_DEAD_LETTER else sent_ms
        return -(-(start_ms + target.policy.retention_ms) // 1000)

    def _acceptance(self, target: QueueState | None, fifo: bool, added_bytes: int, group: int | None = None) -> Reason:
        if target is None or target.closed:
            return Reason.REFUSED_NO_QUEUE
        if target.fifo != fifo:
            return Reason.REFUSED_TYPE
        if self._full(target, added_bytes):
            return Reason.REFUSED_FULL
        if not fifo and not takes(target.policy.spread, self.number):
            return Reason.REFUSED_MOVED
        if group is not None and self.has_moved(target, group):
            return Reason.REFUSED_MOVED
        return Reason.ACCEPTED

    def has_moved(self, queue: QueueState, group: int) -> bool:
        """Whether a FIFO group belongs to another shard since the queue grew. If so, this shard accepts none of its
        messages.

        While this shard still has a message of the group, the group stays here.
        """
        spread = queue.policy.spread
        if not spread or not queue.fifo or parse(spread).of_hash(group) == self.number:
            return False
        return self.lines.find(queue.number, group, 0) == NIL

    def _settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
        """Apply the destination's results: accepted messages are removed here, refused ones return to their queue. A
        refused dead letter is retried after a backoff.
        """
        channel = self.channels[shard]
        columns = self.columns
        for number, verdict in results:
            slot = channel.unsettled.get(number)
            if slot is None:
                continue  # settled before: the destination answered twice
            queue = self.queues[columns.queue[slot]]
            _, _, to, reason = self.owed_to[slot]
            until = now
            goes_on = verdict == Reason.REFUSED_MOVED and self._goes_on(queue, slot, shard, to, reason)
            if goes_on and reason != Reason.REDRIVE:
                until = now + 1
            elif verdict != Reason.ACCEPTED and reason != Reason.REDRIVE:
                tries = min(self.refusals.get(slot, 0), 16)
                until = now + min(REFUSED_BACKOFF_MS << tries, REFUSED_BACKOFF_MAX_MS)
            if verdict != Reason.ACCEPTED and columns.doomed[slot] == State.DEAD:
                until = FOREVER_MS
            position = self._row(
                Type.SETTLED,
                queue.number,
                slot,
                now,
                until=shard | number << 16,
                reason=verdict,
                w4=until,
                auxiliary=reason,
            )
            self._on_settled(queue, slot, now, shard, number, verdict, reason, until, position)
            if verdict == Reason.REFUSED_MOVED:
                self.format = FORMAT_VERSION
            if goes_on and reason == Reason.REDRIVE:
                self._go_back(self.jobs.active_on(queue.number), columns.sequence[slot], now)
            elif verdict != Reason.ACCEPTED and not goes_on:
                self._refused(queue, to, reason, Reason(verdict), columns.sequence[slot], now)
            if queue.closed and not queue.messages:
                self.frame.add(Type.QUEUE_PURGED | queue.number << 32, 0, now, 1, 0, 0, 0, 0)
                self._on_purged(queue, 0, now, True)

    def _refused(self, queue: QueueState, to: int, reason: int, verdict: Reason, sequence: int, now: int) -> None:
        words = {
            Reason.REFUSED_NO_QUEUE: "does not exist",
            Reason.REFUSED_FULL: "is full",
            Reason.REFUSED_TYPE: "is not of the same type (standard or FIFO)",
            Reason.REFUSED_MOVED: "has been moved or has more shards now, so the messages belong on other shards",
        }
        if reason == Reason.REDRIVE:
            job = self.jobs.active_on(queue.number)
            if job is not None and verdict == Reason.REFUSED_FULL:
                self._wait_for_room(job, sequence, to, now)
            elif job is not None:
                why = f"{self._destination_name(job, to)} {words[verdict]}."
                self._set_job(replace(job, state="FAILED", failure=NO_QUEUE, why=why, ended_ms=now), now)
            return
        text = (
            f"The dead-letter queue of {queue.policy.name} {words[verdict]}; its dead letters stay in the source queue."
        )
        self.alarms.append(Alarm(f"dead-letter-refused:{queue.number}", queue.number, text))

    def _go_back(self, job: Job | None, sequence: int, now: int) -> None:
        """Make the job examine this message again."""
        if job is not None and sequence <= job.cursor and job.state != "CANCELLING":
            self.job_place.pop(job.id, None)
            self._set_job(replace(job, cursor=sequence - 1), now)

    def _wait_for_room(self, job: Job, sequence: int, to: int, now: int) -> None:
        """Make the job go back to a message whose destination is full, after an exponential backoff."""
        if job.state != "RUNNING" or job.again_ms > now:
            self._go_back(job, sequence, now)
            return
        self.job_place.pop(job.id, None)
        cursor = min(job.cursor, sequence - 1)
        pause_ms = min(REFUSED_BACKOFF_MS << min(job.tries, 16), JOB_BACKOFF_MAX_MS)
        why = f"{self._destination_name(job, to)} is full; the job continues when there is room."
        again = replace(job, cursor=cursor, blocked=sequence, tries=job.tries + 1, again_ms=now + pause_ms, why=why)
        self._set_job(again, now)

    def _destination_name(self, job: Job, to: int) -> str:
        target = self.queues.get(to)
        name = target.policy.name if target is not None else job.destination_arn.rpartition(":")[2]
        return f"Queue {name}" if name else "The queue that the messages came from"

    def retry_refused(self, now: int, bytes_end: int) -> None:
        """Retry refused transfers whose backoff has ended, if their queue still has a dead-letter queue; otherwise
        the messages become DEAD.

        Stops when the open frame has `bytes_end` bytes. The rest stays due.
        """
        columns = self.columns
        for slot in list(islice(self.doomed_due, self.limits.retries_max)):
            if self.frame.size >= bytes_end:
                return
            del self.doomed_due[slot]
            queue = self.queues[columns.queue[slot]]
            policy = queue.policy
            if policy.dead_letter_queue:
                cause = Reason(columns.doomed[slot])
                self.owe(slot, self.dead_letter_shard(queue, slot), policy.dead_letter_queue, cause, now)
            else:
                reason = Reason.UNDELIVERABLE
                position = self._row(Type.RETURNED, queue.number, slot, now, until=FOREVER_MS, reason=reason)
                self._on_returned(queue, slot, now, FOREVER_MS, reason, position, "", "")

    def unsettled(self) -> dict[int, tuple[int, int]]:
        """Destination shard → (all settled up to, newest entry), for channels with unsettled entries."""
        return {shard: (way.settled, way.last) for shard, way in self.channels.items() if way.unsettled}

    def pending_entries(self, shard: int, after: int, limit: int) -> list[Entry]:
        """Entries that are owed and not settled, in order. The host sends only entries whose frame is committed."""
        channel = self.channels.get(shard)
        entries: list[Entry] = []
        if channel is None:
            return entries
        for number, slot in channel.unsettled.items():
            if number > after:
                _, _, to, reason = self.owed_to[slot]
                entries.append(Entry(shard, number, to, reason, slot, self.columns.sequence[slot]))
                if len(entries) >= limit:
                    break
        return entries

    def _set_job(self, job: Job, now: int) -> None:
        if job.ended_ms and job.listed:
            job = replace(job, selection="")  # the list of ids can be long and is no longer needed
        data = json.dumps(job.values(), separators=(",", ":"), sort_keys=True).encode()
        w6 = self.frame.put(data)
        self.frame.add(Type.JOB_SET | job.source << 32, 0, now, 0, 0, 0, w6, 0)
        self._on_job(data)

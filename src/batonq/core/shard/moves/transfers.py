"""Moving messages out of a queue: the source's side of the protocol between shards.

A message that leaves its queue is `Owed` under the next number of the channel to its destination. It cannot be leased
or deleted until the destination has `Arrived` or refused it and the source has `Settled` the number. Within one shard
the three records are written in one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Alarm, Entry, Job
from batonq.core.ids import message_id
from batonq.core.payload import Lineage
from batonq.core.records import FOREVER_MS, PACING_VERSION, SPREAD_VERSION, ArrivedFlag, Reason, State, Type
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.spread import parse
from batonq.errors import LogCorrupt, QueueDoesNotExist

if TYPE_CHECKING:
    from batonq.core.shard.moves.fanout import FanOut

REFUSED_BACKOFF_MS = 1_000
REFUSED_BACKOFF_MAX_MS = 300_000
JOB_BACKOFF_MAX_MS = 60_000
MAY_CHANGE = (Reason.REFUSED_FULL, Reason.REFUSED_PAUSED)  # refusals after which the same destination is tried again
NO_QUEUE = QueueDoesNotExist.code
NO_LINEAGE = Lineage()  # of a copy of a published message on its way to its queue
_DELAYED, _VISIBLE, _OWED, _DEAD = map(int, (State.DELAYED, State.VISIBLE, State.OWED, State.DEAD))


class Channel:
    """The numbered path from this shard to another: the entries that are owed and not settled yet."""

    __slots__ = ("last", "settled", "unsettled")

    def __init__(self) -> None:
        self.last = 0  # the newest entry's number
        self.settled = 0  # all entries up to this one are settled
        self.unsettled: dict[int, int] = {}  # number → slot, in order


class Transfers:
    def __init__(self, messages: Messages, arrivals: Arrivals, jobs: JobBook) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.arrivals = arrivals
        self.jobs = jobs
        self.channels: dict[int, Channel] = {}
        self.owed_to: dict[int, tuple[int, int, int, int]] = {}  # slot → shard, number, queue, reason
        self.refusals: dict[int, int] = {}  # slot → number of refusals by its destination
        self.passed: dict[int, int] = {}  # slot → shard (16 bits) | queue << 16 that its group has moved from
        messages.notes += (self.owed_to, self.refusals, self.passed)
        self.redriving: dict[int, int] = {}  # queue → number of its messages that a job has in transfer
        self.alarms: list[Alarm] = []  # soft: not replayed
        self.fanout: FanOut  # set by fanout.py

    # --- where a message goes ------------------------------------------------------------------------

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
        fifo = self.queues[self.columns.queue[slot]].fifo
        return self.place(to, shard, spread, fifo, self.messages.group_of(slot) if fifo else 0, self.number, slot)

    def place(
        self,
        to: int,
        shard: int,
        spread: str,
        fifo: bool,
        group: int,
        turn: int,
        slot: int = NIL,
        refusals: int | None = None,
    ) -> int:
        """The same for a message that is not stored here yet, or not in a queue of its destination's type. If this
        shard has nothing of a standard queue, `turn` chooses the first shard. `refusals` are those of this queue, if
        others have refused the message too.
        """
        if not spread:
            return shard
        there = parse(spread)
        if fifo:
            way = there.asked(group)
            passed = self.passed.get(slot, 0)
            if passed >> 16 != to or passed & 0xFFFF not in way:
                return way[0]
            return way[min(way.index(passed & 0xFFFF) + 1, len(way) - 1)]
        taking = there.taking
        start = taking.index(self.number) if self.number in taking else turn
        return taking[(start + (self.refusals.get(slot, 0) if refusals is None else refusals)) % len(taking)]

    def _goes_on(self, queue: QueueState, slot: int, shard: int, to: int, reason: int) -> bool:
        """Whether the queue has another shard to ask, after one answered that the message's group has moved."""
        spread = queue.policy.dead_letter_spread
        if reason == Reason.REDRIVE:
            job = self.jobs.active_on(queue.number)
            spread = "" if job is None else job.destination_spread or job.origin_spreads.get(str(to), "")
        return bool(spread) and shard in parse(spread).asked(self.messages.group_of(slot))[:-1]

    # --- sending -----------------------------------------------------------------------------------------

    def owe(self, slot: int, shard: int, to: int, reason: Reason, now: int) -> None:
        """Start moving a message to queue `to` on `shard`. Within this shard the message arrives or is refused at
        once.
        """
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        channel = self.channels.get(shard)
        number = channel.last + 1 if channel is not None else 1
        lineage = self._lineage(queue, slot, to, reason, now)
        w6 = self.frame.put(lineage.encode()) if lineage is not NO_LINEAGE else 0
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
        self.on_owed(queue, slot, now, shard, number, to, reason, position)
        if shard == self.number:
            verdict = self._move_within(queue, slot, to, reason, w6, now)
            self.settle(shard, [(number, verdict)], now)

    def _lineage(self, queue: QueueState, slot: int, to: int, reason: Reason, now: int) -> Lineage:
        """The new part of a message's lineage. The host merges it with the lineage in the payload."""
        if reason == Reason.FANOUT:
            return self.fanout.lineage(queue, slot, to, now)
        columns = self.columns
        own_id = message_id(self.number, columns.sequence[slot])
        failure = self.messages.failures.get(slot)
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
        _, _, to, reason = self.owed_to[slot]
        return self._lineage(queue, slot, to, Reason(reason), self.columns.until[slot])

    def _move_within(self, queue: QueueState, slot: int, to: int, reason: Reason, w6: int, now: int) -> int:
        columns = self.columns
        target = self.queues.get(to)
        fifo, group = queue.fifo, self.messages.group_of(slot)
        delay_ms = 0
        if reason == Reason.FANOUT:
            fifo, group = self.fanout.facts_of(slot)
            delay_ms = target.policy.delay_ms if target is not None else 0
        verdict = self.arrivals.acceptance(target, fifo, columns.extent[slot] >> 32, group)
        if target is queue and verdict in MAY_CHANGE:
            verdict = Reason.ACCEPTED  # the message is in the queue already, and needs no more room than it frees
        number = self.channels[self.number].last
        if verdict != Reason.ACCEPTED or target is None:
            w0 = Type.ARRIVED | (ArrivedFlag.REFUSED | ArrivedFlag.OVERLAY) << 8 | verdict << 24 | to << 32
            self.frame.add(w0, 0, now, 0, 0, slot | number << 32, 0, 0)
            return verdict
        keeps = reason != Reason.REDRIVE and not target.fifo
        sent_ms = columns.sent[slot] if keeps else now
        count = columns.count[slot] if reason != Reason.REDRIVE else 0
        expires_s = self.arrivals.expiry_s(target, reason, sent_ms, now)
        priority = columns.priority[slot]
        sequence = self.journal.next_sequence
        new = columns.allocate()
        w0 = Type.ARRIVED | ArrivedFlag.OVERLAY << 8 | priority << 16 | reason << 24 | to << 32
        w4 = count | delay_ms << 32
        position = self.frame.add(w0, sequence, now, sent_ms, w4, slot, w6, new | expires_s << 32)
        self.arrivals.on_moved(
            target, new, slot, sequence, now, sent_ms, count, expires_s, priority, position, reason, delay_ms
        )
        return Reason.ACCEPTED

    def unsettled(self) -> dict[int, tuple[int, int]]:
        """Destination shard → (all settled up to, newest entry), for channels with unsettled entries."""
        return {shard: (way.settled, way.last) for shard, way in self.channels.items() if way.unsettled}

    def outgoing(self) -> dict[int, tuple[int, int, list[int]]]:
        """Destination shard → (all settled up to, newest entry, the entries that are not settled)."""
        return {shard: (way.settled, way.last, list(way.unsettled)) for shard, way in self.channels.items()}

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

    def on_owed(
        self, queue: QueueState, slot: int, time: int, shard: int, number: int, to: int, reason: int, position: int
    ) -> None:
        columns = self.columns
        was_dead = columns.state[slot] == _DEAD
        self.messages.leave(queue, slot, time)
        columns.last[slot] = position
        columns.doomed[slot] = _DEAD if was_dead else 0
        self.messages.enter(queue, slot, _OWED, time)
        if self.journal.before_base:
            return
        channel = self.channels.get(shard)
        if channel is None:
            channel = self.channels[shard] = Channel()
        if number != channel.last + 1:
            raise LogCorrupt(f"channel entry {number} to shard {shard} follows {channel.last}")
        channel.last = number
        channel.unsettled[number] = slot
        self.owed_to[slot] = (shard, number, to, int(reason))
        if reason == Reason.REDRIVE:
            self.redriving[queue.number] = self.redriving.get(queue.number, 0) + 1

    # --- the destination's answers -----------------------------------------------------------------------

    def settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
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
            if verdict != Reason.ACCEPTED and reason == Reason.FANOUT:
                until = self.fanout.retry_at(slot, verdict, now)
            if verdict != Reason.ACCEPTED and columns.doomed[slot] == State.DEAD:
                until = FOREVER_MS
            position = self.messages.write(
                Type.SETTLED,
                queue.number,
                slot,
                now,
                until=shard | number << 16,
                reason=verdict,
                w4=until,
                auxiliary=reason,
            )
            self.on_settled(queue, slot, now, shard, number, verdict, reason, until, position)
            if verdict == Reason.REFUSED_MOVED:
                self.journal.use_format(SPREAD_VERSION)
            elif verdict == Reason.REFUSED_PAUSED:
                self.journal.use_format(PACING_VERSION)
            if reason == Reason.FANOUT:
                self.fanout.on_settled(queue, slot, to, Reason(verdict), now)
            elif goes_on and reason == Reason.REDRIVE:
                self._go_back(self.jobs.active_on(queue.number), columns.sequence[slot], now)
            elif verdict != Reason.ACCEPTED and not goes_on:
                self._refused(queue, to, reason, Reason(verdict), columns.sequence[slot], now)
            if queue.closed and not queue.messages:
                self.frame.add(Type.QUEUE_PURGED | queue.number << 32, 0, now, 1, 0, 0, 0, 0)
                self.messages.on_purged(queue, 0, now, True)

    def _refused(self, queue: QueueState, to: int, reason: int, verdict: Reason, sequence: int, now: int) -> None:
        words = {
            Reason.REFUSED_NO_QUEUE: "does not exist",
            Reason.REFUSED_FULL: "is full",
            Reason.REFUSED_PAUSED: "takes no messages, because sends to it are paused",
            Reason.REFUSED_TYPE: "is not of the same type (standard or FIFO)",
            Reason.REFUSED_MOVED: "has been moved or has more shards now, so the messages belong on other shards",
        }
        if reason == Reason.REDRIVE:
            job = self.jobs.active_on(queue.number)
            if job is not None and verdict in MAY_CHANGE:
                self.wait_for_room(job, sequence, to, verdict, now)
            elif job is not None:
                why = f"{self._destination_name(job, to)} {words[verdict]}."
                self.jobs.set(replace(job, state="FAILED", failure=NO_QUEUE, why=why, ended_ms=now), now)
            return
        text = (
            f"The dead-letter queue of {queue.policy.name} {words[verdict]}; its dead letters stay in the source queue."
        )
        self.alarms.append(Alarm(f"dead-letter-refused:{queue.number}", queue.number, text))

    def _go_back(self, job: Job | None, sequence: int, now: int) -> None:
        """Make the job examine this message again."""
        if job is not None and sequence <= job.cursor and job.state != "CANCELLING":
            self.jobs.place.pop(job.id, None)
            self.jobs.set(replace(job, cursor=sequence - 1), now)

    def wait_for_room(self, job: Job, sequence: int, to: int, verdict: Reason, now: int) -> None:
        """Make the job go back to a message whose destination is full or paused, after an exponential backoff."""
        if job.state != "RUNNING" or job.again_ms > now:
            self._go_back(job, sequence, now)
            return
        self.jobs.place.pop(job.id, None)
        cursor = min(job.cursor, sequence - 1)
        pause_ms = min(REFUSED_BACKOFF_MS << min(job.tries, 16), JOB_BACKOFF_MAX_MS)
        name = self._destination_name(job, to)
        if verdict == Reason.REFUSED_PAUSED:
            why = f"Sends to {name[0].lower()}{name[1:]} are paused; the job continues when they are resumed."
        else:
            why = f"{name} is full; the job continues when there is room."
        again = replace(job, cursor=cursor, blocked=sequence, tries=job.tries + 1, again_ms=now + pause_ms, why=why)
        self.jobs.set(again, now)

    def _destination_name(self, job: Job, to: int) -> str:
        target = self.queues.get(to)
        name = target.policy.name if target is not None else job.destination_arn.rpartition(":")[2]
        return f"Queue {name}" if name else "The queue that the messages came from"

    def on_settled(
        self,
        queue: QueueState,
        slot: int,
        time: int,
        shard: int,
        number: int,
        reason: int,
        moved_for: int,
        until: int,
        position: int,
    ) -> None:
        if not self.journal.before_base:
            channel = self.channels[shard]
            del channel.unsettled[number]
            channel.settled = next(iter(channel.unsettled)) - 1 if channel.unsettled else channel.last
            if moved_for == Reason.REDRIVE:
                self.redriving[queue.number] -= 1
                if not self.redriving[queue.number]:
                    del self.redriving[queue.number]
        if reason == Reason.ACCEPTED:
            sequence = self.columns.sequence[slot]
            if shard != self.number:
                self.messages.stored.leave(slot, time)
            self.messages.remove(queue, slot, time)
            queue.moved += 1
            if moved_for == Reason.REDRIVE:
                self.jobs.moved_one(queue.number, sequence)
            elif moved_for != Reason.FANOUT:
                queue.dead_lettered += 1
                if moved_for == Reason.EXPIRY_DEAD_LETTER:
                    queue.expired_messages += 1
                    queue.expired_moved += 1
            return
        self.messages.leave(queue, slot, time)
        _, _, to, _ = self.owed_to.pop(slot, (0, 0, 0, 0))
        if reason == Reason.REFUSED_MOVED:
            self.passed[slot] = shard | to << 16
        self.columns.last[slot] = position
        self.columns.doomed[slot] = 0
        if until == FOREVER_MS:
            self.messages.enter(queue, slot, _DEAD, until)
        elif until <= time:
            self.messages.enter(queue, slot, _VISIBLE, time)
        else:
            if moved_for == Reason.FANOUT and (topic := self.messages.topics.states.get(queue.number)) is not None:
                topic.refused += reason != Reason.REFUSED_MOVED
            if moved_for != Reason.REDRIVE:
                self.columns.doomed[slot] = moved_for
                self.refusals[slot] = self.refusals.get(slot, 0) + 1
            self.messages.enter(queue, slot, _DELAYED, until)

    # --- persistence -------------------------------------------------------------------------------------

    def load(self, facts: dict[str, Any]) -> None:
        self.owed_to.clear()
        self.owed_to.update((slot, (*owed,)) for slot, owed in facts["owed_to"])
        self.channels.clear()
        for shard, last, settled, unsettled in facts["channels"]:
            channel = self.channels[shard] = Channel()
            channel.last, channel.settled, channel.unsettled = last, settled, dict(unsettled)
        self.redriving.clear()
        for slot, (_, _, _, reason) in self.owed_to.items():
            if reason == Reason.REDRIVE:
                number = self.columns.queue[slot]
                self.redriving[number] = self.redriving.get(number, 0) + 1

"""The effect of records about moves: between queues and shards, and by jobs."""

from __future__ import annotations

import json

from batonq.core.commands import Job
from batonq.core.records import Reason, State
from batonq.core.shard.channel_end import Incoming
from batonq.core.shard.columns import COUNT_MAX
from batonq.core.shard.job_book import ACTIVE
from batonq.core.shard.queue_state import QueueState
from batonq.core.shard.state import FOREVER_MS, Channel, ShardState
from batonq.errors import LogCorrupt

_DELAYED, _VISIBLE, _OWED, _DEAD = map(int, (State.DELAYED, State.VISIBLE, State.OWED, State.DEAD))


class MoveRecords(ShardState):
    def _on_owed(
        self, queue: QueueState, slot: int, time: int, shard: int, number: int, to: int, reason: int, position: int
    ) -> None:
        columns = self.columns
        was_dead = columns.state[slot] == _DEAD
        self._leave(queue, slot, time)
        columns.last[slot] = position
        columns.doomed[slot] = _DEAD if was_dead else 0
        self._enter(queue, slot, _OWED, time)
        if self.before_base:
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

    def _on_arrived(
        self,
        queue: QueueState,
        slot: int,
        sequence: int,
        time: int,
        sent_ms: int,
        count: int,
        expires_s: int,
        priority: int,
        group: int,
        position: int,
        w6: int,
    ) -> None:
        self._insert(queue, slot, sequence, position, w6, priority, sent_ms, expires_s)
        self.columns.count[slot] = min(count, COUNT_MAX)
        self._place(queue, slot, group)
        self._enter(queue, slot, _VISIBLE, time)
        queue.arrived += 1

    def _on_settled(
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
        if not self.before_base:
            channel = self.channels[shard]
            del channel.unsettled[number]
            channel.settled = next(iter(channel.unsettled)) - 1 if channel.unsettled else channel.last
            if moved_for == Reason.REDRIVE:
                self.redriving[queue.number] -= 1
                if not self.redriving[queue.number]:
                    del self.redriving[queue.number]
        if reason == Reason.ACCEPTED:
            sequence = self.columns.sequence[slot]
            self._remove(queue, slot, time)
            if moved_for == Reason.REDRIVE:
                job = self.jobs.active_on(queue.number)
                if job is not None:
                    self._moved_one(job, sequence)
            else:
                queue.dead_lettered += 1
                if moved_for == Reason.EXPIRY_DEAD_LETTER:
                    queue.expired_messages += 1
            return
        self._leave(queue, slot, time)
        _, _, to, _ = self.owed_to.pop(slot, (0, 0, 0, 0))
        if reason == Reason.REFUSED_MOVED:
            self.passed[slot] = shard | to << 16
        self.columns.last[slot] = position
        self.columns.doomed[slot] = 0
        if until == FOREVER_MS:
            self._enter(queue, slot, _DEAD, until)
        elif until <= time:
            self._enter(queue, slot, _VISIBLE, time)
        else:
            if moved_for != Reason.REDRIVE:
                self.columns.doomed[slot] = moved_for
                self.refusals[slot] = self.refusals.get(slot, 0) + 1
            self._enter(queue, slot, _DELAYED, until)

    @staticmethod
    def _moved_one(job: Job, sequence: int) -> None:
        job.moved += 1
        if job.tries and sequence == job.blocked:  # the destination has room again
            job.tries = job.blocked = 0
            job.why = ""

    def redriver(self, queue: int) -> int:
        """The key of the newest job on a queue, which is the job that moves messages out of it now."""
        newest = self.jobs.newest_on(queue)
        return newest.key if newest is not None else 0

    def _note_arrival(self, slot: int, reason: int, origin: int, redriven: int, maximum: int) -> None:
        """Store what an arrived message brings along: its origin, the job that moved it, its own maximum of
        receives.
        """
        if reason == Reason.REDRIVE:
            if redriven:
                self.redriven[slot] = redriven
            if maximum:
                self.maxima[slot] = maximum
            return
        if reason == Reason.DEAD_LETTER:
            self._died_again(redriven)
        if maximum:
            self.kept_maxima[slot] = maximum
        if origin:
            self.origins[slot] = origin

    def _on_edited(self, queue: QueueState, slot: int, key: int, position: int, extent: int) -> None:
        """Apply a change of a message by a job. The Edited record holds the whole new payload with its lineage."""
        columns = self.columns
        if not self.before_base:
            queue.bytes += (extent >> 32) - (columns.extent[slot] >> 32)
        columns.position[slot] = columns.last[slot] = position
        columns.extent[slot] = extent
        self.overlays.pop(slot, None)
        self.edited[slot] = key

    def _on_entry(self, source_shard: int, number: int, verdict: int) -> None:
        """Store the verdict on an entry from another shard, for as long as the entry may be sent again."""
        incoming = self.incoming.get(source_shard)
        if incoming is None:
            incoming = self.incoming[source_shard] = Incoming()
        incoming.note(number, verdict)

    def _on_job(self, data: bytes) -> None:
        job = Job.from_values(json.loads(data))
        self._note_format(job.destination_spread or "".join(job.origin_spreads.values()))
        self.jobs.put(job)
        if job.state not in ACTIVE:
            self.job_pace.pop(job.id, None)
            self.job_place.pop(job.id, None)

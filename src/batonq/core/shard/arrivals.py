"""The destination's side of the protocol between shards, its answers at the source, and the jobs that move messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batonq.core.commands import Arrival, Job
from batonq.core.ids import key_hash
from batonq.core.records import Flag, Reason, State, Type
from batonq.core.shard.columns import NIL
from batonq.core.shard.queuestate import QueueState
from batonq.core.shard.replay import skip
from batonq.core.shard.seeking import Seeking
from batonq.core.shard.state import ARRIVED_PREFIX, RUNNING
from batonq.errors import JobConflict, JobNotFound, LogCorrupt, QueueDoesNotExist

JOB_SCAN_MAX = 1_000  # messages looked at in one step
JOB_INTERVAL_MS = 100


class Arrivals(Seeking):
    def settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
        """The destination has answered: (number, verdict) of entries that this shard owed it."""
        self._settle(shard, results, self.begin(now))

    # --- the destination -----------------------------------------------------------------------------

    def cursor(self, shard: int) -> int:
        return self.cursors.get(shard, 0)

    def arrive(self, arrivals: Sequence[Arrival], now: int) -> list[tuple[int, int]]:
        """Take channel entries in order; (number, verdict) of each. One seen before is answered from the cursor."""
        now = self.begin(now)
        results: list[tuple[int, int]] = []
        for arrival in arrivals:
            cursor = self.cursors.get(arrival.source_shard, 0)
            if arrival.number <= cursor:
                # Its verdict was sent before. It cannot have been lost unsettled by the source: only entries that
                # the source still owes are sent again, and the verdict of each is in this shard's log.
                results.append((arrival.number, self._past_verdict(arrival)))
                continue
            if arrival.number != cursor + 1:
                raise LogCorrupt(
                    f"entry {arrival.number} from shard {arrival.source_shard} follows {cursor}: a gap in the channel"
                )
            results.append((arrival.number, self._arrive(arrival, now)))
        return results

    def _past_verdict(self, arrival: Arrival) -> int:
        return self.refused_numbers.get((arrival.source_shard, arrival.number), Reason.ACCEPTED)

    def _arrive(self, arrival: Arrival, now: int) -> int:
        target = self.queues.get(arrival.queue)
        verdict = self._acceptance(target, arrival.fifo, len(arrival.payload))
        w5 = arrival.source_shard | arrival.number << 16
        if verdict != Reason.ACCEPTED or target is None:
            w0 = Type.ARRIVED | Flag.REFUSED << 8 | verdict << 24 | arrival.queue << 32
            self.frame.add(w0, 0, now, 0, 0, w5, 0, 0)
            self._on_refused(arrival.source_shard, arrival.number, verdict)
            return verdict
        tenant = key_hash(arrival.group) if arrival.group else 0
        redriven = arrival.reason == Reason.REDRIVE
        sent_ms = now if redriven or target.fifo else arrival.sent_ms
        count = 0 if redriven else arrival.receive_count
        expires_s = self._expiry_s(target, arrival.reason, sent_ms, now)
        w6 = self.frame.put(ARRIVED_PREFIX.pack(tenant, arrival.origin) + arrival.payload)
        sequence = self.next_sequence
        slot = self.columns.allocate()
        w0 = Type.ARRIVED | arrival.priority << 16 | arrival.reason << 24 | arrival.queue << 32
        position = self.frame.add(w0, sequence, now, sent_ms, count, w5, w6, slot | expires_s << 32)
        self.cursors[arrival.source_shard] = arrival.number
        self._on_arrived(
            target,
            slot,
            sequence,
            now,
            sent_ms,
            count,
            expires_s,
            arrival.priority,
            tenant,
            position,
            skip(w6, ARRIVED_PREFIX.size),
        )
        if arrival.origin:
            self.origins[slot] = arrival.origin
        return Reason.ACCEPTED

    # --- jobs ------------------------------------------------------------------------------------------

    def start_job(self, job: Job, now: int) -> Job:
        """Start moving the messages that a dead-letter queue has now, or those that died in another queue."""
        now = self.begin(now)
        queue = self.queues.get(job.source)
        if queue is None or queue.closed:
            raise QueueDoesNotExist()
        if any(other.source == job.source and other.state in RUNNING for other in self.jobs.values()):
            raise JobConflict()
        job = replace(
            job,
            state="RUNNING",
            started_ms=now,
            to_move=queue.dead if job.only_dead else queue.messages,
            through_sequence=self.next_sequence - 1,
            moved=0,
        )
        self._set_job(job, now)
        return job

    def cancel_job(self, job_id: str, now: int) -> Job:
        job = self.jobs.get(job_id)
        if job is None or job.state != "RUNNING":
            raise JobNotFound("There is no running job of this id.")
        self._set_job(replace(job, state="CANCELLING"), self.begin(now))
        return self.jobs[job_id]

    def step_jobs(self, now: int) -> int | None:
        """Move what the rates of the running jobs allow by now. Returns when to call again; None: nothing runs."""
        now = self.begin(now)
        again: int | None = None
        for job in [job for job in self.jobs.values() if job.state in RUNNING]:
            queue = self.queues.get(job.source)
            if job.state == "CANCELLING":
                if not self._outstanding(job):
                    self._set_job(replace(self.jobs[job.id], state="CANCELLED"), now)
                else:
                    again = now + JOB_INTERVAL_MS
                continue
            if queue is None or queue.closed:
                failure = "AWS.SimpleQueueService.NonExistentQueue"
                self._set_job(replace(self.jobs[job.id], state="FAILED", failure=failure), now)
                continue
            last_ms, credit = self.job_pace.get(job.id, (now, 1.0))
            credit = min(credit + (now - last_ms) * job.rate_per_s / 1000, max(1.0, job.rate_per_s / 2))
            more, used = self._step_job(job, queue, int(credit), now)
            self.job_pace[job.id] = (now, credit - used)
            current = self.jobs[job.id]
            if current.state != "RUNNING":
                continue
            if not more and not self._outstanding(job):
                self._set_job(replace(current, state="COMPLETED"), now)
            else:
                again = now + JOB_INTERVAL_MS
        return again

    def _outstanding(self, job: Job) -> bool:
        """Is anything that the job moves still on its way?"""
        queue = self.columns.queue
        return any(queue[slot] == job.source and owed[3] == Reason.REDRIVE for slot, owed in self.owed_to.items())

    def _step_job(self, job: Job, queue: QueueState, credit: int, now: int) -> tuple[bool, int]:
        """(is there more to look at, how many were moved). Leased and delayed messages are passed over."""
        columns = self.columns
        slot, sequence = self.job_cursor.get(job.id, (NIL, 0))
        if not self.stands(queue, slot, sequence):
            slot = self.near(queue, sequence)
        movable = (State.DEAD,) if job.only_dead else (State.VISIBLE, State.DEAD)
        used = 0
        for _ in range(JOB_SCAN_MAX):
            if slot == NIL or columns.sequence[slot] > job.through_sequence or (job.only_dead and not queue.dead):
                return False, used
            following = columns.queue_next[slot]
            if columns.state[slot] in movable:
                if used >= credit:
                    break
                used += self._redrive(job, slot, now)
                if self.jobs[job.id].state != "RUNNING":
                    return False, used
            slot = following
        if slot != NIL:
            self.job_cursor[job.id] = (slot, columns.sequence[slot])
        return True, used

    def _redrive(self, job: Job, slot: int, now: int) -> int:
        """Owe one message to the job's destination, or to where it came from.

        One that came from nowhere begins anew in its own queue when it died there, and stays otherwise.
        """
        shard, to = job.destination_shard, job.destination
        if not to:
            origin = self.origins.get(slot, 0)
            shard, to = origin >> 32, origin & 0xFFFFFFFF
        if not to and self.columns.state[slot] == State.DEAD:
            shard, to = self.number, job.source
        if not to:
            return 0
        self.owe(slot, shard, to, Reason.REDRIVE, now)
        return 1

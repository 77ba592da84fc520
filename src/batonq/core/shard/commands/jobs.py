"""Jobs: long pieces of work that move, delete or replay messages, with a rate and progress. After a restart a job
continues from the log alone. replay_jobs.py has what is special about replays.

A job goes through its queue in arrival order, up to the newest message at its start. A job without a selection moves
every message, and the core chooses. For a job with a filter, a list of ids or an edit, node/ chooses, because it can
read bodies. node/ calls `choose` with the number of examined messages, the messages to move and their new payloads. In
both cases `JobSet` records hold the job's position, and `Edited`, `Owed` and `Deleted` records hold what was changed,
moved and deleted.

If a destination is full, the job waits and reports it, and continues when there is room. If too large a share of its
messages is dead-lettered again, the job pauses itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum

from batonq.core.commands import Chosen, Job
from batonq.core.ids import key_hash
from batonq.core.limits import STEP_BYTES_MAX, ShardLimits
from batonq.core.records import Reason, State
from batonq.core.shard.commands.operator import OperatorCommands
from batonq.core.shard.commands.replay_jobs import Replayed, ReplayJobs
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.transfers import MAY_CHANGE, NO_QUEUE, Transfers
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.job_book import DELETE, REPLAY, JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_search import QueueSearch
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import JobConflict, JobNotFound, NotRetained, QueueDoesNotExist

INTERVAL_MS = 100
SOON_MS = 1  # until the next step, after one that reached its limits
RAMP_BEGINS_AT = 0.1  # share of the rate
DYING_SAMPLE = 10  # moved messages below which the share that died again is not judged
DYING_WINDOW = 500  # moved messages after which older ones no longer count


class Outcome(Enum):
    MOVED = "moved"
    STAYS = "stays"  # it has no origin to return to
    FULL = "full"
    FAILED = "failed"


class Budget:
    """The scans and moves that one step may still do."""

    __slots__ = ("moves", "scans")

    def __init__(self, limits: ShardLimits) -> None:
        self.scans = limits.job_scans_max
        self.moves = limits.job_moves_max

    @property
    def over(self) -> bool:
        return self.scans <= 0 or self.moves <= 0


class JobCommands:
    def __init__(
        self,
        messages: Messages,
        expiry: Expiry,
        search: QueueSearch,
        arrivals: Arrivals,
        transfers: Transfers,
        jobs: JobBook,
        operator: OperatorCommands,
    ) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.expiry = expiry
        self.search = search
        self.arrivals = arrivals
        self.transfers = transfers
        self.jobs = jobs
        self.operator = operator
        self.replays = ReplayJobs(jobs)
        # soft: not replayed
        self.turn = 0  # the running job with which the next step begins
        self.to_examine: dict[str, int] = {}  # job → number of messages that node/ may choose for it

    # --- requests ----------------------------------------------------------------------------------------

    def start_job(self, job: Job, now: int) -> Job:
        """Start moving the messages that are now in a dead-letter queue, or the DEAD messages of another queue; or
        start a replay of retained messages.
        """
        now = self.expiry.begin(now)
        queue = self.queues.get(job.source)
        if queue is None or queue.closed:
            raise QueueDoesNotExist()
        self.jobs.require_none_on(job.source)
        if job.kind == REPLAY:
            if queue.retained is None:
                raise NotRetained
            queue.retained.end_old(now)
            return self.replays.start(job, queue.retained, now)
        if self.transfers.redriving.get(job.source):  # they must not be counted as moved by this job
            raise JobConflict("Messages of this queue are still being moved. Retry in a moment.")
        job = replace(
            job,
            key=key_hash(job.id),
            state="RUNNING",
            started_ms=now,
            resumed_ms=now,
            to_move=job.listed or (queue.dead if job.only_dead else queue.messages),
            through_sequence=self.journal.next_sequence - 1,
            moved=0,
        )
        self.jobs.set(job, now)
        return self.jobs[job.id]

    def cancel_job(self, job_id: str, now: int) -> Job:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("RUNNING", "PAUSED"):
            raise JobNotFound("There is no running job with this id.")
        self.jobs.set(replace(job, state="CANCELLING"), self.expiry.begin(now))
        return self.jobs[job_id]

    def pause_job(self, job_id: str, why: str, now: int) -> Job:
        """Pause a job. Messages in transfer still arrive; `resume_job` continues from there."""
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("RUNNING", "PAUSED"):
            raise JobNotFound("There is no running job with this id.")
        if job.state == "RUNNING":
            self.jobs.set(replace(job, state="PAUSED", why=why, tries=0, again_ms=0), self.expiry.begin(now))
        return self.jobs[job_id]

    def resume_job(self, job_id: str, now: int) -> Job:
        """Resume a job, with its ramp from the start. Messages that died before no longer count."""
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("RUNNING", "PAUSED"):
            raise JobNotFound("There is no paused job with this id.")
        if job.state == "PAUSED":
            now = self.expiry.begin(now)
            moved, died = job.moved, job.died_again
            marked = replace(job, mark_moved=moved, mark_died=died, next_moved=moved, next_died=died)
            self.jobs.set(replace(marked, state="RUNNING", why="", resumed_ms=now), now)
        return self.jobs[job_id]

    def fail_job(self, job_id: str, why: str, now: int) -> None:
        """Fail a job that node/ found to be impossible as requested."""
        job = self.jobs.get(job_id)
        if job is not None and job.state == "RUNNING":
            now = self.expiry.begin(now)
            self.jobs.set(replace(job, state="FAILED", why=why, ended_ms=now), now)

    # --- a step ----------------------------------------------------------------------------------------

    def step_jobs(self, now: int, busy: Collection[str] = ()) -> int | None:
        """Move as many messages as the rates of the running jobs allow by now. A job whose source was deleted fails,
        also if it is paused. Returns when to call again; None if no job runs. `busy` are jobs that node/ is working
        for: a replay among them is not cancelled before its progress is recorded.

        Afterwards `to_examine` holds the jobs that wait for node/ to choose messages, and how many it may choose for
        each.
        """
        now = self.expiry.begin(now)
        self.to_examine.clear()
        active = [self.jobs[job_id] for job_id in self.jobs.active]
        running = [job for job in active if job.state != "PAUSED" or self._is_gone(job.source)]
        if not running:
            return None
        self.turn += 1
        first = self.turn % len(running)
        budget = Budget(self.journal.limits)
        bytes_end = self.frame.size + STEP_BYTES_MAX
        due: list[int | None] = []
        for at, job in enumerate(running[first:] + running[:first]):
            if self.frame.size >= bytes_end:
                self.turn += at - 1  # the next step begins with this job
                due.append(now + SOON_MS)
                break
            if job.id in busy and job.kind == REPLAY and job.state == "CANCELLING":
                due.append(now + INTERVAL_MS)
            else:
                due.append(self._step(job, now, budget))
        return min((at for at in due if at is not None), default=None)

    def _is_gone(self, number: int) -> bool:
        queue = self.queues.get(number)
        return queue is None or queue.closed

    def _step(self, job: Job, now: int, budget: Budget) -> int | None:
        outstanding = self.transfers.redriving.get(job.source, 0)
        if job.state == "CANCELLING":
            if outstanding:
                return now + INTERVAL_MS
            self.jobs.set(replace(job, state="CANCELLED", why="", ended_ms=now), now)
            return None
        queue = self.queues.get(job.source)
        if queue is None or self._is_gone(job.source):
            why = "The source queue was deleted."
            self.jobs.set(replace(job, state="FAILED", failure=NO_QUEUE, why=why, ended_ms=now), now)
            return None
        if self._pauses(job, now):
            return None
        if job.again_ms > now:
            return job.again_ms
        left = job.max_messages - job.moved - outstanding if job.max_messages else 1 << 60
        credit = min(self._credit(job, now), left)
        if job.cursor < job.through_sequence and left > 0:
            if not job.selection:
                self._take_all(job, queue, credit, now, budget)
            elif credit > 0:
                self.to_examine[job.id] = credit
        job = self.jobs[job.id]
        if job.state != "RUNNING":
            return None
        outstanding = self.transfers.redriving.get(job.source, 0)
        through = job.cursor >= job.through_sequence or (job.max_messages and job.moved >= job.max_messages)
        if through and not outstanding:
            job = self.replays.completed(job) if job.kind == REPLAY else job
            self.jobs.set(replace(job, state="COMPLETED", why="", ended_ms=now), now)
            return None
        if job.again_ms > now:
            return job.again_ms
        return now + (SOON_MS if budget.over and not through else INTERVAL_MS)

    def job_rate(self, job: Job, now: int) -> float:
        """Messages per second that the job may move now. During the ramp that is less than its rate."""
        passed = now - job.resumed_ms
        rate = job.rate_per_s * job.share
        if passed >= job.ramp_ms:
            return rate
        return max(job.share, rate * max(RAMP_BEGINS_AT, passed / job.ramp_ms))

    def _credit(self, job: Job, now: int) -> int:
        last_ms, credit = self.jobs.pace.get(job.id, (now, job.share))
        rate = self.job_rate(job, now)
        credit = min(credit + (now - last_ms) * rate / 1000, max(1.0, rate / 2))
        self.jobs.pace[job.id] = (now, credit)
        return int(credit)

    def _pauses(self, job: Job, now: int) -> bool:
        """Pause the job if too many of the messages that it moved last were dead-lettered again; returns whether it
        did.
        """
        if job.pause_share >= 1:
            return False
        moved, died = job.moved - job.mark_moved, job.died_again - job.mark_died
        if moved >= (DYING_SAMPLE if job.pause_share else 1) and died > job.pause_share * moved:
            why = (
                f"Too many moved messages were dead-lettered again: {died} of the last {moved}. Find out why they "
                "fail, then resume or cancel the job."
            )
            self.jobs.set(replace(job, state="PAUSED", why=why, tries=0, again_ms=0), now)
            return True
        if job.moved - job.next_moved >= DYING_WINDOW:
            job = replace(job, mark_moved=job.next_moved, mark_died=job.next_died)
            self.jobs.set(replace(job, next_moved=job.moved, next_died=job.died_again), now)
        return False

    # --- choosing --------------------------------------------------------------------------------------

    def _take_all(self, job: Job, queue: QueueState, credit: int, now: int, budget: Budget) -> None:
        """Move every message that can be moved, in order. Leased and delayed messages are skipped."""
        columns = self.columns
        slot, sequence = self.jobs.place.get(job.id, (NIL, 0))
        if not self.search.stands(queue, slot, sequence):
            slot = self.search.near(queue, job.cursor)
        elif sequence < job.cursor:  # the job went back; a step may end before it reaches its cursor again
            nearer = self.search.near(queue, job.cursor)
            slot = nearer if sequence < columns.sequence[nearer] <= job.cursor else slot
        movable = movable_states(job)
        cursor, seen, used = job.cursor, job.seen, 0
        examined, matched = job.examined, job.matched
        while budget.scans > 0:
            budget.scans -= 1
            if slot == NIL or columns.sequence[slot] > job.through_sequence or (job.only_dead and not queue.dead):
                cursor = job.through_sequence
                break
            sequence = columns.sequence[slot]
            following = columns.queue_next[slot]
            if sequence > cursor:
                if columns.state[slot] in movable:
                    if used >= credit or budget.moves <= 0:
                        break
                    outcome = self._redrive(job, slot, None, now)
                    if outcome is Outcome.FULL or outcome is Outcome.FAILED:
                        break
                    used += outcome is Outcome.MOVED
                    budget.moves -= outcome is Outcome.MOVED
                    matched += outcome is Outcome.MOVED and sequence > seen
                if sequence > seen:
                    examined += 1
                    seen = sequence
                cursor = sequence
            slot = following
        if slot != NIL and job.id in self.jobs.active:
            self.jobs.place[job.id] = (slot, columns.sequence[slot])
        self.jobs.spend(job.id, used, now)
        self._progress(job, cursor, seen, examined, matched, now)

    def choose(
        self,
        job_id: str,
        cursor: int,
        examined: int,
        through: int,
        chosen: Sequence[Chosen],
        now: int,
        not_found: int = 0,
    ) -> int:
        """Apply the choice of node/, which examined `examined` messages that are new to the job, after `cursor` and
        up to `through`.

        For a job with a list of ids, `not_found` of the ids no longer exist.

        Chosen messages that still exist and can be moved are moved. If the job has gone back meanwhile because a
        message was refused, the choice is dropped and node/ examines messages from there. Returns when to call
        `step_jobs` again.
        """
        now = self.expiry.begin(now)
        job = self.jobs.get(job_id)
        queue = self.queues.get(job.source) if job is not None else None
        if job is None or job.state != "RUNNING" or job.cursor != cursor or queue is None or queue.closed:
            return now
        movable = movable_states(job)
        matched, seen, used = job.matched, job.seen, 0
        for found in chosen:
            if (
                not self.search.stands(queue, found.slot, found.sequence)
                or self.columns.state[found.slot] not in movable
            ):
                continue
            outcome = self._act(job, queue, found, now)
            if outcome is Outcome.FULL or outcome is Outcome.FAILED:
                # A message counts as examined only once, even if the job comes back to it.
                examined = found.examined - (found.sequence > seen)
                not_found, through = found.not_found, found.sequence - 1
                break
            used += outcome is Outcome.MOVED
            matched += outcome is Outcome.MOVED and found.sequence > seen
        self.jobs.spend(job.id, used, now)
        examined, not_found = job.examined + examined, job.not_found + not_found
        deleted = used if job.kind == DELETE else 0
        self._progress(job, through, max(seen, through), examined, matched, now, not_found, deleted)
        return now + SOON_MS

    def replayed(self, job_id: str, cursor: int, done: Replayed, now: int) -> int:
        """Record what node/ has sent for a replay from `cursor` on. Returns when to call `step_jobs` again."""
        now = self.expiry.begin(now)
        self.replays.advance(job_id, cursor, done, now)
        return now + SOON_MS

    def _act(self, job: Job, queue: QueueState, found: Chosen, now: int) -> Outcome:
        if job.kind == DELETE:
            self.operator.delete(queue, found.slot, now)
            return Outcome.MOVED
        return self._redrive(job, found.slot, found.payload, now)

    def _progress(
        self,
        job: Job,
        cursor: int,
        seen: int,
        examined: int,
        matched: int,
        now: int,
        not_found: int = 0,
        deleted: int = 0,
    ) -> None:
        """Record how far the job is, unless it has stopped running meanwhile."""
        job = self.jobs[job.id]
        if job.state == "RUNNING" and (cursor, examined, matched) != (job.cursor, job.examined, job.matched):
            job = replace(job, cursor=cursor, seen=seen, examined=examined, matched=matched, not_found=not_found)
            self.jobs.set(replace(job, moved=job.moved + deleted), now)

    def _redrive(self, job: Job, slot: int, payload: bytes | None, now: int) -> Outcome:
        """Move one message to the job's destination, or to its origin, with `payload` as its new content if given.

        A message without an origin restarts in its own queue if it died there; otherwise it stays.
        """
        columns = self.columns
        queue = self.queues[job.source]
        to = job.destination
        shard = self.transfers.place_of(slot, to, job.destination_shard, job.destination_spread)
        if not to:
            origin = self.messages.origins.get(slot, 0)
            shard, to = origin >> 32, origin & 0xFFFFFFFF
            shard = self.transfers.place_of(slot, to, shard, job.origin_spreads.get(str(to), ""))
        if not to and columns.state[slot] == State.DEAD:
            to = job.source  # a FIFO group stays on this shard while it has a message here
            shard = self.number if queue.fifo else self.transfers.place_of(slot, to, self.number, queue.policy.spread)
        if not to:
            return Outcome.STAYS
        if shard == self.number and to != job.source:
            size = columns.extent[slot] >> 32 if payload is None else len(payload)
            verdict = self.arrivals.acceptance(self.queues.get(to), queue.fifo, size)
            if verdict in MAY_CHANGE:
                self.transfers.wait_for_room(self.jobs[job.id], columns.sequence[slot], to, verdict, now)
                return Outcome.FULL
        if payload is not None:
            self.operator.edit(queue, slot, payload, job.key, now)
        self.transfers.owe(slot, shard, to, Reason.REDRIVE, now)
        if self.jobs[job.id].state != "RUNNING":
            return Outcome.FAILED
        if (
            self.transfers.passed
            and self.transfers.passed.get(slot) == shard | to << 16
            and columns.state[slot] != State.OWED
        ):
            return self._redrive(job, slot, None, now)  # that shard refused the moved group: try the next shard
        return Outcome.MOVED


def movable_states(job: Job) -> tuple[State, ...]:
    if job.kind == DELETE:
        return (State.VISIBLE, State.DELAYED, State.DEAD)
    return (State.DEAD,) if job.only_dead else (State.VISIBLE, State.DEAD)

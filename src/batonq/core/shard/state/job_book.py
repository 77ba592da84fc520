"""A shard's jobs, found by id, by queue and by key. Each queue keeps the last few jobs that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from batonq.core.commands import Job
from batonq.core.records import DELETING_VERSION, REPLAYING_VERSION, Type
from batonq.core.shard.state.journal import Journal
from batonq.errors import JobConflict

DELETE = "delete"  # the kind of a job that deletes messages
REPLAY = "replay"  # the kind of a job that sends retained messages again
ACTIVE = ("RUNNING", "PAUSED", "CANCELLING")  # states of a job that has not ended
KEPT_MAX = 10  # ended jobs kept per queue
# Ended jobs kept in total, because queues come and go. Active jobs do not count, so that a book loads unchanged.
TOTAL_MAX = 10_000
_UNTIL_THEN = {
    "RUNNING": "is running on this queue. Cancel it, or wait until it finishes.",
    "PAUSED": "is paused on this queue. Resume or cancel it first.",
    "CANCELLING": "is being cancelled on this queue. Retry in a moment.",
}


class JobBook(dict[str, Job]):
    """Jobs by id, oldest first."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self.active: dict[str, None] = {}  # ids of the jobs that have not ended
        self._of_queue: dict[int, list[str]] = {}  # oldest first; only the newest can be active
        self._by_key: dict[int, str] = {}
        # soft: not replayed
        self.pace: dict[str, tuple[int, float]] = {}  # job → time of its last step, messages it may move
        self.place: dict[str, tuple[int, int]] = {}  # job → slot and sequence to continue from

    def set(self, job: Job, now: int) -> None:
        """Record the new state of a job."""
        if job.ended_ms and job.listed:
            job = replace(job, selection="")  # the list of ids can be long and is no longer needed
        data = json.dumps(job.values(), separators=(",", ":"), sort_keys=True).encode()
        frame = self._journal.frame
        frame.add(Type.JOB_SET | job.source << 32, 0, now, 0, 0, 0, frame.put(data), 0)
        self.on_job(json.loads(data))

    def on_job(self, values: dict[str, Any]) -> None:
        job = Job.from_values(values)
        self._journal.note_format(job.destination_spread or "".join(job.origin_spreads.values()))
        if job.kind == DELETE:
            self._journal.use_format(DELETING_VERSION)
        elif job.kind == REPLAY:
            self._journal.use_format(REPLAYING_VERSION)
        self.put(job)
        if job.state not in ACTIVE:
            self.pace.pop(job.id, None)
            self.place.pop(job.id, None)

    def load(self, jobs: Iterable[dict[str, Any]]) -> None:
        for table in (self, self.active, self._of_queue, self._by_key):
            table.clear()
        for values in jobs:
            self.on_job(values)

    def put(self, job: Job) -> None:
        """Add or replace a job. If the job has ended, older ended jobs beyond the limits are dropped."""
        known = self._of_queue.setdefault(job.source, [])
        if job.id not in self:
            known.append(job.id)
            self._by_key[job.key] = job.id
        self[job.id] = job
        if job.state in ACTIVE:
            self.active[job.id] = None
            return
        self.active.pop(job.id, None)
        forgotten = [other for other in known if other not in self.active][:-KEPT_MAX]
        if len(self) - len(self.active) - len(forgotten) > TOTAL_MAX:
            kept = {job.id, *forgotten, *self.active}
            forgotten += islice((other for other in self if other not in kept), 1)
        for other in forgotten:
            self._forget(self.pop(other))

    def _forget(self, job: Job) -> None:
        self._by_key.pop(job.key, None)
        known = self._of_queue[job.source]
        known.remove(job.id)
        if not known:
            del self._of_queue[job.source]

    def newest_on(self, queue: int) -> Job | None:
        known = self._of_queue.get(queue)
        return self[known[-1]] if known else None

    def active_on(self, queue: int) -> Job | None:
        newest = self.newest_on(queue)
        return newest if newest is not None and newest.state in ACTIVE else None

    def require_none_on(self, queue: int) -> None:
        """Raises JobConflict, which names the job that has not ended and says what to do."""
        job = self.active_on(queue)
        if job is not None:
            raise JobConflict(f"Job {job.id} {_UNTIL_THEN[job.state]}")

    def of_key(self, key: int) -> Job | None:
        job_id = self._by_key.get(key) if key else None
        return self[job_id] if job_id is not None else None

    def redriver(self, queue: int) -> int:
        """The key of the job that moves messages out of a queue now; 0 if there is none."""
        active = self.active_on(queue)
        return active.key if active is not None else 0

    def died_again(self, key: int) -> None:
        """Count a message that a job had moved, and that is dead again."""
        job = self.of_key(key)
        if job is not None:
            job.died_again += 1

    def moved_one(self, queue: int, sequence: int) -> None:
        """Count a message that the active job of a queue has moved."""
        job = self.active_on(queue)
        if job is None:
            return
        job.moved += 1
        if job.tries and sequence == job.blocked:  # the destination has room again
            job.tries = job.blocked = 0
            job.why = ""

    def spend(self, job_id: str, count: int, now: int) -> None:
        """Take messages off what an active job may move now."""
        if job_id in self.active:
            last_ms, credit = self.pace.get(job_id, (now, 1.0))
            self.pace[job_id] = (last_ms, credit - count)

    def validate(self) -> None:
        assert set(self.active) == {job.id for job in self.values() if job.state in ACTIVE}, "an active job is lost"
        assert sum(map(len, self._of_queue.values())) == len(self), "a job is not found by its queue"
        for queue, known in self._of_queue.items():
            assert all(self[job_id].source == queue for job_id in known), "a job is found by another queue"
            assert all(job_id not in self.active for job_id in known[:-1]), "two jobs work on one queue"
        for job in self.values():
            assert self.of_key(job.key) is job, "a job is not found by its key"
            assert job.matched + job.not_found <= job.examined, "a job chose more messages than it looked at"
            assert not job.listed or job.examined <= job.listed, "a job looked at more messages than it was given"
            assert job.cursor <= max(job.seen, job.through_sequence), "a job is further than it looked"
            assert not job.max_messages or job.moved <= job.max_messages, "a job moved more than it was to"

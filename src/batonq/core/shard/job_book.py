"""A shard's jobs, found by id, by queue and by key. Each queue keeps the last few jobs that have ended."""

from __future__ import annotations

from itertools import islice

from batonq.core.commands import Job

ACTIVE = ("RUNNING", "PAUSED", "CANCELLING")  # states of a job that has not ended
KEPT_MAX = 10  # ended jobs kept per queue
# Ended jobs kept in total, because queues come and go. Active jobs do not count, so that a book loads unchanged.
TOTAL_MAX = 10_000


class JobBook(dict[str, Job]):
    """Jobs by id, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.active: dict[str, None] = {}  # ids of the jobs that have not ended
        self._of_queue: dict[int, list[str]] = {}  # oldest first; only the newest can be active
        self._by_key: dict[int, str] = {}

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

    def of_key(self, key: int) -> Job | None:
        job_id = self._by_key.get(key) if key else None
        return self[job_id] if job_id is not None else None

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

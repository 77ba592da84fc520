"""Runs a shard's jobs: at their rates, no faster than the channels accept, with messages selected for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from batonq.core.commands import Job
from batonq.core.shard.commands.replay_jobs import Replayed
from batonq.core.shard.state.job_book import REPLAY
from batonq.errors import BatonError
from batonq.log.interface import Room
from batonq.node import events
from batonq.node.jobs.redrive_filter import EditImpossible
from batonq.node.jobs.redrive_scan import CHOSEN_MAX, Examined, Served, examine
from batonq.node.shard_host.group_commit import GroupCommit

RETRY_MS = 100

Replay = Callable[[Job, int], Awaitable[Replayed]]  # a job, and how many messages it may send; see replay_scan.py


class ReplayImpossible(Exception):
    """A message cannot be replayed until somebody changes something; the text says what."""


class Host(Served, Protocol):
    """The host whose jobs these are."""

    commit: GroupCommit

    def admit(self, *, adds: bool = False) -> int: ...
    def run(self, command: Callable[..., Any], *arguments: Any) -> Any: ...
    def due_changed(self) -> None:
        """Called when work may be due earlier than before."""


class JobRunner:
    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, owed_max: int) -> None:
        self.due_ms: int | None = None  # when `step` should be called
        self._host = host
        self._loop = loop
        self._owed_max = owed_max
        self._examining: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, int] = {}  # job → when its next messages may be examined
        self.replay: Replay | None = None  # sends the next messages of a replay; set by the broker

    def begin(self, now_ms: int) -> None:
        """Resume the jobs in the log. Called when the shard is served."""
        if self._host.shard.jobs:
            self.due_ms = now_ms

    def queue_closed(self, now_ms: int) -> None:
        """End the jobs of a queue that was deleted, also those that are paused."""
        if self._host.shard.jobs.active:
            self.due_ms = now_ms
            self._host.due_changed()

    def end(self) -> None:
        self.due_ms = None
        for task in self._examining.values():
            task.cancel()

    def step(self, now_ms: int) -> None:
        """Move what the rates allow. If a channel is behind, its destination sets the pace."""
        host = self._host
        shard = host.shard
        behind = any(owed - settled > self._owed_max for settled, owed in shard.unsettled().values())
        if behind or host.log.room() is not Room.PLENTY:
            self.due_ms = now_ms + RETRY_MS
            return
        self.due_ms = host.run(shard.step_jobs, now_ms, self._examining.keys())
        for job_id, most in shard.to_examine.items():
            if job_id not in self._examining and self._rests.get(job_id, 0) <= now_ms:
                self._rests.pop(job_id, None)
                task = self._loop.create_task(self._examine(job_id, most))
                self._examining[job_id] = task
                task.add_done_callback(partial(self._examined, job_id))

    # --- requests about jobs ------------------------------------------------------------------

    def start(self, job: Job) -> Job:
        host = self._host
        now_ms = host.admit(adds=True)
        return self._then(now_ms, host.run(host.shard.start_job, job, now_ms))

    def cancel(self, job_id: str) -> Job:
        now_ms = self._host.admit()
        return self._then(now_ms, self._host.run(self._host.shard.cancel_job, job_id, now_ms))

    def pause(self, job_id: str, why: str) -> Job:
        now_ms = self._host.admit()
        return self._then(now_ms, self._host.run(self._host.shard.pause_job, job_id, why, now_ms))

    def resume(self, job_id: str) -> Job:
        now_ms = self._host.admit()
        return self._then(now_ms, self._host.run(self._host.shard.resume_job, job_id, now_ms))

    def _then(self, now_ms: int, job: Job) -> Job:
        self.due_ms = now_ms
        self._host.due_changed()
        return job

    # --- selecting messages -------------------------------------------------------------------

    async def _examine(self, job_id: str, most: int) -> None:
        host = self._host
        job = host.shard.jobs[job_id]
        if job.kind == REPLAY:
            await self._replay(job, most)
            return
        cursor = job.cursor
        began_s = self._loop.time()
        try:
            found: Examined = await examine(host, job, min(most, CHOSEN_MAX))
            now_ms = host.admit()
            due_ms: int = host.run(
                host.shard.choose, job_id, cursor, found.new, found.through, found.chosen, now_ms, found.not_found
            )
            # Half of the time is left to other requests, however many messages there are to look at.
            self._rests[job_id] = now_ms + round((self._loop.time() - began_s) * 1000)
            due_ms = max(due_ms, self._rests[job_id])
        except EditImpossible as problem:
            now_ms = host.admit()
            host.run(host.shard.fail_job, job_id, str(problem), now_ms)
            due_ms = now_ms
        self._continue(due_ms)

    def _continue(self, due_ms: int) -> None:
        self.due_ms = due_ms if self.due_ms is None else min(due_ms, self.due_ms)
        self._host.commit.kick()
        self._host.due_changed()

    async def _replay(self, job: Job, most: int) -> None:
        """Send the next messages of a replay, and record how far it is."""
        host = self._host
        if self.replay is None:
            self._continue(host.now_ms() + RETRY_MS)
            return
        cursor = job.cursor
        try:
            done = await self.replay(job, most)
        except ReplayImpossible as problem:
            host.run(host.shard.pause_job, job.id, str(problem), host.admit())
        except BatonError as problem:
            if problem.retryable:
                self._record(job.id, cursor, Replayed(cursor, 0, 0, problem.message))
            else:
                host.run(host.shard.fail_job, job.id, problem.message, host.admit())
        else:
            self._record(job.id, cursor, done)
        self._continue(host.now_ms() + 1)

    def _record(self, job_id: str, cursor: int, done: Replayed) -> None:
        self._host.run(self._host.shard.replayed, job_id, cursor, done, self._host.admit())

    def _examined(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._examining.pop(job_id, None)
        if task.cancelled() or not self._host.serving:
            return
        problem = task.exception()
        if problem is None:
            return
        if not isinstance(problem, BatonError):
            self._fail(job_id, problem)
        elif self.due_ms is None:  # the next step retries
            self.due_ms = self._host.now_ms() + RETRY_MS
        self._host.due_changed()

    def _fail(self, job_id: str, problem: BaseException) -> None:
        """Fail the job. A retry would fail again: an operator has to look."""
        host = self._host
        events.logger.error("job %s: messages could not be selected", job_id, exc_info=problem)
        try:
            host.run(host.shard.fail_job, job_id, f"The job's messages could not be read: {problem}", host.admit())
            host.commit.kick()
        except BatonError:
            self.due_ms = host.now_ms() + RETRY_MS

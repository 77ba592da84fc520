"""Replay jobs: send messages of a queue's retained history again, to the same queue or to another one.

A replay goes through the retained history in log order. node/ reads the messages, because it can read bodies, and sends
those that match to the destination. Every message is sent with its log position as the number of a producer that only
this job and shard have, so a message that is sent again after a crash is a duplicate. `JobSet` records hold the log
position that the job has reached, in `cursor`, and the last one that it replays, in `through_sequence`.

What the destination refuses for now (it is full, or paused) makes the job wait and say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from batonq.core.commands import Job
from batonq.core.ids import key_hash
from batonq.core.shard.moves.transfers import JOB_BACKOFF_MAX_MS, REFUSED_BACKOFF_MS
from batonq.core.shard.state.job_book import ACTIVE, JobBook
from batonq.core.shard.state.retained import Retained


class Replayed(NamedTuple):
    """What node/ has done for a replay from one position to another. All of it is committed at the destination."""

    through: int  # log position up to which every retained message was handled
    examined: int
    matched: int  # how many of them were sent
    why: str = ""  # why the destination refused the next message for now


class ReplayJobs:
    def __init__(self, jobs: JobBook) -> None:
        self.jobs = jobs

    def start(self, job: Job, retained: Retained, now: int) -> Job:
        """Start a job behind the position `job.cursor` and up to `job.through_sequence` (0: the newest message)."""
        through = min(job.through_sequence or retained.last, retained.last)
        cursor = min(job.cursor, through)
        job = replace(
            job,
            key=key_hash(job.id),
            state="RUNNING",
            started_ms=now,
            resumed_ms=now,
            cursor=cursor,
            seen=cursor,
            through_sequence=through,
            to_move=retained.index_after(through) - retained.index_after(cursor),
            moved=0,
        )
        self.jobs.set(job, now)
        return self.jobs[job.id]

    def advance(self, job_id: str, cursor: int, done: Replayed, now: int) -> None:
        """Record what was sent from `cursor` on, also if the job was paused or cancelled meanwhile."""
        job = self.jobs.get(job_id)
        if job is None or job.state not in ACTIVE or job.cursor != cursor:
            return
        self.jobs.spend(job_id, done.matched, now)
        through = max(done.through, cursor)
        job = replace(
            job,
            cursor=through,
            seen=through,
            examined=job.examined + done.examined,
            matched=job.matched + done.matched,
            moved=job.moved + done.matched,
        )
        if job.state == "RUNNING" and done.why:
            tries = 0 if done.matched else job.tries
            pause_ms = min(REFUSED_BACKOFF_MS << min(tries, 16), JOB_BACKOFF_MAX_MS)
            job = replace(job, why=done.why, tries=tries + 1, again_ms=now + pause_ms)
        elif job.state == "RUNNING":
            job = replace(job, why="", tries=0, again_ms=0)
        self.jobs.set(job, now)

    @staticmethod
    def completed(job: Job) -> Job:
        """The job at its end. Messages that left the retained history before the job reached them were not found."""
        whole = job.cursor >= job.through_sequence
        missing = max(0, job.to_move - job.examined) if whole else 0
        return replace(job, examined=job.examined + missing, not_found=job.not_found + missing)

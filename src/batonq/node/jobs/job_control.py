"""Jobs for the front doors, which redrive, delete or replay messages: start, inspect, pause, resume and cancel them.

SQS's message move tasks are the same jobs, without a filter and within SQS's limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from batonq.attribute_formats.arns import parse_queue_arn, queue_arn
from batonq.core.commands import Counters, Job
from batonq.core.records import DELETING_VERSION, REPLAYING_VERSION
from batonq.core.shard.state.job_book import ACTIVE, DELETE
from batonq.core.spread import divided
from batonq.errors import BatonError, InvalidInput, JobNotFound
from batonq.node.catalog.queue_control import Control, Queue
from batonq.node.jobs.id_list import listed_ids
from batonq.node.jobs.redrive_filter import encode_pick
from batonq.node.jobs.redrive_scan import Sample
from batonq.node.jobs.replay_control import Replay, replay_parts
from batonq.node.routing.ports import JobView, ShardPort
from batonq.node.settings import Settings

REDRIVE = "redrive"  # the kind of a job that moves messages
JOBS_MAX = 1_000  # listed over all queues
RATE_DEFAULT_PER_S = 10
RAMP_FROM_PER_S = 100  # faster jobs start slowly unless the request says otherwise
RAMP_DEFAULT_S = 10.0
RAMP_MAX_S = 86_400.0
DYING_SHARE_DEFAULT = 0.5


@dataclass(slots=True, frozen=True, kw_only=True)
class Redrive:
    """What to move, where to, and how fast; or what to delete. Filter and edit are as in the REST API; see
    redrive_filter.py.
    """

    deletes: bool = False  # delete the messages instead of moving them

    target: Queue | None = None  # None: each message to its source queue, or back to the same queue if it died there
    rate_per_s: int = RATE_DEFAULT_PER_S
    default_rate: bool = False  # the caller did not choose the rate
    ramp_s: float | None = None  # time to reach the rate; None: depends on the rate
    filter: Mapping[str, Any] | None = None
    edit: Mapping[str, Any] | None = None
    dry_run: bool = False  # only look
    max_messages: int = 0  # 0: all
    pause_when_dying_share: float = DYING_SHARE_DEFAULT  # share of the messages moved last; 1: never


class JobStatus(NamedTuple):
    """The current state of a job."""

    id: str
    source: str  # name of the queue
    target: str  # empty: each message to its source queue
    state: str  # RUNNING, PAUSED, COMPLETED, CANCELLING, CANCELLED, FAILED
    why: str  # why the job waits, is paused or failed
    rate_per_s: int
    current_rate: float
    started_ms: int
    ended_ms: int  # 0: the job has not ended
    examined: int
    matched: int
    moved: int
    remaining: int  # messages that the job has not looked at yet
    died_again: int
    not_found: int = 0  # messages given by id that no longer existed
    max_messages: int = 0
    dry_run: bool = False
    sample: Sequence[Sample] = ()
    kind: str = "redrive"  # redrive, delete, replay


class JobControl(Control):
    """The part of the broker that manages jobs."""

    settings: Settings
    _random_bytes: Callable[[int], bytes]

    def body_bytes_max(self, queue: Queue) -> int:
        """The maximum size of a message that is sent to the queue."""
        return queue.message_bytes_max

    async def can_move_from(self, queue: Queue) -> bool:
        """Whether a job can have messages to move: the queue is a dead-letter queue, or has dead messages."""
        if self.dead_letter_sources(queue):
            return True
        counters = await asyncio.gather(*(self._port(shard).counters(queue.number) for shard in queue.shards))
        return any(part.dead for part in counters)

    async def start_job(self, source: Queue, redrive: Redrive) -> JobStatus:
        """Start a job. A dry run is complete when this returns, and changes nothing."""
        if redrive.deletes and (older := await self._catalog.too_old(DELETING_VERSION)):
            raise InvalidInput(f"Messages cannot be deleted by a job yet. {older}")
        parts = await self._parts(source, redrive)
        if redrive.dry_run:
            return await self._dry_run(parts)
        return self._status(await self._start(parts))

    async def start_replay(self, source: Queue, replay: Replay) -> JobStatus:
        """Start a job that sends retained messages again. A dry run is complete when this returns."""
        if older := await self._catalog.too_old(REPLAYING_VERSION):
            raise InvalidInput(f"Messages cannot be replayed yet. {older}")
        highest = self.settings.redrive_rate_max_per_s
        bytes_max = self.body_bytes_max(replay.target or source)
        parts = await replay_parts(source, replay, self._random_bytes(16).hex(), highest, bytes_max, self._port)
        if replay.dry_run:
            return await self._dry_run(parts)
        return self._status(await self._start(parts))

    async def _dry_run(self, parts: Mapping[int, Job]) -> JobStatus:
        looks = await asyncio.gather(*(self._port(shard).dry_run(job) for shard, job in parts.items()))
        sample = [one for _, some in looks for one in some][: max(len(some) for _, some in looks)]
        status = self._status(merged([view for view, _ in looks]))
        return status._replace(dry_run=True, sample=tuple(sample))

    async def _start(self, parts: Mapping[int, Job]) -> JobView:
        """Start all parts of a job, or none."""
        started: list[JobView] = []
        try:
            for shard, job in parts.items():
                started.append(await self._port(shard).start_job(job))
        except BatonError:
            for shard, view in zip(parts, started, strict=False):
                with suppress(BatonError):
                    await self._port(shard).cancel_job(view.job.id)
            raise
        return merged(started)

    async def _parts(self, source: Queue, redrive: Redrive) -> dict[int, Job]:
        """The job's part per shard of its source.

        Each part has a share of the rate, in proportion to the messages that it has to look at. So together the parts
        run at the requested rate and end at about the same time, whichever nodes serve them.
        """
        job = await self._job(source, redrive)
        selected = redrive.filter is not None and redrive.filter.get("messageIds") is not None
        ports = {shard: self._port(shard) for shard in source.shards}
        if selected:
            nexts = await asyncio.gather(*(port.next_sequence() for port in ports.values()))
            listed = listed_ids(redrive.filter, dict(zip(ports, nexts, strict=True)))
            assert listed is not None
            weights = [len(listed.sequences[shard]) for shard in ports]
        elif len(ports) == 1:
            listed, weights = None, [1]
        else:
            listed = None
            counted = await asyncio.gather(*(port.counters(source.number) for port in ports.values()))
            weights = [_to_examine(job, part) for part in counted]
        bytes_max = (redrive.target or source).message_bytes_max
        whole = sum(weights)
        parts: dict[int, Job] = {}
        most = divided(redrive.max_messages, weights)
        for shard, weight, limit in zip(ports, weights, most, strict=True):
            if (whole and not weight) or (redrive.max_messages and not limit) or (not whole and parts):
                continue
            sequences = listed.sequences[shard] if listed is not None else None
            elsewhere = listed.elsewhere if listed is not None and not parts else 0
            parts[shard] = replace(
                job,
                selection=encode_pick(redrive.filter, redrive.edit, bytes_max, sequences, deletes=redrive.deletes),
                listed=len(sequences) + elsewhere if sequences is not None else 0,
                examined=elsewhere,
                not_found=elsewhere,
                max_messages=limit,
                share=weight / whole if whole else 1.0,
            )
        return parts

    async def _job(self, source: Queue, redrive: Redrive) -> Job:
        highest = self.settings.redrive_rate_max_per_s
        target = redrive.target
        if not 1 <= redrive.rate_per_s <= highest:
            raise InvalidInput(
                f"The rate of a job must be 1 to {highest} messages per second, not {redrive.rate_per_s}."
            )
        if redrive.ramp_s is not None and not 0 <= redrive.ramp_s <= RAMP_MAX_S:
            raise InvalidInput(f"The ramp of a redrive must be 0 to {RAMP_MAX_S:.0f} seconds long.")
        if not 0 <= redrive.pause_when_dying_share <= 1:
            raise InvalidInput("The failure share at which a redrive pauses must be a number from 0 to 1.")
        if redrive.max_messages < 0:
            raise InvalidInput("The maximum number of messages of a redrive cannot be negative; 0 means all.")
        only_dead = not redrive.deletes and not self.dead_letter_sources(source)
        if only_dead and not await self.can_move_from(source):
            raise InvalidInput(
                f"Queue {source.name} is not a dead-letter queue and has no dead messages, so there is nothing to "
                "redrive."
            )
        if target is not None and target.fifo != source.fifo:
            raise InvalidInput("The source and the target of a redrive must be of the same type (standard or FIFO).")
        if target is not None and target.number == source.number:
            raise InvalidInput("The target of a redrive must be a different queue than its source.")
        ramp_s = redrive.ramp_s
        if ramp_s is None:
            ramp_s = RAMP_DEFAULT_S if redrive.rate_per_s > RAMP_FROM_PER_S else 0.0
        origins = self.dead_letter_sources(source) if target is None and source.fifo else []
        return Job(
            id=self._random_bytes(16).hex(),
            source=source.number,
            source_arn=queue_arn(source.account, source.name),
            destination=target.number if target is not None else 0,
            destination_shard=target.shard if target is not None else 0,
            destination_spread=target.link.spread if target is not None else "",
            origin_spreads={str(queue.number): queue.link.spread for queue in origins if queue.link.spread},
            destination_arn=queue_arn(target.account, target.name) if target is not None else "",
            rate_per_s=redrive.rate_per_s,
            default_rate=redrive.default_rate,
            state="RUNNING",
            started_ms=0,
            to_move=0,
            only_dead=only_dead,
            ramp_ms=round(ramp_s * 1000),
            pause_share=redrive.pause_when_dying_share,
            kind=DELETE if redrive.deletes else REDRIVE,
        )

    def _status(self, view: JobView) -> JobStatus:
        job = view.job
        return JobStatus(
            id=job.id,
            source=_name(job.source_arn) or self.queue_name(job.source),
            target=_name(job.destination_arn),
            state=job.state,
            why=job.why,
            rate_per_s=job.rate_per_s,
            current_rate=view.current_rate,
            started_ms=job.started_ms,
            ended_ms=job.ended_ms,
            examined=job.examined,
            matched=job.matched,
            moved=job.moved,
            remaining=max(0, job.to_move - job.examined) if job.state in ACTIVE else 0,
            died_again=job.died_again,
            not_found=job.not_found,
            max_messages=job.max_messages,
            kind=job.kind,
        )

    def queue_name(self, number: int) -> str:
        queue = self.queue_by_number(number)
        return queue.name if queue is not None else ""

    async def _find(self, account: str, job_id: str) -> list[tuple[ShardPort, JobView]]:
        """The parts of a job. A job id does not name its queue, so every shard is asked."""
        ports = [self._port(shard) for shard in sorted(self._catalog.current().shards)]
        views = await asyncio.gather(*(port.job(job_id) for port in ports), return_exceptions=True)
        parts = [(port, view) for port, view in zip(ports, views, strict=True) if isinstance(view, JobView)]
        if parts:
            job = parts[0][1].job
            queue = self.queue_by_number(job.source)
            if not self._belongs(job, account):
                raise JobNotFound
            if queue is None or len(queue.shards) == 1:
                return parts
        for view in views:
            if isinstance(view, BaseException):
                raise view  # the job, or a part of it, may be on that shard
        if not parts:
            raise JobNotFound
        return parts

    async def job(self, account: str, job_id: str) -> JobStatus:
        """The current state of a job. Raises JobNotFound: only the last few ended jobs per queue are remembered."""
        return self._status(merged([view for _, view in await self._find(account, job_id)]))

    async def jobs(self, source: Queue) -> list[JobStatus]:
        """The jobs of a queue, newest first."""
        return [self._status(view) for view in await self._all_jobs(source)]

    async def _all_jobs(self, source: Queue) -> list[JobView]:
        told = await asyncio.gather(*(self._port(shard).jobs(source.number) for shard in source.shards))
        if len(told) == 1:
            return told[0]
        parts: dict[str, list[JobView]] = {}
        for views in told:
            for view in views:
                parts.setdefault(view.job.id, []).append(view)
        return sorted(map(merged, parts.values()), key=lambda view: view.job.started_ms, reverse=True)

    async def all_jobs(self, account: str, *, only_active: bool) -> tuple[list[JobStatus], bool]:
        """The jobs of all queues of an account, active ones first, then newest first; and whether all shards answered.

        The number is limited.
        """
        ports = [self._port(shard) for shard in sorted(self._catalog.current().shards)]
        told = await asyncio.gather(*(port.all_jobs(only_active) for port in ports), return_exceptions=True)
        parts: dict[str, list[JobView]] = {}
        for views in told:
            if isinstance(views, BaseException):
                if not isinstance(views, BatonError):
                    raise views
                continue
            for view in views:
                if self._belongs(view.job, account):
                    parts.setdefault(view.job.id, []).append(view)
        found = [self._status(merged(views)) for views in parts.values()]
        found.sort(key=lambda status: (status.state not in ACTIVE, -status.started_ms, status.id))
        return found[:JOBS_MAX], not any(isinstance(views, BaseException) for views in told)

    def _belongs(self, job: Job, account: str) -> bool:
        name, queue = parse_queue_arn(job.source_arn), self.queue_by_number(job.source)
        return account in (name.account if name else None, queue.account if queue else None)

    async def cancel_job(self, account: str, job_id: str) -> JobStatus:
        """Cancel a job. Messages already on their way arrive; the rest stays."""
        parts = await self._find(account, job_id)
        return self._status(await _change_parts(parts, lambda port: port.cancel_job(job_id)))

    async def pause_job(self, account: str, job_id: str, why: str = "The job was paused by request.") -> JobStatus:
        parts = await self._find(account, job_id)
        return self._status(await _change_parts(parts, lambda port: port.pause_job(job_id, why)))

    async def resume_job(self, account: str, job_id: str) -> JobStatus:
        parts = await self._find(account, job_id)
        return self._status(await _change_parts(parts, lambda port: port.resume_job(job_id)))

    # --- SQS's move tasks -------------------------------------------------------------------------

    async def start_move(self, source: Queue, destination: Queue | None, rate: int | None) -> Job:
        """Start moving a dead-letter queue's messages, or another queue's dead messages, back or to `destination`."""
        highest = self.settings.move_rate_max_per_s
        if rate is not None and not 1 <= rate <= highest:
            raise InvalidInput(f"A message move task can move 1 to {highest} messages per second, not {rate}.")
        redrive = Redrive(
            target=destination,
            rate_per_s=rate or self.settings.move_rate_per_s,
            default_rate=rate is None,
            ramp_s=0.0,
            pause_when_dying_share=1.0,
        )
        return (await self._start(await self._parts(source, redrive))).job

    async def cancel_move(self, source: Queue, job_id: str) -> Job:
        parts: list[tuple[ShardPort, JobView]] = []
        for port in [self._port(shard) for shard in source.shards]:
            view = await port.job(job_id)
            if view is not None and view.job.source == source.number and view.job.kind == REDRIVE:
                parts.append((port, view))
        if not parts:
            raise JobNotFound
        return (await _change_parts(parts, lambda port: port.cancel_job(job_id))).job

    async def moves(self, source: Queue) -> list[Job]:
        """The redrives of a queue as SQS's move tasks, newest first. SQS has no pause: a paused job is shown as
        running.
        """
        jobs = [view.job for view in await self._all_jobs(source) if view.job.kind == REDRIVE]
        return [replace(job, state="RUNNING") if job.state == "PAUSED" else job for job in jobs]


def _to_examine(job: Job, counters: Counters) -> int:
    """How many messages of a shard a job will probably have to do with."""
    if job.only_dead:
        return counters.dead
    return counters.visible + counters.dead + (counters.delayed if job.kind == DELETE else 0)


# The state of a job is that of its least advanced part.
_STATES = ("RUNNING", "CANCELLING", "PAUSED", "FAILED", "CANCELLED", "COMPLETED")
_SUMMED = ("to_move", "moved", "examined", "matched", "died_again", "listed", "not_found", "max_messages")


def merged(parts: Sequence[JobView]) -> JobView:
    """The state of a job over all its shards: one rate, one progress, one state."""
    if len(parts) == 1:
        return parts[0]
    jobs = sorted((part.job for part in parts), key=lambda job: _STATES.index(job.state))
    sums: dict[str, Any] = {name: sum(getattr(job, name) for job in jobs) for name in _SUMMED}
    ended_ms = max(job.ended_ms for job in jobs) if all(job.ended_ms for job in jobs) else 0
    whole = replace(
        jobs[0],
        **sums,
        started_ms=min(job.started_ms for job in jobs),
        ended_ms=ended_ms,
        why=next((job.why for job in jobs if job.why), ""),
        failure=next((job.failure for job in jobs if job.failure), ""),
        share=sum(job.share for job in jobs),
    )
    return JobView(whole, sum(part.current_rate for part in parts))


async def _change_parts(
    parts: Sequence[tuple[ShardPort, JobView]], change: Callable[[ShardPort], Awaitable[JobView]]
) -> JobView:
    """Change the parts that have not ended. Raises JobNotFound when all have."""
    active = [port for port, view in parts if view.job.state in ("RUNNING", "PAUSED")]
    changed = await asyncio.gather(*(change(port) for port in active or [parts[0][0]]))
    ended = [view for port, view in parts if port not in active]
    return merged([*changed, *ended]) if active else changed[0]


def _name(arn: str) -> str:
    name = parse_queue_arn(arn)
    return name.name if name is not None else ""

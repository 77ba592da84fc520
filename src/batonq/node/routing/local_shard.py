"""A shard that this node serves itself, as a port (ports.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from batonq.core.commands import Arrival, Command, Counters, ExactCounters, Job, Leases, Receive, Send
from batonq.core.payload import Payload
from batonq.core.schedule import Schedule
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.commands.readers import Assignment
from batonq.core.shard.state.job_book import REPLAY
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.core.spread import Hint
from batonq.core.topics.message_values import Paths
from batonq.errors import BatonError
from batonq.node.jobs.redrive_scan import Sample, examine_all
from batonq.node.jobs.replay_scan import replay_preview
from batonq.node.messages import group_reading, operator_actions
from batonq.node.messages.body_reader import BodyReader, is_large
from batonq.node.messages.dead_letter_groups import DeadLetters, group_dead_letters
from batonq.node.messages.group_reading import Fetched, ReaderView
from batonq.node.messages.lease_holders import Holding, lease_holders
from batonq.node.messages.message_history import MessageFound, find_with_history
from batonq.node.messages.peek import Peeked, PeekFilter, PeekPage, look
from batonq.node.messages.queue_figures import ShardFigures, read_figures
from batonq.node.messages.received import Deliveries, Delivery, Received
from batonq.node.messages.retained_reader import RetainedBounds, RetainedPage, RetainedReader, bounds_of
from batonq.node.routing.ports import JobView
from batonq.node.routing.submission import Done, Waiting, client_error, tell
from batonq.node.schedules import schedule_actions
from batonq.node.shard_host.host import ShardHost, committed
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.tasks import Tasks

JOBS_MAX = 1_000  # listed over all queues


class LocalShard:
    def __init__(
        self,
        keeper: ShardKeeper,
        deliveries: Deliveries,
        reach: Callable[[ShardHost, int, int], Awaitable[None]],
        matching: Callable[..., Awaitable[list[tuple[int, Delivery]]]],
        bodies: BodyReader,
    ) -> None:
        self._host = keeper.host
        self._deliveries = deliveries
        self._reach = reach
        self._matching = matching
        self._bodies = bodies
        self._number = keeper.number
        self._tasks = Tasks()
        self._retained = RetainedReader(deliveries.render)

    # --- commands

    def submit(self, command: Command, done: Done) -> Waiting | None:
        try:
            host = self._host()
        except BatonError as problem:
            done(problem)
            return None
        if isinstance(command, Send):
            topic = host.shard.topics.get(command.queue)
            paths = topic.index.body_paths if topic is not None else None
            if paths is not None and is_large(command):
                self._tasks.spawn(self._publish_large(command, paths, done))
                return None
        if not isinstance(command, Receive):
            return host.submit(command, done)
        return host.submit(command, partial(self._deliver, host, command, done))

    async def _publish_large(self, command: Send, paths: Paths, done: Done) -> None:
        """Publish messages whose bodies take long to read for the topic's filters."""
        try:
            command = await self._bodies.read(command, paths)
            host = self._host()
        except Exception as problem:
            tell(done, client_error(problem))
        else:
            host.submit(command, done)

    def _deliver(self, host: ShardHost, command: Receive, done: Done, outcome: Leases | BatonError) -> None:
        """Read the messages of committed leases. Messages that cannot be handed over are given back."""
        if isinstance(outcome, BatonError):
            done(outcome)
        elif not outcome.slots:
            done(Received(self._number))
        else:
            try:
                must_wait = outcome.shared("wait", partial(self._must_wait, host))
            except Exception as problem:
                self._fail(host, command, done, outcome, problem)
                return
            if must_wait:
                self._tasks.spawn(self._deliver_later(host, command, done, outcome))
            else:
                self._hand_over(host, command, done, outcome)

    def _must_wait(self, host: ShardHost, leases: Leases) -> bool:
        return host.is_late(leases) or self._deliveries.is_cold(host, leases)

    async def _deliver_later(self, host: ShardHost, command: Receive, done: Done, leases: Leases) -> None:
        """Extend leases that are partly over, and read what is only on the disk."""
        try:
            # Apart: whoever received at the same time may still wait for the disk.
            leases = (await host.in_time(command.queue, leases, command.attempt)).apart()
            await self._deliveries.warm(host, leases)
        except Exception as problem:
            self._fail(host, command, done, leases, problem)
        else:
            self._hand_over(host, command, done, leases)

    def _hand_over(self, host: ShardHost, command: Receive, done: Done, leases: Leases) -> None:
        try:
            received = self._deliveries.read(command.queue, host, leases, command.whole)
        except Exception as problem:
            self._fail(host, command, done, leases, problem)
            return
        if not command.attempt:
            received.give_back = partial(_give_back, host, command.queue, received.leases)
        tell(done, received)

    @staticmethod
    def _fail(host: ShardHost, command: Receive, done: Done, leases: Leases, problem: Exception) -> None:
        """Give back leased messages that cannot be handed over, so that another consumer can receive them."""
        if not command.attempt:
            host.give_back(command.queue, leases.claims())
        tell(done, client_error(problem))

    # --- other operations

    async def receive_matching(
        self,
        account: str,
        patterns: Sequence[str],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[int, Delivery]]:
        self._host()
        return await self._matching(self._number, account, patterns, max_messages, visibility_ms, wait_ms, holder)

    async def hint(self, queue: int, wait_ms: int, waiting: int) -> Hint:
        host = self._host()
        hint = host.hint(queue)
        if not hint.visible and wait_ms > 0 and not host.polls.answers_at_once:
            await host.polls.until_filled(queue, wait_ms, waiting)
            hint = self._host().hint(queue)
        return hint

    async def give_back(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        host = self._host()
        host.give_back(queue, claims)
        await committed(host)

    async def counters(self, queue: int) -> Counters:
        host = self._host()
        counters = host.counters(queue)
        await committed(host)
        return counters

    async def exact_counters(self, queue: int) -> ExactCounters:
        host = self._host()
        exact = host.exact_counters(queue)
        await committed(host)
        return exact

    async def needed_payloads(self, prefix: str) -> list[str]:
        host = self._host()
        needed = host.shard.needed_payloads(prefix, host.now_ms())
        await committed(host)  # what was deleted may not be needed only if that is committed
        return [*needed]

    async def waiting(self, queue: int) -> int:
        return self._host().polls.waiting(queue)

    async def peek(self, queue: int, after_sequence: int, limit: int, wanted: PeekFilter, examine_max: int) -> PeekPage:
        host = self._host()
        numbers_from = host.shard.numbers_from(queue)
        page = await look(host, queue, after_sequence, limit, wanted, examine_max)
        return page._replace(
            after=numbers_from + page.after,
            messages=[self._shown(queue, one, numbers_from) for one in page.messages],
        )

    async def message(self, queue: int, sequence: int) -> MessageFound | None:
        host = self._host()
        found = await find_with_history(host, queue, sequence)
        if found is None:
            return None
        return found._replace(peeked=self._shown(queue, found.peeked, host.shard.numbers_from(queue)))

    def _shown(self, queue: int, peeked: Peeked, numbers_from: int) -> Peeked:
        """The message as its consumers see it."""
        if peeked.envelope:
            payload = Payload(0, "", peeked.group, "", "", b"", peeked.attributes, peeked.body, b"", peeked.content)
            shown = self._deliveries.render(queue, payload._replace(envelope=peeked.envelope))
            peeked = peeked._replace(
                body=shown.body, attributes=shown.attributes, content=shown.content, envelope=shown.envelope
            )
        return _numbered(peeked, numbers_from)

    async def delete_message(self, queue: int, sequence: int) -> None:
        await operator_actions.delete_message(self._host(), queue, sequence)

    async def edit_message(self, queue: int, sequence: int, edit: str) -> None:
        await operator_actions.edit_message(self._host(), queue, sequence, edit)

    async def retry_message(self, queue: int, sequence: int, to: Destination | None) -> None:
        await operator_actions.retry_message(self._host(), queue, sequence, to)

    async def dead_letters(self, queue: int, only_dead: bool, examine_max: int) -> DeadLetters:
        host = self._host()
        found = await group_dead_letters(host, queue, only_dead, examine_max)
        numbers_from = host.shard.numbers_from(queue)
        for group in found.groups:
            group.examples = [_numbered(example, numbers_from) for example in group.examples]
        return found

    async def holders(self, queue: int) -> list[Holding]:
        return await lease_holders(self._host(), queue)

    async def figures(self, queue: int) -> ShardFigures:
        return await read_figures(self._host(), queue)

    async def reach(self, queue: int, version: int) -> None:
        await self._reach(self._host(), queue, version)

    async def purge_point(self, queue: int) -> int:
        host = self._host()
        host.shard.queue_state(queue)  # raises QueueDoesNotExist
        through = host.shard.next_sequence - 1
        await committed(host)
        return through

    async def purge(self, queue: int, through: int) -> None:
        host = self._host()
        done = False
        while not done:
            host.shard.queue_state(queue)  # raises QueueDoesNotExist
            _, done = host.purge(queue, through)
            await committed(host)

    async def next_sequence(self) -> int:
        host = self._host()
        sequence = host.shard.next_sequence
        await committed(host)
        return sequence

    # --- retained history

    async def retained(self, queue: int, after_position: int, limit_messages: int, limit_bytes: int) -> RetainedPage:
        return await self._retained.read(self._host(), queue, after_position, limit_messages, limit_bytes)

    async def retained_bounds(self, queue: int, time_ms: int) -> RetainedBounds:
        return bounds_of(self._host(), queue, time_ms)

    # --- reader groups

    async def readers(self, queue: int) -> list[ReaderView]:
        host = self._host()
        views = [group_reading.view_of(host, queue, reader) for reader in host.shard.readers(queue)]
        await committed(host)
        return views

    async def reader(self, queue: int, group: str) -> ReaderView:
        host = self._host()
        view = group_reading.view_of(host, queue, host.shard.reader(queue, group))
        await committed(host)
        return view

    async def reader_begin_create(self, queue: int, group: str, settings: GroupSettings) -> int:
        host = self._host()
        created_ms = host.run(host.shard.begin_create_reader, queue, group, settings, host.admit())
        await committed(host)
        return created_ms

    async def reader_create(
        self, queue: int, group: str, created_ms: int, settings: GroupSettings, start: Start
    ) -> None:
        host = self._host()
        host.run(host.shard.create_reader, queue, group, created_ms, settings, start, host.admit())
        await committed(host)

    async def reader_set(
        self,
        queue: int,
        group: str,
        created_ms: int,
        settings: GroupSettings,
        start: Start,
        epoch: int,
        only_new: bool,
    ) -> ReaderView:
        host = self._host()
        reader = host.run(
            host.shard.set_reader, queue, group, created_ms, settings, start, epoch, only_new, host.admit()
        )
        view = group_reading.view_of(host, queue, reader)
        await committed(host)
        return view

    async def reader_delete(self, queue: int, group: str) -> None:
        host = self._host()
        host.run(host.shard.delete_reader, queue, group, host.admit())
        await committed(host)

    async def reader_join(self, queue: int, group: str, member: str, shards: Sequence[int]) -> Assignment:
        host = self._host()
        assignment = host.run(host.shard.join_reader, queue, group, member, shards, host.admit())
        await committed(host)
        return assignment

    async def reader_leave(self, queue: int, group: str, member: str, shards: Sequence[int]) -> None:
        host = self._host()
        host.run(host.shard.leave_reader, queue, group, member, shards, host.admit())
        await committed(host)

    async def reader_assignment(self, queue: int, group: str, member: str) -> Assignment:
        host = self._host()
        assignment = host.shard.reader_assignment(queue, group, member)
        await committed(host)
        return assignment

    async def reader_begin_seek(self, queue: int, group: str) -> int:
        host = self._host()
        epoch = host.run(host.shard.begin_seek, queue, group, host.admit()).group_epoch
        await committed(host)
        return epoch

    async def reader_end_seek(self, queue: int, group: str, epoch: int) -> None:
        host = self._host()
        host.run(host.shard.end_seek, queue, group, epoch, host.admit())
        await committed(host)

    async def reader_fetch(
        self,
        queue: int,
        group: str,
        member: str,
        epoch: int,
        after_position: int,
        limit_messages: int,
        limit_bytes: int,
        wait_ms: int,
    ) -> Fetched:
        return await group_reading.fetch(
            self._host,
            self._retained,
            queue,
            group,
            member,
            epoch,
            after_position,
            limit_messages,
            limit_bytes,
            wait_ms,
        )

    async def reader_commit(self, queue: int, group: str, member: str, epoch: int, position: int) -> int:
        host = self._host()
        reader = host.run(host.shard.commit_reader, queue, group, member, epoch, position, host.admit())
        await committed(host)
        return reader.position

    async def reader_fail(
        self, queue: int, group: str, member: str, epoch: int, position: int, error: str
    ) -> ReaderView:
        host = self._host()
        fail_reader = host.shard.fail_reader
        reader = host.run(fail_reader, queue, group, member, epoch, position, error, host.admit())
        view = group_reading.view_of(host, queue, reader)
        await committed(host)
        return view

    # --- jobs

    async def start_job(self, job: Job) -> JobView:
        host = self._host()
        return await _view(host, host.jobs.start(job))

    async def dry_run(self, job: Job) -> tuple[JobView, list[Sample]]:
        host = self._host()
        numbers_from = host.shard.numbers_from(job.source)
        if job.kind == REPLAY:
            job, sample = await replay_preview(host, partial(self._retained.read, host), job)
        else:
            job, sample = await examine_all(host, job)
        return JobView(job, 0.0), [one._replace(sequence=numbers_from + one.sequence) for one in sample]

    async def jobs(self, queue: int) -> list[JobView]:
        host = self._host()
        jobs = [replace(job) for job in host.shard.jobs.values() if job.source == queue]
        views = [_seen(host, job) for job in sorted(jobs, key=lambda job: job.started_ms, reverse=True)]
        await committed(host)
        return views

    async def all_jobs(self, only_active: bool) -> list[JobView]:
        host = self._host()
        book = host.shard.jobs
        active = [book[job_id] for job_id in book.active]
        ended = [] if only_active else [job for job in book.values() if job.id not in book.active]
        listed = [*active, *ended[: -JOBS_MAX - 1 : -1]][:JOBS_MAX]
        views = [_seen(host, job) for job in sorted(listed, key=lambda job: job.started_ms, reverse=True)]
        await committed(host)
        return views

    async def job(self, job_id: str) -> JobView | None:
        host = self._host()
        job = host.shard.jobs.get(job_id)
        return None if job is None else await _view(host, job)

    async def cancel_job(self, job_id: str) -> JobView:
        host = self._host()
        return await _view(host, host.jobs.cancel(job_id))

    async def pause_job(self, job_id: str, why: str) -> JobView:
        host = self._host()
        return await _view(host, host.jobs.pause(job_id, why))

    async def resume_job(self, job_id: str) -> JobView:
        host = self._host()
        return await _view(host, host.jobs.resume(job_id))

    # --- schedules

    async def create_schedule(self, schedule: Schedule) -> Schedule:
        return await schedule_actions.create_schedule(self._host(), schedule)

    async def change_schedule(self, queue: int, name: str, changes: dict[str, Any]) -> Schedule:
        return await schedule_actions.change_schedule(self._host(), queue, name, changes)

    async def delete_schedule(self, queue: int, name: str) -> None:
        await schedule_actions.delete_schedule(self._host(), queue, name)

    async def schedules(self, queue: int, name: str) -> list[Schedule]:
        host = self._host()
        book = host.shard.schedules
        if name:
            one = book.find(queue, name)
            found = [] if one is None else [one]
        else:
            found = [replace(one, message="") for one in (book.of_queue(queue) if queue else book)]
        await committed(host)
        return found

    async def adopt_schedule(self, schedule: Schedule) -> None:
        await schedule_actions.adopt_schedule(self._host(), schedule)

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        host = self._host()
        results = host.arrive(arrivals)
        await committed(host)
        return results


def _give_back(host: ShardHost, queue: int, leases: Leases) -> None:
    host.give_back(queue, leases.claims())


def _numbered(peeked: Peeked, numbers_from: int) -> Peeked:
    """The message with its number in the queue instead of its sequence on the shard."""
    if not numbers_from:
        return peeked
    return peeked._replace(view=peeked.view._replace(sequence=numbers_from + peeked.view.sequence))


def _seen(host: ShardHost, job: Job) -> JobView:
    """A copy of the job's current state: the shard's own object keeps changing."""
    rate = host.shard.job_rate(job, host.now_ms()) if job.state == "RUNNING" else 0.0
    return JobView(replace(job), rate)


async def _view(host: ShardHost, job: Job) -> JobView:
    view = _seen(host, job)
    await committed(host)
    return view

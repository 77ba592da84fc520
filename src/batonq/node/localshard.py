"""A shard that this node serves itself, as a port (ports.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from batonq.core.commands import Accepted, Arrival, Claim, Counters, Job, Nack, Send
from batonq.core.shard.once import Once
from batonq.core.spread import Hint
from batonq.errors import BatonError
from batonq.node.deliveries import Deliveries, Delivery, QueueRef
from batonq.node.examining import Sample, examine_all
from batonq.node.host import ShardHost, committed
from batonq.node.keeper import ShardKeeper
from batonq.node.peeking import Peeked, look
from batonq.node.ports import Bodies, JobView, Sent
from batonq.node.relayed import RelayedAnswer, RelayedCall, run_relayed


class LocalShard:
    def __init__(
        self,
        keeper: ShardKeeper,
        deliveries: Deliveries,
        reach: Callable[[ShardHost, int, int], Awaitable[None]],
        matching: Callable[..., Awaitable[list[tuple[int, Delivery]]]],
    ) -> None:
        self._host = keeper.host
        self._deliveries = deliveries
        self._reach = reach
        self._matching = matching
        self._number = keeper.number

    async def send(self, queue: int, sends: Sequence[Send], invocation: int) -> list[Sent | BatonError]:
        host = self._host()
        results = host.send(queue, sends, invocation)
        await committed(host)
        return _numbered(host, queue, results)

    async def send_plain(self, queue: int, plain: Bodies) -> int | list[Sent | BatonError]:
        host = self._host()
        bodies, sender, content, producer, number = plain
        first = host.send_plain(queue, bodies, (), sender, 0, content, producer, number)
        if not first:
            return await self.send(queue, plain.sends(), 0)
        await committed(host)
        return first

    async def send_once(self, queue: int, sends: Sequence[Send], once: Once) -> tuple[list[Sent | BatonError], bool]:
        host = self._host()
        results, known = host.send_once(queue, sends, once)
        await committed(host)
        return _numbered(host, queue, results), known

    async def receive(
        self,
        queue: QueueRef,
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
        attempt: str,
    ) -> list[Delivery]:
        host = self._host()
        leases = await host.receive(queue.number, max_messages, visibility_ms, wait_ms, holder, attempt)
        if not leases:
            return []
        try:
            await self._deliveries.warm(host, [lease.position for lease in leases])
            return self._deliveries.of(queue, host, leases)
        except BaseException:  # the client has gone, or there is no answer to give: nobody got these
            if not attempt:
                host.give_back(queue.number, leases)
            raise

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

    async def delete(self, queue: int, claims: Sequence[Claim], strict: bool) -> list[BatonError | None]:
        host = self._host()
        results = host.delete(queue, claims, strict)
        await committed(host)
        return results

    async def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool
    ) -> list[int | BatonError]:
        host = self._host()
        problems = host.change_visibility(queue, changes, strict)
        results = [
            host.deadline(claim) if problem is None else problem
            for (claim, _), problem in zip(changes, problems, strict=True)
        ]
        await committed(host)
        return results

    async def nack(self, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]:
        host = self._host()
        results = host.nack(queue, nacks)
        await committed(host)
        return results

    async def hint(self, queue: int, wait_ms: int, waiting: int) -> Hint:
        host = self._host()
        hint = host.hint(queue)
        if not hint.visible and wait_ms > 0 and not host.answers_at_once:
            await host.until_filled(queue, wait_ms, waiting)
            hint = self._host().hint(queue)
        return hint

    async def give_back(self, queue: int, claims: Sequence[Claim]) -> None:
        host = self._host()
        host.give_back(queue, claims)
        await committed(host)

    async def counters(self, queue: int) -> Counters:
        host = self._host()
        counters = host.counters(queue)
        await committed(host)
        return counters

    async def waiting(self, queue: int) -> int:
        return self._host().waiting(queue)

    async def relay(self, calls: Sequence[RelayedCall]) -> list[RelayedAnswer]:
        return await run_relayed(self._host(), self._deliveries, calls)

    async def peek(self, queue: int, after_sequence: int, limit: int) -> list[Peeked]:
        host = self._host()
        numbers_from = host.shard.numbers_from(queue)
        found = await look(host, queue, after_sequence, limit)
        if not numbers_from:
            return found
        return [one._replace(view=one.view._replace(sequence=numbers_from + one.view.sequence)) for one in found]

    async def reach(self, queue: int, version: int) -> None:
        await self._reach(self._host(), queue, version)

    async def purge_point(self, queue: int) -> tuple[int, int]:
        host = self._host()
        point = host.shard.next_sequence - 1, host.shard.queue_state(queue).purge_generation
        await committed(host)
        return point

    async def purge(self, queue: int, through: int, purges: int) -> None:
        host = self._host()
        while host.shard.queue_state(queue).purge_generation == purges:
            host.purge(queue, through)
            await committed(host)

    async def next_sequence(self) -> int:
        host = self._host()
        sequence = host.shard.next_sequence
        await committed(host)
        return sequence

    # --- jobs

    async def start_job(self, job: Job) -> JobView:
        host = self._host()
        return await _view(host, host.jobs.start(job))

    async def dry_run(self, job: Job) -> tuple[JobView, list[Sample]]:
        host = self._host()
        numbers_from = host.shard.numbers_from(job.source)
        job, sample = await examine_all(host, job)
        return JobView(job, 0.0), [one._replace(sequence=numbers_from + one.sequence) for one in sample]

    async def jobs(self, queue: int) -> list[JobView]:
        host = self._host()
        jobs = [replace(job) for job in host.shard.jobs.values() if job.source == queue]
        views = [_seen(host, job) for job in sorted(jobs, key=lambda job: job.started_ms, reverse=True)]
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

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        host = self._host()
        results = host.arrive(arrivals)
        await committed(host)
        return results


def _numbered(host: ShardHost, queue: int, results: list[Sent | BatonError]) -> list[Sent | BatonError]:
    """With the messages' numbers in the queue, where the shard has their sequences."""
    numbers_from = host.shard.numbers_from(queue)
    if not numbers_from:
        return results
    return [
        result._replace(sequence=numbers_from + result.sequence)
        if isinstance(result, Accepted) and result.sequence
        else result
        for result in results
    ]


def _seen(host: ShardHost, job: Job) -> JobView:
    """As it stands now; the shard's own goes on changing."""
    rate = host.shard.job_rate(job, host.now_ms()) if job.state == "RUNNING" else 0.0
    return JobView(replace(job), rate)


async def _view(host: ShardHost, job: Job) -> JobView:
    view = _seen(host, job)
    await committed(host)
    return view

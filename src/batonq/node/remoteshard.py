"""A shard that another node serves, as a port (ports.py): each call is one request to that node.

Whether a call that got no answer was run is not known here, so nothing is tried again here: `call` knows the way there,
and what may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from batonq.core.commands import Arrival, Claim, Counters, Job, Nack, Send
from batonq.core.shard.once import Once
from batonq.core.spread import Hint
from batonq.errors import BatonError
from batonq.node import wire
from batonq.node.deliveries import Delivery, QueueRef
from batonq.node.examining import Sample
from batonq.node.peeking import Peeked
from batonq.node.ports import Bodies, JobView, Sent
from batonq.node.relayed import RelayedAnswer, RelayedCall

Call = Callable[[str, bytes, int], Awaitable[bytes]]  # operation, arguments, how long it may wait by itself in ms
DRY_RUN_MS = 60_000  # it may look at millions of messages


class RemoteShard:
    def __init__(self, call: Call) -> None:
        self._call = call

    async def _ask(self, operation: str, *arguments: Any, wait_ms: int = 0) -> Any:
        return wire.decode_answer(operation, await self._call(operation, wire.encode(arguments), wait_ms))

    async def send(self, queue: int, sends: Sequence[Send], invocation: int) -> list[Sent | BatonError]:
        results: list[Sent | BatonError] = await self._ask("send", queue, wire.send_rows(sends), invocation)
        return results

    async def send_plain(self, queue: int, plain: Bodies) -> int | list[Sent | BatonError]:
        answer: int | list[Sent | BatonError] = await self._ask("send_plain", queue, plain)
        return answer

    async def send_once(self, queue: int, sends: Sequence[Send], once: Once) -> tuple[list[Sent | BatonError], bool]:
        outcome: tuple[list[Sent | BatonError], bool] = await self._ask("send_once", queue, wire.send_rows(sends), once)
        return outcome

    async def receive(
        self,
        queue: QueueRef,
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
        attempt: str,
    ) -> list[Delivery]:
        reference = wire.Queue(queue.account, queue.number, queue.name)
        deliveries: list[Delivery] = await self._ask(
            "receive", reference, max_messages, visibility_ms, wait_ms, holder, attempt, wait_ms=wait_ms
        )
        return deliveries

    async def receive_matching(
        self,
        account: str,
        patterns: Sequence[str],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[int, Delivery]]:
        found: list[tuple[int, Delivery]] = await self._ask(
            "receive_matching", account, patterns, max_messages, visibility_ms, wait_ms, holder, wait_ms=wait_ms
        )
        return found

    async def delete(self, queue: int, claims: Sequence[Claim], strict: bool) -> list[BatonError | None]:
        results: list[BatonError | None] = await self._ask("delete", queue, claims, strict)
        return results

    async def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool
    ) -> list[int | BatonError]:
        results: list[int | BatonError] = await self._ask("change_visibility", queue, changes, strict)
        return results

    async def nack(self, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]:
        results: list[BatonError | None] = await self._ask("nack", queue, nacks)
        return results

    async def hint(self, queue: int, wait_ms: int, waiting: int) -> Hint:
        hint: Hint = await self._ask("hint", queue, wait_ms, waiting, wait_ms=wait_ms)
        return hint

    async def give_back(self, queue: int, claims: Sequence[Claim]) -> None:
        await self._ask("give_back", queue, claims)

    async def counters(self, queue: int) -> Counters:
        counters: Counters = await self._ask("counters", queue)
        return counters

    async def waiting(self, queue: int) -> int:
        waiting: int = await self._ask("waiting", queue)
        return waiting

    async def relay(self, calls: Sequence[RelayedCall]) -> list[RelayedAnswer]:
        answers: list[RelayedAnswer] = await self._ask("relay", calls)
        return answers

    async def peek(self, queue: int, after_sequence: int, limit: int) -> list[Peeked]:
        peeked: list[Peeked] = await self._ask("peek", queue, after_sequence, limit)
        return peeked

    async def reach(self, queue: int, version: int) -> None:
        await self._ask("reach", queue, version)

    async def purge_point(self, queue: int) -> tuple[int, int]:
        point: tuple[int, int] = await self._ask("purge_point", queue)
        return point

    async def purge(self, queue: int, through: int, purges: int) -> None:
        await self._ask("purge", queue, through, purges)

    async def next_sequence(self) -> int:
        sequence: int = await self._ask("next_sequence")
        return sequence

    async def start_job(self, job: Job) -> JobView:
        view: JobView = await self._ask("start_job", job)
        return view

    async def dry_run(self, job: Job) -> tuple[JobView, list[Sample]]:
        found: tuple[JobView, list[Sample]] = await self._ask("dry_run", job, wait_ms=DRY_RUN_MS)
        return found

    async def jobs(self, queue: int) -> list[JobView]:
        views: list[JobView] = await self._ask("jobs", queue)
        return views

    async def job(self, job_id: str) -> JobView | None:
        view: JobView | None = await self._ask("job", job_id)
        return view

    async def cancel_job(self, job_id: str) -> JobView:
        view: JobView = await self._ask("cancel_job", job_id)
        return view

    async def pause_job(self, job_id: str, why: str) -> JobView:
        view: JobView = await self._ask("pause_job", job_id, why)
        return view

    async def resume_job(self, job_id: str) -> JobView:
        view: JobView = await self._ask("resume_job", job_id)
        return view

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        results: list[tuple[int, int]] = await self._ask("arrive", arrivals)
        return results


async def answer(port: Any, operation: str, data: bytes) -> bytes:
    """The other side of a call: run it at the shard's own port. Raises BatonError."""
    arguments = wire.decode_arguments(operation, data)
    if operation in ("send", "send_once"):
        queue, rows, last = arguments
        arguments = (queue, wire.sends_of(rows), last)
    elif operation == "send_plain":
        arguments = (arguments[0], Bodies(*arguments[1]))
    return wire.encode(await getattr(port, operation)(*arguments))

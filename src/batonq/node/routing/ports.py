"""One shard as the rest of a node sees it, wherever it is served.

Arguments and answers are plain values, and every answer is of something that is committed. What comes with a receipt
comes here as a claim: the receipt was opened, and named this shard. Calls raise Unavailable while nobody serves the
shard. Each operation is declared here, once: wire.py derives from it how another node is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.core.commands import Arrival, Command, Counters, Job
from batonq.core.spread import Hint
from batonq.node.jobs.redrive_scan import Sample
from batonq.node.messages.peek import Peeked
from batonq.node.messages.received import Delivery
from batonq.node.routing.submission import Done, Waiting


class JobView(NamedTuple):
    """A job as it stands, and how many messages a second it moves now."""

    job: Job
    current_rate: float


class ShardOperations(Protocol):
    """What can be asked of a shard beside its commands."""

    async def receive_matching(
        self,
        account: str,
        patterns: Sequence[str],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[int, Delivery]]:
        """Lease messages of any queues whose names match, each with its queue's number; see multi_queue_receive.py."""

    async def hint(self, queue: int, wait_ms: int, waiting: int) -> Hint:
        """What the shard has of a queue, waiting up to `wait_ms` for anything; `waiting` so many wait for it there."""

    async def give_back(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        """These leases were made for an answer that did not leave: nobody got the messages, and it was no receive."""

    async def counters(self, queue: int) -> Counters: ...

    async def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue."""

    async def peek(self, queue: int, after_sequence: int, limit: int) -> list[Peeked]:
        """Messages in order of arrival, whatever their state, without leasing them."""

    async def reach(self, queue: int, version: int) -> None:
        """Until the shard has heard, and committed, what the catalog said up to this version; of this queue (0: of
        none in particular) even if it was away meanwhile.
        """

    async def purge_point(self, queue: int) -> tuple[int, int]:
        """What a purge that begins now goes by: the last sequence that it removes, and how many purges there were."""

    async def purge(self, queue: int, through: int, purges: int) -> None:
        """Remove all messages that the queue had there at a purge point, if that is not done yet."""

    async def next_sequence(self) -> int:
        """The sequence that the shard's next message gets: none has a higher one yet."""

    # --- jobs, which are at the shard of their source

    async def start_job(self, job: Job) -> JobView: ...

    async def dry_run(self, job: Job) -> tuple[JobView, list[Sample]]:
        """Look at everything that the job would look at, and change nothing."""

    async def jobs(self, queue: int) -> list[JobView]:
        """The jobs of a queue, newest first."""

    async def job(self, job_id: str) -> JobView | None: ...

    async def cancel_job(self, job_id: str) -> JobView: ...

    async def pause_job(self, job_id: str, why: str) -> JobView: ...

    async def resume_job(self, job_id: str) -> JobView: ...

    # --- between shards

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Take entries of a channel from another shard: (number, verdict) of each. Raises LogCorrupt when the numbers
        do not fit.
        """


class ShardPort(ShardOperations, Protocol):
    def submit(self, command: Command, done: Done) -> Waiting | None:
        """Execute a command, and call `done` with its outcome, or with a BatonError. The outcome of a Receive is
        Received, without receipts.
        """


class Route(Protocol):
    """The ways to shards that other nodes serve."""

    def port(self, shard: int) -> ShardPort:
        """To one that has an owner, now or soon."""

    def port_at_once(self, shard: int) -> ShardPort:
        """To one that has an owner now; else a call ends with NotOwner."""

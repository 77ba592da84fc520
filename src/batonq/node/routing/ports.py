"""One shard as the rest of a node sees it, on this node or another one.

Arguments and answers are plain values, and every answer describes committed state. A receipt arrives here as a claim:
it was opened before, and named this shard. Calls raise Unavailable while no node serves the shard. Each operation is
declared once, here: wire.py derives its form for calls between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.core.commands import Arrival, Command, Counters, Job
from batonq.core.shard.commands.operator import Destination
from batonq.core.spread import Hint
from batonq.node.jobs.redrive_scan import Sample
from batonq.node.messages.dead_letter_groups import DeadLetters
from batonq.node.messages.lease_holders import Holding
from batonq.node.messages.message_history import MessageFound
from batonq.node.messages.peek import PeekFilter, PeekPage
from batonq.node.messages.received import Delivery
from batonq.node.routing.submission import Done, Waiting


class JobView(NamedTuple):
    """The current state of a job, and how many messages per second it moves now."""

    job: Job
    current_rate: float


class ShardOperations(Protocol):
    """The operations of a shard beside its commands."""

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
        """What the shard has of a queue, after waiting up to `wait_ms` for any message.

        `waiting` is the number of long polls that depend on the answer.
        """

    async def give_back(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        """Give back leases whose answer never left: no client got the messages, and no receive is counted."""

    async def counters(self, queue: int) -> Counters: ...

    async def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue."""

    async def peek(self, queue: int, after_sequence: int, limit: int, wanted: PeekFilter, examine_max: int) -> PeekPage:
        """Messages in order of arrival, in any state, without leasing them."""

    async def message(self, queue: int, sequence: int) -> MessageFound | None:
        """The message of a queue with this sequence and its history, as far as the log is retained."""

    async def delete_message(self, queue: int, sequence: int) -> None:
        """Delete a message that nobody holds. Raises MessageGone, MessageHeld."""

    async def edit_message(self, queue: int, sequence: int, edit: str) -> None:
        """Change a message that nobody holds; `edit` is as redrive_filter.py encodes it."""

    async def retry_message(self, queue: int, sequence: int, to: Destination | None) -> None:
        """Let a message be delivered now, in its own queue or in another one; see core/shard/commands/operator.py."""

    async def dead_letters(self, queue: int, only_dead: bool, examine_max: int) -> DeadLetters:
        """Groups of the newest dead letters; `only_dead`: the queue is not a dead-letter queue."""

    async def holders(self, queue: int) -> list[Holding]:
        """Who holds messages of a queue (0: of any queue), and how many."""

    async def reach(self, queue: int, version: int) -> None:
        """Return when the shard has applied, and committed, the catalog's changes up to this version.

        For the given queue (0: none in particular) this holds even if the shard was not served meanwhile.
        """

    async def purge_point(self, queue: int) -> int:
        """The last sequence that a purge removes if it starts now."""

    async def purge(self, queue: int, through: int) -> None:
        """Remove all messages of the queue up to a purge point. Doing it again changes nothing."""

    async def next_sequence(self) -> int:
        """The sequence of the shard's next message: no message has a higher one yet."""

    # --- jobs, which run at the shards of their source

    async def start_job(self, job: Job) -> JobView: ...

    async def dry_run(self, job: Job) -> tuple[JobView, list[Sample]]:
        """Look at all messages that the job would look at, and change nothing."""

    async def jobs(self, queue: int) -> list[JobView]:
        """The jobs of a queue, newest first."""

    async def all_jobs(self, only_active: bool) -> list[JobView]:
        """The jobs of all queues, newest first, up to a number."""

    async def job(self, job_id: str) -> JobView | None: ...

    async def cancel_job(self, job_id: str) -> JobView: ...

    async def pause_job(self, job_id: str, why: str) -> JobView: ...

    async def resume_job(self, job_id: str) -> JobView: ...

    # --- between shards

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Accept entries of a channel from another shard. Returns (number, verdict) per entry.

        Raises LogCorrupt when the numbers do not match.
        """


class ShardPort(ShardOperations, Protocol):
    def submit(self, command: Command, done: Done) -> Waiting | None:
        """Execute a command, and call `done` with its outcome or a BatonError.

        The outcome of a Receive is Received, without receipts.
        """


class Route(Protocol):
    """The routes to shards that other nodes serve."""

    def port(self, shard: int) -> ShardPort:
        """The port of a shard. A call waits for an owner if there is none yet."""

    def port_at_once(self, shard: int) -> ShardPort:
        """The port of a shard that has an owner now. Without one, a call raises NotOwner."""

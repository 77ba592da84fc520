"""One shard as the rest of a node sees it, wherever it is served.

Arguments and answers are plain values, and every answer is of something that is committed. What comes with a receipt
comes here as a claim: the receipt was opened, and named this shard. Raises Unavailable while nobody serves the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.core.commands import Accepted, Arrival, Claim, Counters, Job, Nack, Send
from batonq.core.shard.once import Once
from batonq.core.spread import Hint
from batonq.errors import BatonError
from batonq.node.deliveries import Delivery, QueueRef
from batonq.node.examining import Sample
from batonq.node.peeking import Peeked
from batonq.node.relayed import RelayedAnswer, RelayedCall

Sent = Accepted  # sequence, message_id, duplicate


class JobView(NamedTuple):
    """A job as it stands, and how many messages a second it moves now."""

    job: Job
    current_rate: float


class Bodies(NamedTuple):
    """Messages that are nothing but a body, all of one kind, of one sender. A producer has numbered them on from its
    sequence.
    """

    bodies: Sequence[bytes]
    sender: str
    content: int
    producer: str = ""
    producer_sequence: int = 0

    def sends(self) -> list[Send]:
        """The same one by one."""
        return [
            Send(
                body,
                b"",
                sender=self.sender,
                content=self.content,
                producer=self.producer,
                producer_sequence=self.producer_sequence + at if self.producer else 0,
            )
            for at, body in enumerate(self.bodies)
        ]


class ShardPort(Protocol):
    async def send(self, queue: int, sends: Sequence[Send], invocation: int) -> list[Sent | BatonError]:
        """Send messages; one result each. `invocation` is the hash of the request's name, or 0."""

    async def send_plain(self, queue: int, plain: Bodies) -> int | list[Sent | BatonError]:
        """The same of messages that may be taken as one run: the first sequence, the others follow; or else one result
        each.
        """

    async def send_once(self, queue: int, sends: Sequence[Send], once: Once) -> tuple[list[Sent | BatonError], bool]:
        """Send messages by a named request, and whether it was known: then nothing was sent."""

    async def receive(
        self,
        queue: QueueRef,
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
        attempt: str,
    ) -> list[Delivery]:
        """Lease messages, waiting up to `wait_ms` for the first."""

    async def receive_matching(
        self,
        account: str,
        patterns: Sequence[str],
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
    ) -> list[tuple[int, Delivery]]:
        """Lease messages of any queues whose names match, each with its queue's number; see watching.py."""

    async def delete(self, queue: int, claims: Sequence[Claim], strict: bool) -> list[BatonError | None]: ...

    async def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool
    ) -> list[int | BatonError]:
        """When each lease ends now, in milliseconds since 1970; 0: it is over."""

    async def nack(self, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]: ...

    async def hint(self, queue: int, wait_ms: int, waiting: int) -> Hint:
        """What the shard has of a queue, waiting up to `wait_ms` for anything; `waiting` so many wait for it there."""

    async def give_back(self, queue: int, claims: Sequence[Claim]) -> None:
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

    async def relay(self, calls: Sequence[RelayedCall]) -> list[RelayedAnswer]:
        """Plain calls of several clients, run together; one answer each, see relayed.py."""

    # --- between shards

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Take entries of a channel from another shard: (number, verdict) of each. Raises LogCorrupt when the numbers
        do not fit.
        """


class Route(Protocol):
    """The ways to shards that other nodes serve."""

    def port(self, shard: int) -> ShardPort:
        """To one that has an owner, now or soon."""

    def port_at_once(self, shard: int) -> ShardPort:
        """To one that has an owner now; else a call ends with NotOwner."""

    def knows(self, shard: int) -> bool:
        """Whether another node is known to serve it now."""

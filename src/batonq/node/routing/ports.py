"""One shard as the rest of a node sees it, on this node or another one.

Arguments and answers are plain values, and every answer describes committed state. A receipt arrives here as a claim:
it was opened before, and named this shard. Calls raise Unavailable while no node serves the shard. Each operation is
declared once, here: wire.py derives its form for calls between nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from batonq.core.commands import Arrival, Command, Counters, ExactCounters, Job
from batonq.core.schedule import Schedule
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.commands.readers import Assignment
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.core.spread import Hint
from batonq.node.jobs.redrive_scan import Sample
from batonq.node.messages.dead_letter_groups import DeadLetters
from batonq.node.messages.group_reading import Fetched, ReaderView
from batonq.node.messages.lease_holders import Holding
from batonq.node.messages.message_history import MessageFound
from batonq.node.messages.peek import PeekFilter, PeekPage
from batonq.node.messages.queue_figures import ShardFigures
from batonq.node.messages.received import Delivery
from batonq.node.messages.retained_reader import RetainedBounds, RetainedPage
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

    async def exact_counters(self, queue: int) -> ExactCounters:
        """The counters with the log position that they describe."""

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

    async def figures(self, queue: int) -> ShardFigures:
        """What the shard knows about why messages of a queue wait; see queue_figures.py."""

    async def needed_payloads(self, prefix: str) -> list[str]:
        """The objects of the payload store that the shard needs, of those whose keys begin with `prefix`."""

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

    # --- retained history

    async def retained(self, queue: int, after_position: int, limit_messages: int, limit_bytes: int) -> RetainedPage:
        """Messages of the retained history after a position. Raises NotRetained."""

    async def retained_bounds(self, queue: int, time_ms: int) -> RetainedBounds:
        """Where the retained history begins and ends, and where a time is in it. Raises NotRetained."""

    # --- reader groups, see core/shard/commands/readers.py

    async def readers(self, queue: int) -> list[ReaderView]:
        """The reader groups of a queue, by name."""

    async def reader(self, queue: int, group: str) -> ReaderView:
        """Raises ReaderDoesNotExist."""

    async def reader_begin_create(self, queue: int, group: str, settings: GroupSettings) -> int:
        """Reserve a name on the queue's first shard; returns `created_ms`, or 0 if the group exists. Raises
        ReaderExists if it exists with other settings.
        """

    async def reader_create(
        self, queue: int, group: str, created_ms: int, settings: GroupSettings, start: Start
    ) -> None:
        """Create a group on the queue's first shard, after the others. Raises StaleMember if another request has
        reserved the name since.
        """

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
        """Create a group on this shard, or set its position there."""

    async def reader_delete(self, queue: int, group: str) -> None: ...

    async def reader_join(self, queue: int, group: str, member: str, shards: Sequence[int]) -> Assignment:
        """Only for the queue's first shard, like the next four."""

    async def reader_leave(self, queue: int, group: str, member: str, shards: Sequence[int]) -> None: ...

    async def reader_assignment(self, queue: int, group: str, member: str) -> Assignment: ...

    async def reader_begin_seek(self, queue: int, group: str) -> int:
        """Returns the epoch of the seek."""

    async def reader_end_seek(self, queue: int, group: str, epoch: int) -> None: ...

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
        """Messages that the group has not committed here. Raises StaleMember."""

    async def reader_commit(self, queue: int, group: str, member: str, epoch: int, position: int) -> int:
        """Returns the position that is committed now. Raises StaleMember, PositionInvalid."""

    async def reader_fail(
        self, queue: int, group: str, member: str, epoch: int, position: int, error: str
    ) -> ReaderView:
        """Count a failure. Raises StaleMember, PositionInvalid."""

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

    # --- schedules

    async def create_schedule(self, schedule: Schedule) -> Schedule:
        """Create a schedule, or return the existing one if it is the same; see node/schedules/schedule_actions.py."""

    async def change_schedule(self, queue: int, name: str, changes: dict[str, Any]) -> Schedule: ...

    async def delete_schedule(self, queue: int, name: str) -> None: ...

    async def schedules(self, queue: int, name: str) -> list[Schedule]:
        """The schedules of a queue (0: of all queues), without their messages; or one with its message, by name."""

    async def adopt_schedule(self, schedule: Schedule) -> None:
        """Accept a schedule from another shard of its queue. Doing it again changes nothing."""

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

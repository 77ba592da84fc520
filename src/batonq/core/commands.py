"""What can be asked of a shard, and what it answers: plain values. The shard itself is in `shard/machine.py`.

A command is one request's work on one queue, as columns: a list for each property, with an entry for each message. A
column that no message of the request uses is empty, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from batonq.core.ids import message_id
from batonq.errors import BatonError


class Once(NamedTuple):
    """A request that its sender named: its name and what it says, as text, and how long both are remembered."""

    name: str
    content: str
    window_ms: int


@dataclass(slots=True)
class Send:
    """Messages to be sent to one queue. Times are milliseconds."""

    queue: int
    bodies: Sequence[bytes]
    digests: Sequence[bytes] = ()  # MD5 of each body; those of messages without a deduplication id may be empty
    sender: str = ""
    content: int = 0  # what all bodies are, see payload.Content
    contents: Sequence[int] = ()  # what each body is, when they differ
    attributes: Sequence[bytes] = ()  # see payload.py: the encoding that is digested, sorted by name
    groups: Sequence[str] = ()
    dedup_ids: Sequence[str] = ()  # explicit, or the SHA-256 of the body on a queue with content-based deduplication
    strict: Sequence[bool] = ()  # reusing the deduplication id with other content is an error, not a duplicate
    traces: Sequence[str] = ()
    priorities: Sequence[int] = ()  # empty: normal
    delays_ms: Sequence[int | None] = ()  # None: the queue's
    ttls_ms: Sequence[int | None] = ()  # None: the queue's retention
    max_receives: Sequence[int] = ()  # 0: the queue's
    producer: str = ""  # who sends them, when the producer numbers its messages: see shard/producers.py
    numbers: Sequence[int] = ()  # the producer's
    request: int = 0  # hash of the name that an SDK gave to its request; 0: it has none
    once: Once | None = None

    @property
    def is_bare(self) -> bool:
        """Whether the messages are nothing but bodies, which no producer numbers and no Idempotency-Key names."""
        return not (self.producer or self.once is not None or self.has_columns)

    @property
    def has_columns(self) -> bool:
        """Whether any message is more than a body."""
        return bool(
            self.attributes
            or self.groups
            or self.dedup_ids
            or self.priorities
            or self.delays_ms
            or self.ttls_ms
            or self.max_receives
            or self.traces
            or self.contents
        )

    def key_at(self, at: int, fifo: bool) -> str:
        """What decides which shard of its queue a message belongs to; empty: nothing does."""
        if fifo:
            return self.groups[at] if self.groups else ""
        return (self.dedup_ids[at] if self.dedup_ids else "") or self.producer

    def is_keyed(self, fifo: bool) -> bool:
        """Whether any message belongs to a certain shard of its queue."""
        return fifo or bool(self.producer) or any(self.dedup_ids)

    def pick(self, places: Sequence[int]) -> Send:
        """The same command with some of its messages."""
        if len(places) == len(self.bodies):
            return self
        changes: dict[str, Any] = {
            name: [column[at] for at in places] for name in SEND_COLUMNS if (column := getattr(self, name))
        }
        return replace(self, **changes)


SEND_COLUMNS = (
    "bodies",
    "digests",
    "contents",
    "attributes",
    "groups",
    "dedup_ids",
    "strict",
    "traces",
    "priorities",
    "delays_ms",
    "ttls_ms",
    "max_receives",
    "numbers",
)


class Accepted(NamedTuple):
    """A message that was taken. A duplicate names the first message; its sequence is 0 and its id empty if unknown."""

    sequence: int
    message_id: str
    duplicate: bool


@dataclass(slots=True)
class Sent:
    """The outcome of a Send. A batch that was taken whole, as new messages in a row, is its first sequence; else each
    message has a result.
    """

    shard: int
    first: int  # 0: see `each`
    count: int
    each: Sequence[Accepted | BatonError] = ()
    replayed: bool = False  # it had been made before, by the same name (`once`), and nothing was sent now
    numbers_from: int = 0  # what is added to a sequence to number a message in its queue, see Spread

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Accepted | BatonError]:
        return iter(self.results())

    def __getitem__(self, at: int) -> Accepted | BatonError:
        return self.results()[at]

    def results(self) -> Sequence[Accepted | BatonError]:
        """A result for each message."""
        if not self.first:
            return self.each
        shard, offset = self.shard, self.numbers_from
        sequences = range(self.first, self.first + self.count)
        return [Accepted(offset + sequence, message_id(shard, sequence), False) for sequence in sequences]

    def numbered(self, numbers_from: int) -> Sent:
        """With the messages' numbers in the queue instead of their sequences on the shard."""
        if not numbers_from:
            return self
        if self.first:
            return replace(self, numbers_from=numbers_from)
        each = [
            one._replace(sequence=numbers_from + one.sequence) if isinstance(one, Accepted) and one.sequence else one
            for one in self.each
        ]
        return replace(self, each=each)


class Claim(NamedTuple):
    """A receipt, opened and checked by node/: which message, under which lease."""

    slot: int
    sequence: int
    epoch: int


@dataclass(slots=True)
class Receive:
    """Lease up to so many messages to a holder. With `wait_ms` the shard's host keeps it until there is one."""

    queue: int
    max_messages: int
    visibility_ms: int | None  # None: the queue's
    holder: str
    attempt: str = ""  # a repeated receive of this name gets the same leases again; FIFO queues only
    wait_ms: int = 0
    whole: bool = False  # the answer needs all that is known of the messages, not only their bodies


@dataclass(slots=True)
class Delete:
    queue: int
    claims: Sequence[tuple[int, int, int]]  # slot, sequence and epoch of each, as in Claim
    strict: bool = False  # only the current lease counts, whatever the queue's setting is


@dataclass(slots=True)
class ChangeVisibility:
    """Each lease ends so many milliseconds from now; 0 gives the message back."""

    queue: int
    claims: Sequence[tuple[int, int, int]]
    visibilities_ms: Sequence[int]
    strict: bool = False


class Failing(NamedTuple):
    """How a holder gives a message back."""

    delay_ms: int | None = None  # None: as the queue's retry policy says, or at once
    reason: str = ""  # at most 500 characters
    error_class: str = ""  # at most 100 characters
    dead_letter: bool = False
    untried: bool = False  # its holder has not begun with it: no failure, and this receive does not count


@dataclass(slots=True)
class Nack:
    queue: int
    claims: Sequence[tuple[int, int, int]]
    failings: Sequence[Failing]


Command = Send | Receive | Delete | ChangeVisibility | Nack


class Lease(NamedTuple):
    """One message handed to one holder. The payload is in the log at `position`, `offset`, `length`."""

    slot: int
    sequence: int
    epoch: int
    receive_count: int
    deadline_ms: int
    sent_ms: int
    first_received_ms: int
    priority: int
    position: int
    offset: int
    length: int
    overlays: tuple[int, ...]  # positions of records whose lineage lies over the payload, oldest first


@dataclass(slots=True)
class Leases:
    """Messages handed to one holder at one time, as columns. Position and extent say where each payload is.

    Most are first leases: their epoch and receive count are 1, and they were first received when they were leased.
    """

    leased_ms: int
    deadline_ms: int
    slots: Sequence[int] = ()
    sequences: Sequence[int] = ()
    positions: Sequence[int] = ()
    extents: Sequence[int] = ()
    sents_ms: Sequence[int] = ()
    priority: int = 0  # of all of them
    priorities: Sequence[int] = ()  # of each, when they differ
    epochs: Sequence[int] = ()  # empty: first leases
    counts: Sequence[int] = ()  # receives, empty for first leases
    firsts_ms: Sequence[int] = ()  # when each was received first, empty for first leases
    overlays: Sequence[tuple[int, ...]] = ()  # positions of records whose lineage lies over the payload, oldest first
    whole: Leases | None = None  # the run of several requests that these are a part of,
    start: int = 0  # and where in it they begin
    kept: dict[str, Any] | None = None  # what node/ has made for the whole run at once, for its parts

    def __len__(self) -> int:
        return len(self.slots)

    def shared(self, name: str, make: Callable[[Leases], Any]) -> Any:
        """What `make` makes of leases, made once for the whole run that these are a part of; columns are cut to this
        part.
        """
        whole = self.whole
        if whole is None:
            return make(self)
        if whole.kept is None:
            whole.kept = {}
        if name not in whole.kept:
            whole.kept[name] = make(whole)
        return whole.kept[name]

    def __iter__(self) -> Iterator[Lease]:
        for at in range(len(self.slots)):
            yield self[at]

    def __getitem__(self, at: int) -> Lease:
        extent, sent_ms = self.extents[at], self.sents_ms[at]
        return Lease(
            self.slots[at],
            self.sequences[at],
            self.epochs[at] if self.epochs else 1,
            self.counts[at] if self.counts else 1,
            self.deadline_ms,
            sent_ms,
            self.firsts_ms[at] if self.firsts_ms else max(self.leased_ms, sent_ms),
            self.priorities[at] if self.priorities else self.priority,
            self.positions[at],
            extent & 0xFFFFFFFF,
            extent >> 32,
            self.overlays[at] if self.overlays else (),
        )

    def claims(self) -> list[tuple[int, int, int]]:
        epochs = self.epochs or [1] * len(self.slots)
        return [*zip(self.slots, self.sequences, epochs, strict=True)]

    def part(self, start: int, end: int) -> Leases:
        """Some of them, in a row."""
        return Leases(
            self.leased_ms,
            self.deadline_ms,
            self.slots[start:end],
            self.sequences[start:end],
            self.positions[start:end],
            self.extents[start:end],
            self.sents_ms[start:end],
            self.priority,
            self.priorities[start:end],
            self.epochs[start:end],
            self.counts[start:end],
            self.firsts_ms[start:end],
            self.overlays[start:end],
            self,
            start,
        )

    def apart(self) -> Leases:
        """The same, no longer as a part of a run: what is made of them is made of them alone."""
        return self if self.whole is None else replace(self, whole=None, start=0)

    def pick(self, places: Sequence[int]) -> Leases:
        """Some of them, apart from their run, of which they are not in a row any more."""
        if len(places) == len(self.slots):
            return self
        changes: dict[str, Any] = {
            name: [column[at] for at in places] if (column := getattr(self, name)) else () for name in LEASE_COLUMNS
        }
        return replace(self, whole=None, start=0, kept=None, **changes)


LEASE_COLUMNS = (
    "slots",
    "sequences",
    "positions",
    "extents",
    "sents_ms",
    "priorities",
    "epochs",
    "counts",
    "firsts_ms",
    "overlays",
)


class MessageView(NamedTuple):
    """A message as peek shows it."""

    slot: int
    sequence: int
    state: int
    until_ms: int
    epoch: int
    receive_count: int
    sent_ms: int
    first_received_ms: int
    expires_ms: int
    priority: int
    position: int
    offset: int
    length: int
    overlays: tuple[int, ...]
    holder: str
    error_class: str
    reason: str
    first_failure_ms: int  # in this queue; 0: it never failed
    last_failure_ms: int
    maximum: int  # receives that it has, its own or its queue's; 0: no limit
    ahead: int  # FIFO: state of the first message of its group, when that is another one; else 0
    moves_to: int  # OWED: the queue that it is on its way to
    moves_for: int  # OWED, or DELAYED because it was refused: why it moves, a Reason
    refusals: int  # how often its destination refused it


class Counters(NamedTuple):
    """A queue's numbers, exact at a position of the log."""

    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int
    oldest_sent_ms: int  # of the oldest message that is not deleted; 0 when there is none
    sent: int
    received: int
    deleted: int
    returned: int
    expired_leases: int
    expired_messages: int
    dead_lettered: int
    arrived: int
    stale_deletes: int
    late_deletes: int
    duplicates: int


@dataclass(slots=True)
class Job:
    """A redrive, kept in the source shard's log. See shard/jobs.py."""

    id: str
    source: int  # queue number
    destination: int  # queue number; 0: each to the queue that it came from, or its own when it died there
    destination_shard: int
    rate_per_s: int
    state: str  # RUNNING, PAUSED, COMPLETED, CANCELLING, CANCELLED, FAILED
    started_ms: int
    to_move: int  # messages that there were when it began
    moved: int = 0
    failure: str = ""  # SQS's word for it
    through_sequence: int = 0  # messages up to this one are moved
    destination_arn: str = ""  # as the user gave it; opaque here
    only_dead: bool = False  # the source is no dead-letter queue: what waits there is not the job's to move
    key: int = 0  # a hash of the id, by which moved messages know their job
    source_arn: str = ""  # opaque here
    selection: str = ""  # what to move and how to change it, for node/ to read; empty: everything, as it is
    max_messages: int = 0  # 0: no limit
    ramp_ms: int = 0  # how long it takes to come to the rate
    pause_share: float = 1.0  # it pauses when more than this share of what it moved last dies again; 1: never
    why: str = ""  # why it waits, is paused or failed, for people
    ended_ms: int = 0
    resumed_ms: int = 0  # when it last began or went on
    examined: int = 0
    matched: int = 0
    died_again: int = 0  # messages that it moved and that became dead letters again
    listed: int = 0  # how many messages it was given by their ids; 0: it goes through the queue
    not_found: int = 0  # of those, how many were not in the queue any more
    cursor: int = 0  # messages up to this sequence are done with
    seen: int = 0  # the highest that was ever looked at: the cursor goes back to messages that were refused
    blocked: int = 0  # the message whose destination was full
    tries: int = 0  # how often in a row it was
    again_ms: int = 0  # when it is tried again
    mark_moved: int = 0  # `moved` and `died_again` where the share is counted from, and where it will be next
    mark_died: int = 0
    next_moved: int = 0
    next_died: int = 0
    destination_spread: str = ""  # its shards when it has several, see spread.py
    origin_spreads: dict[str, str] = field(default_factory=dict)  # the same of FIFO queues that messages go back to
    default_rate: bool = False  # whoever started it named no rate
    share: float = 1.0  # of the rate: the part of a job that goes on at several shards, see node/jobs/job_control.py

    def values(self) -> dict[str, Any]:
        """Every field by its name, for JSON; what is in them is not copied."""
        return dict(zip(self.__slots__, _JOB_FIELDS(self), strict=True))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Job:
        """Fields that this release does not know are left out."""
        return cls(**{name: value for name, value in values.items() if name in cls.__slots__})


_JOB_FIELDS = attrgetter(*Job.__slots__)


class Chosen(NamedTuple):
    """A message that node/ chose for a job."""

    slot: int
    sequence: int
    payload: bytes | None  # what it is changed into
    examined: int  # how many messages new to the job were looked at up to this one
    not_found: int = 0  # and how many that it was given by id were not there


class Alarm(NamedTuple):
    """Something an operator should know. `key` names the condition, so that it is raised once."""

    key: str
    queue: int
    text: str


class Entry(NamedTuple):
    """One committed channel entry on its way to another shard. The host adds payload and overlay from the log."""

    destination_shard: int
    number: int
    destination_queue: int
    reason: int
    slot: int
    sequence: int


@dataclass(slots=True)
class Arrival:
    """One channel entry as the destination sees it: all that is needed to write `Arrived`."""

    source_shard: int
    number: int
    queue: int
    reason: int
    priority: int
    sent_ms: int
    receive_count: int
    payload: bytes  # with the lineage merged in
    group: str
    fifo: bool
    origin: int = 0  # dead letters: source queue | source shard << 32
    redriven: int = 0  # key of the job that moved it: now, or before it died again
    maximum: int = 0  # of receives, its own

"""The commands of a shard and their outcomes, as plain values. The shard itself is in `shard/machine.py`.

A command is one request's work on one queue, as columns: one list per property, with one entry per message. A column
that no message of the request uses is empty and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from batonq.core.ids import message_id
from batonq.errors import BatonError


class Once(NamedTuple):
    """A request named by its sender: its name and content as text, and how long both are remembered."""

    name: str
    content: str
    window_ms: int


@dataclass(slots=True)
class Send:
    """Messages to send to one queue. Times are in milliseconds."""

    queue: int
    bodies: Sequence[bytes]
    digests: Sequence[bytes] = ()  # MD5 of each body; those of messages without a deduplication id may be empty
    sender: str = ""
    content: int = 0  # content type of all bodies, see payload.Content
    contents: Sequence[int] = ()  # content type of each body, if they differ
    attributes: Sequence[bytes] = ()  # encoded and sorted by name, see payload.py
    groups: Sequence[str] = ()
    dedup_ids: Sequence[str] = ()  # explicit, or the SHA-256 of the body on a queue with content-based deduplication
    strict: Sequence[bool] = ()  # reusing the deduplication id with different content is an error, not a duplicate
    traces: Sequence[str] = ()
    priorities: Sequence[int] = ()  # empty: normal priority
    delays_ms: Sequence[int | None] = ()  # None: the queue's delay
    ttls_ms: Sequence[int | None] = ()  # None: the queue's retention period
    max_receives: Sequence[int] = ()  # 0: the queue's maximum
    producer: str = ""  # name of a producer that numbers its messages, see shard/producers.py
    numbers: Sequence[int] = ()  # the producer's number of each message
    request: int = 0  # hash of the name that an SDK gave to its request; 0: no name
    once: Once | None = None
    subjects: Sequence[str] = ()  # of messages that are published to a topic
    lineages: Sequence[bytes] = ()  # of messages that a replay job sends again: where each comes from, see payload.py

    def key_at(self, at: int, fifo: bool) -> str:
        """The key that decides which shard of the queue a message belongs to; empty if any shard will do."""
        if fifo:
            return self.groups[at] if self.groups else ""
        return (self.dedup_ids[at] if self.dedup_ids else "") or self.producer

    def is_keyed(self, fifo: bool) -> bool:
        """Whether any message belongs to a particular shard of its queue."""
        return fifo or bool(self.producer) or any(self.dedup_ids)

    def pick(self, places: Sequence[int]) -> Send:
        """The command with only the messages at these indexes."""
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
    "subjects",
    "lineages",
)


class Accepted(NamedTuple):
    """An accepted message. A duplicate names the first message; its sequence is 0 and its id empty if unknown."""

    sequence: int
    message_id: str
    duplicate: bool


@dataclass(slots=True)
class Sent:
    """The outcome of a Send. If the whole batch was accepted as new messages with consecutive sequences, `first` is
    the first sequence. Otherwise `each` has one result per message.
    """

    shard: int
    first: int  # 0: see `each`
    count: int
    each: Sequence[Accepted | BatonError] = ()
    replayed: bool = False  # an earlier request had the same name (`once`), and nothing was sent now
    numbers_from: int = 0  # offset from a sequence to the message's number in its queue, see Spread

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Accepted | BatonError]:
        return iter(self.results())

    def __getitem__(self, at: int) -> Accepted | BatonError:
        return self.results()[at]

    def results(self) -> Sequence[Accepted | BatonError]:
        """One result per message."""
        if not self.first:
            return self.each
        shard, offset = self.shard, self.numbers_from
        sequences = range(self.first, self.first + self.count)
        return [Accepted(offset + sequence, message_id(shard, sequence), False) for sequence in sequences]

    def numbered(self, numbers_from: int) -> Sent:
        """The outcome with the messages' numbers in the queue instead of their sequences on the shard."""
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
    """The content of a receipt, after node/ has opened and checked it: the message and its lease."""

    slot: int
    sequence: int
    epoch: int


@dataclass(slots=True)
class Receive:
    """Lease up to `max_messages` messages to a holder. With `wait_ms` the shard's host keeps the command until a
    message is available.
    """

    queue: int
    max_messages: int
    visibility_ms: int | None  # None: the queue's timeout
    holder: str
    attempt: str = ""  # a repeated receive with this attempt id gets the same leases; FIFO queues only
    wait_ms: int = 0
    whole: bool = False  # the answer needs all properties of the messages, not only their bodies


@dataclass(slots=True)
class Delete:
    queue: int
    claims: Sequence[tuple[int, int, int]]  # slot, sequence and epoch per claim, as in Claim
    strict: bool = False  # accept only current leases, whatever the queue's setting


@dataclass(slots=True)
class ChangeVisibility:
    """Let each lease end this many milliseconds from now; 0 makes the message VISIBLE at once."""

    queue: int
    claims: Sequence[tuple[int, int, int]]
    visibilities_ms: Sequence[int]
    strict: bool = False


class Failing(NamedTuple):
    """How a holder returns a message."""

    delay_ms: int | None = None  # None: by the queue's retry policy, or 0 without one
    reason: str = ""  # at most 500 characters
    error_class: str = ""  # at most 100 characters
    dead_letter: bool = False
    untried: bool = False  # the holder has not started on it: no failure, and the receive is not counted


class Failure(NamedTuple):
    """What is known about the failed attempts of a message: the first and the last time, and the last error."""

    first_ms: int
    last_ms: int
    error_class: str
    reason: str


@dataclass(slots=True)
class Nack:
    queue: int
    claims: Sequence[tuple[int, int, int]]
    failings: Sequence[Failing]


Command = Send | Receive | Delete | ChangeVisibility | Nack


class Lease(NamedTuple):
    """One message leased to one holder. The payload is in the log at `position`, `offset`, `length`."""

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
    overlays: tuple[int, ...]  # positions of the records with its lineage overlays, oldest first


@dataclass(slots=True)
class Leases:
    """Messages leased to one holder at one time, as columns. Position and extent tell where each payload is.

    Most are first leases: their epoch and receive count are 1, and their first receive is this one.
    """

    leased_ms: int
    deadline_ms: int
    slots: Sequence[int] = ()
    sequences: Sequence[int] = ()
    positions: Sequence[int] = ()
    extents: Sequence[int] = ()
    sents_ms: Sequence[int] = ()
    priority: int = 0  # of all messages
    priorities: Sequence[int] = ()  # of each message, if they differ
    epochs: Sequence[int] = ()  # empty: first leases
    counts: Sequence[int] = ()  # receive counts; empty for first leases
    firsts_ms: Sequence[int] = ()  # time of each first receive; empty for first leases
    overlays: Sequence[tuple[int, ...]] = ()  # positions of the records with lineage overlays, oldest first
    whole: Leases | None = None  # the run of several requests that these leases are part of
    start: int = 0  # index of the first of these leases in `whole`
    kept: dict[str, Any] | None = None  # results that node/ computed once for the whole run

    def __len__(self) -> int:
        return len(self.slots)

    def shared(self, name: str, make: Callable[[Leases], Any]) -> Any:
        """The result of `make`, computed once for the whole run that these leases are part of. The caller slices
        columns to this part.
        """
        whole = self.whole
        if whole is None:
            return make(self)
        kept = whole.kept
        if kept is None:
            kept = whole.kept = {}
        if name not in kept:
            kept[name] = make(whole)
        return kept[name]

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

    def first_receives_ms(self) -> Sequence[int]:
        """The time of each message's first receive."""
        if self.firsts_ms:
            return self.firsts_ms
        leased_ms = self.leased_ms
        return [sent_ms if sent_ms > leased_ms else leased_ms for sent_ms in self.sents_ms]

    def claims(self) -> list[tuple[int, int, int]]:
        epochs = self.epochs or [1] * len(self.slots)
        return [*zip(self.slots, self.sequences, epochs, strict=True)]

    def part(self, start: int, end: int) -> Leases:
        """The leases from index `start` to `end`."""
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

    def join(self, others: Sequence[Leases]) -> None:
        """Make these leases and others, which were decided at the same time for the same queue, parts of one run."""
        parts = (self, *others)
        run = Leases(
            self.leased_ms,
            self.deadline_ms,
            [slot for part in parts for slot in part.slots],
            [sequence for part in parts for sequence in part.sequences],
            [position for part in parts for position in part.positions],
            [extent for part in parts for extent in part.extents],
            epochs=[epoch for part in parts for epoch in part.epochs or [1] * len(part.slots)],
        )
        start = 0
        for part in parts:
            part.whole, part.start = run, start
            start += len(part.slots)

    def apart(self) -> Leases:
        """The same, no longer as a part of a run: what is made of them is made of them alone."""
        return self if self.whole is None else replace(self, whole=None, start=0)

    def pick(self, places: Sequence[int]) -> Leases:
        """The leases at these indexes, apart from their run, of which they are no longer a row."""
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


class Place(NamedTuple):
    """Where the payload of a message is in the log, and the records whose lineage lies over it, oldest first."""

    position: int
    offset: int
    length: int
    overlays: tuple[int, ...]


class Departing(NamedTuple):
    """What a message on its way to another shard takes along beside its payload."""

    queue: int
    fifo: bool
    priority: int
    sent_ms: int
    receive_count: int
    redriven: int  # key of the job that moved it to the queue that it leaves
    maximum: int  # of receives, its own
    origin: int = 0  # where a redrive takes it: queue | shard << 32


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
    first_failure_ms: int  # in this queue; 0 if it never failed
    last_failure_ms: int
    maximum: int  # maximum of receives, its own or the queue's; 0: no limit
    ahead: int  # FIFO: state of the first message of its group, if that is another message; otherwise 0
    moves_to: int  # OWED, and every copy in a topic: the destination queue
    moves_for: int  # OWED, or DELAYED after a refusal: the Reason of the move
    refusals: int  # number of refusals by its destination
    origin: int = 0  # of a dead letter: source queue | source shard << 32


class CurrentLease(NamedTuple):
    """Who holds a message, since when and until when."""

    queue: int
    holder: str
    leased_ms: int
    deadline_ms: int


class Counters(NamedTuple):
    """A queue's counters, exact at one position of the log."""

    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int
    oldest_sent_ms: int  # of the oldest message in the queue; 0 if the queue is empty
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
    oldest_visible_ms: int = 0  # when the oldest message that can be received was sent; 0: there is none

    @property
    def present(self) -> int:
        """All messages of the queue, in whatever state."""
        return self.visible + self.in_flight + self.delayed + self.owed + self.dead


class ExactCounters(NamedTuple):
    """A queue's counters at one position of a shard's log: what exactly the records before that position did."""

    position: int  # as in records.py
    counters: Counters
    moved: int  # messages that left for another queue, or for a fresh start in the same one; all dead letters are here
    expired_moved: int  # how many of `expired_messages` were dead-lettered

    @property
    def expired(self) -> int:
        """Messages that expired and were deleted. The others that expired were dead-lettered."""
        return self.counters.expired_messages - self.expired_moved

    @property
    def entered(self) -> int:
        return self.counters.sent + self.counters.arrived

    @property
    def accounted(self) -> int:
        """Messages that were deleted, expired, were moved, or are still in the queue: as many as entered it."""
        return self.counters.deleted + self.expired + self.moved + self.counters.present


@dataclass(slots=True)
class Job:
    """A redrive, or a deletion of messages, stored in the source shard's log. See shard/commands/jobs.py."""

    id: str
    source: int  # queue number
    destination: int  # queue number; 0: each message's origin, or its own queue if it died there
    destination_shard: int
    rate_per_s: int
    state: str  # RUNNING, PAUSED, COMPLETED, CANCELLING, CANCELLED, FAILED
    started_ms: int
    to_move: int  # number of messages at the start
    moved: int = 0
    failure: str = ""  # code of a BatonError
    through_sequence: int = 0  # messages up to this sequence are moved
    destination_arn: str = ""  # as the user gave it; not interpreted here
    only_dead: bool = False  # the source is not a dead-letter queue, so only its DEAD messages are moved
    key: int = 0  # hash of the id; moved messages carry it
    source_arn: str = ""  # not interpreted here
    selection: str = ""  # what to move and how to change it, read by node/; empty: everything, unchanged
    max_messages: int = 0  # 0: no limit
    ramp_ms: int = 0  # time until the job reaches its rate
    pause_share: float = 1.0  # pause if more than this share of the last moved messages dies again; 1: never
    why: str = ""  # why the job waits, is paused or has failed, as text for users
    ended_ms: int = 0
    resumed_ms: int = 0  # time of the last start or resume
    examined: int = 0
    matched: int = 0
    died_again: int = 0  # moved messages that were dead-lettered again
    listed: int = 0  # number of messages given by id; 0: the job goes through the queue
    not_found: int = 0  # number of those that were no longer in the queue
    cursor: int = 0  # messages up to this sequence have been handled
    seen: int = 0  # highest sequence ever examined; the cursor goes back to refused messages
    blocked: int = 0  # sequence of the message whose destination was full
    tries: int = 0  # consecutive times that it was full
    again_ms: int = 0  # time of the next attempt
    mark_moved: int = 0  # mark_*: `moved` and `died_again` where the current window began; next_*: where the next began
    mark_died: int = 0
    next_moved: int = 0
    next_died: int = 0
    destination_spread: str = ""  # shards of the destination if it has several, see spread.py
    origin_spreads: dict[str, str] = field(default_factory=dict)  # number → spread, of FIFO origin queues
    default_rate: bool = False  # the request named no rate
    # redrive, delete, replay (see replay_jobs.py); a delete job always has a selection, and `moved` counts deletes
    kind: str = "redrive"
    share: float = 1.0  # this shard's share of the rate, for a job on several shards: see node/jobs/job_control.py

    def values(self) -> dict[str, Any]:
        """Every field by name, for JSON. The values are not copied."""
        return dict(zip(self.__slots__, _JOB_FIELDS(self), strict=True))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Job:
        """A job from its fields. Fields that this release does not know are ignored."""
        return cls(**{name: value for name, value in values.items() if name in cls.__slots__})


_JOB_FIELDS = attrgetter(*Job.__slots__)


class Chosen(NamedTuple):
    """A message that node/ chose for a job."""

    slot: int
    sequence: int
    payload: bytes | None  # new payload, if the job changes the message
    examined: int  # messages new to the job that were examined up to this one
    not_found: int = 0  # messages given by id that were not found up to this one


class Alarm(NamedTuple):
    """A condition that an operator should know. `key` names the condition, so that it is raised once."""

    key: str
    queue: int
    text: str


class Entry(NamedTuple):
    """One committed channel entry to another shard. The host adds payload and overlay from the log."""

    destination_shard: int
    number: int
    destination_queue: int
    reason: int
    slot: int
    sequence: int


@dataclass(slots=True)
class Arrival:
    """One channel entry at the destination: everything needed to write `Arrived`."""

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
    redriven: int = 0  # key of the job that moves it now, or moved it before it died again
    maximum: int = 0  # its own maximum of receives
    same_as: int = 0  # not 0: the payload is that of the arrival this many places before, and left out here

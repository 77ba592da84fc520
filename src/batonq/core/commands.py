"""What can be asked of a shard, and what it answers. Plain values; the shard itself is in `shard/machine.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from batonq.priorities import NORMAL_PRIORITY


@dataclass(slots=True)
class Send:
    """One message to be sent. Text fields are `str`, empty when absent; times are milliseconds."""

    body: bytes
    body_md5: bytes  # 16 bytes, over the body; empty when there is no dedup id and nobody asked for it
    attributes: bytes = b""  # see payload.py: the digest's own encoding, sorted by name
    sender: str = ""
    group: str = ""
    dedup_id: str = ""  # already chosen: explicit, or SHA-256 of the body on a queue with content-based dedup
    strict_content: bool = False  # the same dedup id with other content is a conflict, not a duplicate
    trace: str = ""
    priority: int = NORMAL_PRIORITY
    delay_ms: int | None = None  # None: the queue's
    ttl_ms: int | None = None  # None: the queue's retention
    max_receives: int = 0  # 0: the queue's
    content: int = 0  # what the body is, see payload.Content
    producer: str = ""  # who sends it, when a number of its own tells a repetition: see shard/producers.py
    producer_sequence: int = 0


class Accepted(NamedTuple):
    """A send that was taken. A duplicate names the first message; its sequence is 0 and its id empty if unknown."""

    sequence: int
    message_id: str
    duplicate: bool


class Claim(NamedTuple):
    """A receipt, opened and checked by node/: which message, under which lease."""

    slot: int
    sequence: int
    epoch: int


class Nack(NamedTuple):
    claim: Claim
    delay_ms: int | None = None  # None: as the queue's retry policy says, or at once
    reason: str = ""  # at most 500 characters
    error_class: str = ""  # at most 100 characters
    dead_letter: bool = False
    untried: bool = False  # its holder has not begun with it: no failure, and this receive does not count


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


class FirstLeases(NamedTuple):
    """A run of first leases (epoch and count are 1), as columns. Position and extent say where each payload is."""

    slots: Sequence[int]
    sequences: Sequence[int]
    positions: Sequence[int]
    extents: Sequence[int]
    sents_ms: Sequence[int]
    leased_ms: int
    deadline_ms: int

    def part(self, start: int, end: int) -> FirstLeases:
        """Some of them."""
        slots, sequences, positions, extents, sents_ms = [column[start:end] for column in self[:5]]
        return FirstLeases(slots, sequences, positions, extents, sents_ms, self.leased_ms, self.deadline_ms)


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
    share: float = 1.0  # of the rate: the part of a job that goes on at several shards, see node/jobs.py

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

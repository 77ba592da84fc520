"""What can be asked of a shard, and what it answers. Plain values; the shard itself is in `shard.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


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
    priority: int = 0
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
    """A move task (redrive), kept in the source shard's log."""

    id: str
    source: int  # queue number
    destination: int  # queue number; 0: each to the queue that it came from, or its own when it died there
    destination_shard: int
    rate_per_s: int
    state: str  # RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED
    started_ms: int
    to_move: int
    moved: int = 0
    failure: str = ""
    through_sequence: int = 0  # messages up to this one are moved
    destination_arn: str = ""  # as the user gave it; opaque here
    only_dead: bool = False  # the source is no dead-letter queue: what waits there is not the job's to move


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

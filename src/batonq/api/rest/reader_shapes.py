"""Reader groups and retained history of the REST API."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from batonq.api.rest.queue_shapes import QueueName
from batonq.api.rest.shapes import Answered, Count, Given, Reason, Wait
from batonq.core.shard.state.readers import NAME_LENGTH_MAX
from batonq.priorities import NORMAL_PRIORITY

POSITIONS_MAX = 64  # per request; a queue has at most this many shards
GroupName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern="^[A-Za-z0-9_.-]+$")]
Member = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern="^[!-~]+$")]
Position = Annotated[str, Meta(min_length=1, max_length=32)]
Positions = Annotated[list[Position], Meta(min_length=1, max_length=POSITIONS_MAX)]
Failures = Annotated[int, Meta(ge=1, le=1_000)]
Session = Annotated[float, Meta(ge=1, le=3_600)]
Epoch = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Shards = Annotated[list[Annotated[int, Meta(ge=0, le=0xFFFF)]], Meta(max_length=POSITIONS_MAX)]
StartOrTime = Annotated[str, Meta(min_length=1, max_length=64)] | int


class ReaderSpec(Given, kw_only=True):
    """A reader group to create. `from` is `start`, `end` or a time."""

    name: GroupName
    from_: StartOrTime = field(default="start", name="from")
    dead_letter_queue: QueueName | None = None
    max_failures: Failures = 3
    session_seconds: Session = 30


class JoinSpec(Given):
    """A member that joins a group, or reports that it is alive."""

    member: Member


class FetchSpec(Given, kw_only=True):
    """What a member fetches. Without `shards`, the server looks up which shards the member has."""

    member: Member
    epoch: Epoch
    shards: Shards | None = None
    after: Annotated[list[Position], Meta(max_length=POSITIONS_MAX)] | None = None
    commit: Annotated[list[Position], Meta(max_length=POSITIONS_MAX)] | None = None
    max_messages: Count = 100
    wait_seconds: Wait = 0


class CommitSpec(Given, kw_only=True):
    """The last position that is done on each of some shards."""

    member: Member
    epoch: Epoch
    positions: Positions


class FailSpec(Given, kw_only=True):
    """A position whose message could not be processed."""

    member: Member
    epoch: Epoch
    position: Position
    error: Reason = ""


class SeekSpec(Given, kw_only=True):
    """Where a group continues: everywhere at `to` (`start`, `end` or a time), or on some shards at positions."""

    to: StartOrTime | None = None
    positions: Positions | None = None


class ReaderMember(Answered, kw_only=True):
    member: str
    shards: list[int]


class ReaderShard(Answered, kw_only=True):
    """A group's progress on one shard. Everything up to `committed` is done."""

    shard: int
    committed: str
    lag_messages: int
    lag_seconds: float
    last: str = ""
    member: str = ""
    failed_position: str = ""
    failures: int = 0
    error: str = ""


class Reader(Answered, kw_only=True):
    """A reader group."""

    name: str
    queue: str
    created_at_ms: int
    epoch: int
    max_failures: int
    session_seconds: float
    lag_messages: int
    lag_seconds: float
    members: list[ReaderMember]
    shards: list[ReaderShard]
    dead_letter_queue: str = ""


class Readers(Answered, kw_only=True):
    readers: list[Reader]


class Joined(Answered, kw_only=True):
    """What a member may read. Positions that were fetched before `resetEpoch` must not be committed."""

    member: str
    epoch: int
    shards: list[int]
    reset_epoch: int
    members: int
    session_seconds: float


class RetainedMessage(Answered):
    """A message of the retained history."""

    position: str
    message_id: str
    sequence: int
    sent_at_ms: int
    entered_at_ms: int
    body: Any = UNSET
    priority: int = NORMAL_PRIORITY
    body_base64: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    message_group_id: str = ""
    deduplication_key: str = ""
    traceparent: str = ""
    tracestate: str = ""


class FetchedMessages(Answered, kw_only=True):
    """`lagMessages`: how many messages of the fetched shards are not committed, these included."""

    messages: list[RetainedMessage]
    lag_messages: int
    blocked_at: str = ""


class HistoryPage(Answered, kw_only=True):
    """`nextCursor` is absent at the end of the history."""

    messages: list[RetainedMessage]
    next_cursor: str = ""


class Committed(Answered, kw_only=True):
    positions: list[str]


class FailResult(Answered, kw_only=True):
    """`why`: why the position was not skipped although it has failed often enough."""

    failures: int
    skipped: bool
    why: str = ""

"""Jobs of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from batonq.api.rest.queue_shapes import QueueName
from batonq.api.rest.shapes import ATTRIBUTES_MAX, Answered, Attributes, ErrorClass, Given, MessageId, Reason
from batonq.node.jobs.id_list import LISTED_MAX

RATE_MAX_PER_S = 10_000
REPLACEMENTS_MAX = 50

Rate = Annotated[int, Meta(ge=1, le=RATE_MAX_PER_S)]
Ramp = Annotated[float, Meta(ge=0, le=86_400)]
Age = Annotated[float, Meta(ge=0, le=100_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1, max_length=16_384)]
Most = Annotated[int, Meta(ge=1, le=10**12)]
DeadLetterGroupKey = Annotated[str, Meta(min_length=1, max_length=64)]
JobStates = Literal["active", "all"]
AttributeName = Annotated[str, Meta(min_length=1, max_length=256)]


class RedriveFilter(Given):
    """Conditions that a message must meet, all of them."""

    attributes: Attributes | None = None
    error_class: ErrorClass | None = None
    reason_contains: Reason | None = None
    min_age_seconds: Age | None = None
    max_age_seconds: Age | None = None
    body_contains: Text | None = None
    group: DeadLetterGroupKey | None = None
    message_ids: Annotated[list[MessageId], Meta(min_length=1, max_length=LISTED_MAX)] | None = None


class TextReplacement(Given):
    find: Text
    replacement: Annotated[str, Meta(max_length=16_384)] = field(name="with")


class RedriveEdit(Given):
    """How to change messages before they are moved: their attributes, and the whole body or texts in it."""

    set_attributes: Attributes | None = None
    remove_attributes: Annotated[list[AttributeName], Meta(max_length=ATTRIBUTES_MAX)] | None = None
    replace_body: Any = UNSET
    replace_text: Annotated[list[TextReplacement], Meta(max_length=REPLACEMENTS_MAX)] | None = None


class RedriveSpec(Given):
    """Which dead letters to move, where to, and how fast. Without `targetQueue`, each returns to its source queue."""

    target_queue: QueueName | None = None
    max_messages_per_second: Rate = 10
    ramp_seconds: Ramp | None = None
    filter: RedriveFilter | None = None
    edit: RedriveEdit | None = None
    dry_run: bool = False
    max_messages: Most | None = None
    pause_when_dying_share: Share = 0.5


class DeleteSpec(Given):
    """Which messages to delete. Messages that a consumer holds, or that are being moved, are left."""

    filter: RedriveFilter | None = None
    max_messages_per_second: Rate = 1_000
    dry_run: bool = False
    max_messages: Most | None = None


class SampledMessage(Answered, kw_only=True):
    """A message that a dry run matched, as it would be moved."""

    message_id: str
    current_id: str
    sequence: int
    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    error_class: str = ""
    reason: str = ""
    sent_at_ms: int


class Job(Answered, kw_only=True):
    """A job and its progress. `why` says why it is waiting, paused or failed."""

    job_id: str
    kind: Literal["redrive", "delete", "replay"]
    source_queue: str
    target_queue: str | UnsetType = UNSET
    state: Literal["RUNNING", "PAUSED", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"]
    why: str
    max_messages_per_second: int
    current_rate: float
    started_at_ms: int
    ended_at_ms: int | UnsetType = UNSET
    examined: int
    matched: int
    moved: int
    remaining: int
    died_again: int
    not_found: int
    dry_run: bool
    sample: list[SampledMessage] | UnsetType = UNSET


class Jobs(Answered):
    """Jobs. `complete` is false if some shards did not answer, so that their jobs are missing."""

    jobs: list[Job]
    complete: bool = True

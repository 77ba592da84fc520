"""Every error that a user can get. Each class has a code, an HTTP status, and says whether a retry can succeed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

# What a client is told about an unexpected exception, which the log describes.
FAULT = "An internal error occurred; see the server's log."


class BatonError(Exception):
    """An internal error occurred in Baton."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def message(self) -> str:
        return str(self.args[0])


# --- what the caller asked for cannot be done -------------------------------------------------


class InvalidInput(BatonError):
    """The request is not valid."""

    code = "invalid_input"
    status = 400


class InvalidAttributeName(InvalidInput):
    """The attribute does not exist, or this request cannot set it."""

    code = "invalid_attribute_name"


class InvalidAttributeValue(InvalidInput):
    """The attribute's value is not valid."""

    code = "invalid_attribute_value"


class DeadLetterQueueRefused(InvalidInput):
    """The queue cannot use this dead-letter queue."""

    code = "dead_letter_queue_refused"


class VisibilityTooLong(InvalidInput):
    """The message would be in flight for longer than is allowed since it was received."""

    code = "visibility_too_long"


class TooLarge(InvalidInput):
    """The message or the request exceeds the size limit."""

    code = "too_large"
    status = 413


class NotFound(InvalidInput):
    """The requested URL or object does not exist."""

    code = "not_found"
    status = 404


class MethodNotAllowed(InvalidInput):
    """This URL does not support the request's HTTP method."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(InvalidInput):
    """None of the accepted content types is supported. Accept application/json or application/msgpack."""

    code = "not_acceptable"
    status = 406


class UnsupportedMediaType(InvalidInput):
    """The request's content type is not supported. Use application/json or application/msgpack."""

    code = "unsupported_media_type"
    status = 415


class QueueDoesNotExist(BatonError):
    """The specified queue does not exist."""

    code = "queue_does_not_exist"
    status = 404


class QueueExists(BatonError):
    """A queue with this name already exists with different attributes."""

    code = "queue_exists"
    status = 409


class TopicDoesNotExist(BatonError):
    """The specified topic does not exist."""

    code = "topic_does_not_exist"
    status = 404


class TopicExists(BatonError):
    """A topic with this name already exists with different attributes."""

    code = "topic_exists"
    status = 409


class SubscriptionExists(BatonError):
    """The queue is already subscribed to the topic, with different settings."""

    code = "subscription_exists"
    status = 409


class QueueDeletedRecently(BatonError):
    """You must wait 60 seconds after deleting a queue before you can create another with the same name."""

    code = "queue_deleted_recently"
    status = 409
    retryable = True


class PurgeInProgress(BatonError):
    """Only one purge of a queue is allowed every 60 seconds."""

    code = "purge_in_progress"
    status = 409
    retryable = True


class QueuePaused(BatonError):
    """Sends to the queue are paused. Retry when they are resumed."""

    code = "queue_paused"
    status = 409
    retryable = True


class ReceiptInvalid(BatonError):
    """The receipt is not valid for this queue."""

    code = "receipt_invalid"
    status = 400


class LeaseLost(BatonError):
    """This receipt has expired; another consumer may hold the message now."""

    code = "lease_lost"
    status = 409


class MessageGone(BatonError):
    """The message no longer exists: it was deleted, moved, or expired."""

    code = "message_gone"
    status = 409


class MessageNotFound(NotFound):
    """The queue does not have this message."""

    code = "message_not_found"


class MessageHeld(BatonError):
    """A consumer holds the message, or the message is being moved. Retry when the lease or the move has ended."""

    code = "message_held"
    status = 409
    retryable = True


class DeduplicationConflict(BatonError):
    """The deduplication key was already used with a different body. Use a new key for new content."""

    code = "deduplication_conflict"
    status = 409


class IdempotencyConflict(BatonError):
    """The Idempotency-Key was already used for a different request. Use a new key for each request."""

    code = "idempotency_conflict"
    status = 409


class JobNotFound(BatonError):
    """The job does not exist."""

    code = "job_not_found"
    status = 404


class JobConflict(BatonError):
    """Another job is already running on this queue. Cancel it, or wait until it finishes."""

    code = "job_conflict"
    status = 409
    retryable = True


class NotRetained(BatonError):
    """The queue does not retain its history."""

    code = "not_retained"
    status = 409


class PositionInvalid(InvalidInput):
    """The position does not exist in the queue's retained history."""

    code = "position_invalid"


class ReaderDoesNotExist(NotFound):
    """The reader group does not exist."""

    code = "reader_does_not_exist"


class ReaderExists(BatonError):
    """A reader group with this name already exists with different settings."""

    code = "reader_exists"
    status = 409


class StaleMember(BatonError):
    """The members of the reader group have changed, and this member's assignment is no longer valid. Join again."""

    code = "stale_member"
    status = 409


class ScheduleNotFound(NotFound):
    """The schedule does not exist."""

    code = "schedule_not_found"


class ScheduleExists(BatonError):
    """The queue already has a schedule with this name and a different definition."""

    code = "schedule_exists"
    status = 409


# --- limits: refused, not crashed on ----------------------------------------------------------


class OverLimit(BatonError):
    """A limit was reached. Retry later."""

    code = "over_limit"
    status = 429
    retryable = True


class DiskFull(BatonError):
    """The disk is full: sends are refused, deletes still work. Free disk space, or delete messages."""

    code = "disk_full"
    status = 507
    retryable = True


class Unavailable(BatonError):
    """The shard is temporarily unavailable. Retry."""

    code = "unavailable"
    status = 503
    retryable = True


class PayloadStoreUnavailable(Unavailable):
    """The payload store cannot be reached. Nothing is lost; retry later."""

    code = "payload_store_unavailable"


class PayloadDamaged(BatonError):
    """The body of the message in the payload store is missing, or is not what was sent."""

    code = "payload_damaged"
    status = 500


class NotOwner(Unavailable):
    """This node does not own the shard. Retry: another node owns it or will take it over."""

    code = "not_owner"


# --- who are you ------------------------------------------------------------------------------


class AccessDenied(BatonError):
    """The request is not signed, or its key does not have permission."""

    code = "access_denied"
    status = 403


# --- the log ----------------------------------------------------------------------------------


class LogError(BatonError):
    """The log cannot be read or written."""

    code = "log_error"


class LogCorrupt(LogError):
    """The log is damaged. No data was skipped. The shard is stopped until the log is repaired or restored."""

    code = "log_corrupt"


class LogGap(LogError):
    """The requested position is no longer retained in the log."""

    code = "log_gap"
    status = 410


class Fenced(LogError):
    """Another owner has taken over this log with a higher epoch."""

    code = "fenced"
    status = 503
    retryable = True


class OwnershipHeld(LogError):
    """Another process is using the data directory."""

    code = "ownership_held"


def _all(root: type[BatonError]) -> Iterator[type[BatonError]]:
    yield root
    for child in root.__subclasses__():
        yield from _all(child)


BY_CODE = {error.code: error for error in _all(BatonError)}  # to turn the code in a response back into its class

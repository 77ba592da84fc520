"""Every error a user can meet: one root class; each knows its code, its HTTP status and whether a retry helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class BatonError(Exception):
    """Something went wrong in Baton."""

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
    """There is no such attribute, or it cannot be set here."""

    code = "invalid_attribute_name"


class InvalidAttributeValue(InvalidInput):
    """The value of an attribute is not valid."""

    code = "invalid_attribute_value"


class TooLarge(InvalidInput):
    """The message, or the request, is larger than is allowed."""

    code = "too_large"
    status = 413


class NotFound(InvalidInput):
    """There is nothing at this address."""

    code = "not_found"
    status = 404


class MethodNotAllowed(InvalidInput):
    """This address does not take requests of this method."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(InvalidInput):
    """None of the content types that the client accepts can be given: there are JSON and MessagePack."""

    code = "not_acceptable"
    status = 406


class UnsupportedMediaType(InvalidInput):
    """The request's content type is not known: there are JSON and MessagePack."""

    code = "unsupported_media_type"
    status = 415


class QueueDoesNotExist(BatonError):
    """The specified queue does not exist."""

    code = "queue_does_not_exist"
    status = 404


class QueueExists(BatonError):
    """A queue with this name exists already, with other attributes."""

    code = "queue_exists"
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


class ReceiptInvalid(BatonError):
    """The receipt is not one of this queue's."""

    code = "receipt_invalid"
    status = 400


class LeaseLost(BatonError):
    """The receipt is not the current lease's: that lease has ended, and the message may have another holder."""

    code = "lease_lost"
    status = 409


class MessageGone(BatonError):
    """The message does not exist any more: it was deleted, moved or has expired."""

    code = "message_gone"
    status = 409


class DeduplicationConflict(BatonError):
    """The same deduplication key was used with other content: other content needs another key."""

    code = "deduplication_conflict"
    status = 409


class IdempotencyConflict(BatonError):
    """The same Idempotency-Key was used with another request: each request needs a key of its own."""

    code = "idempotency_conflict"
    status = 409


class JobNotFound(BatonError):
    """There is no such job."""

    code = "job_not_found"
    status = 404


class JobConflict(BatonError):
    """A job is running on this queue already; cancel it or wait for its end."""

    code = "job_conflict"
    status = 409
    retryable = True


# --- limits: refused, not crashed on ----------------------------------------------------------


class OverLimit(BatonError):
    """A limit is reached; try again when there is room."""

    code = "over_limit"
    status = 429
    retryable = True


class DiskFull(BatonError):
    """The disk is full: sends are refused until there is room. Deletes are taken: free some space, or drain queues."""

    code = "disk_full"
    status = 507
    retryable = True


class Unavailable(BatonError):
    """The shard is not being served right now; try again."""

    code = "unavailable"
    status = 503
    retryable = True


class NotOwner(Unavailable):
    """This node does not serve the shard; another one does, or will soon."""

    code = "not_owner"


# --- who are you ------------------------------------------------------------------------------


class AccessDenied(BatonError):
    """The request is not signed by a key that may do this."""

    code = "access_denied"
    status = 403


# --- the log ----------------------------------------------------------------------------------


class LogError(BatonError):
    """The log cannot be read or written."""

    code = "log_error"


class LogCorrupt(LogError):
    """The log is damaged. Nothing was skipped; the shard is stopped until the damage is dealt with."""

    code = "log_corrupt"


class LogGap(LogError):
    """The position asked for is no longer retained."""

    code = "log_gap"
    status = 410


class Fenced(LogError):
    """Another owner has taken this log under a higher epoch."""

    code = "fenced"
    status = 503
    retryable = True


class OwnershipHeld(LogError):
    """The data directory is in use by another process."""

    code = "ownership_held"


def _all(root: type[BatonError]) -> Iterator[type[BatonError]]:
    yield root
    for child in root.__subclasses__():
        yield from _all(child)


BY_CODE = {error.code: error for error in _all(BatonError)}  # what travels by its code is found again by it

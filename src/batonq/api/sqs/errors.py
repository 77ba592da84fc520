"""Errors as SQS clients see them: the JSON type, query code and HTTP status of each, and the mapping from BatonErrors.

botocore takes `Error.Code` from the query code in both protocols. Other SDKs use the JSON type.
"""

from __future__ import annotations

from typing import NamedTuple

from batonq import errors as baton
from batonq.queue_attributes import in_words_of_sqs

SENDER = "Sender"
RECEIVER = "Receiver"
_OLD = "AWS.SimpleQueueService."


class Kind(NamedTuple):
    """One row of the error table."""

    type: str  # in the JSON protocol
    code: str  # in the query protocol
    status: int = 400
    fault: str = SENDER
    namespace: str = "com.amazonaws.sqs"


CORAL = "com.amazon.coral.service"  # AWS's framework in front of SQS, for errors raised before an operation runs


QUEUE_DOES_NOT_EXIST = Kind("QueueDoesNotExist", _OLD + "NonExistentQueue")
QUEUE_NAME_EXISTS = Kind("QueueNameExists", "QueueAlreadyExists")
QUEUE_DELETED_RECENTLY = Kind("QueueDeletedRecently", _OLD + "QueueDeletedRecently")
UNSUPPORTED_OPERATION = Kind("UnsupportedOperation", _OLD + "UnsupportedOperation")
BATCH_ENTRY_IDS_NOT_DISTINCT = Kind("BatchEntryIdsNotDistinct", _OLD + "BatchEntryIdsNotDistinct")
BATCH_REQUEST_TOO_LONG = Kind("BatchRequestTooLong", _OLD + "BatchRequestTooLong")
EMPTY_BATCH_REQUEST = Kind("EmptyBatchRequest", _OLD + "EmptyBatchRequest")
INVALID_BATCH_ENTRY_ID = Kind("InvalidBatchEntryId", _OLD + "InvalidBatchEntryId")
TOO_MANY_ENTRIES = Kind("TooManyEntriesInBatchRequest", _OLD + "TooManyEntriesInBatchRequest")
PURGE_IN_PROGRESS = Kind("PurgeQueueInProgress", _OLD + "PurgeQueueInProgress", 403)
OVER_LIMIT = Kind("OverLimit", "OverLimit", 403)
REQUEST_THROTTLED = Kind("RequestThrottled", "RequestThrottled", 403)
RESOURCE_NOT_FOUND = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
INVALID_PARAMETER_VALUE = Kind("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER = Kind("MissingRequiredParameterException", "MissingParameter")
INVALID_ATTRIBUTE_NAME = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_MESSAGE_CONTENTS = Kind("InvalidMessageContents", "InvalidMessageContents")
RECEIPT_HANDLE_IS_INVALID = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid")
INVALID_ADDRESS = Kind("InvalidAddress", "InvalidAddress")
INVALID_ACTION = Kind("InvalidAction", "InvalidAction")
SERIALIZATION = Kind("SerializationException", "SerializationException", namespace=CORAL)
MALFORMED_INPUT = Kind("MalformedInputException", "MalformedInput", namespace=CORAL)
UNKNOWN_OPERATION = Kind("UnknownOperationException", "UnknownOperation", 404, namespace=CORAL)
METHOD_NOT_ALLOWED = Kind("InvalidHttpRequestException", "InvalidHttpRequest", 405, namespace=CORAL)
ACCESS_DENIED = Kind("AccessDeniedException", "AccessDenied", 403)
MISSING_AUTHENTICATION = Kind("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403, SENDER, CORAL)
INCOMPLETE_SIGNATURE = Kind("IncompleteSignatureException", "IncompleteSignature", 400, SENDER, CORAL)
INVALID_KEY = Kind("UnrecognizedClientException", "InvalidClientTokenId", 403, SENDER, CORAL)
WRONG_SIGNATURE = Kind("InvalidSignatureException", "SignatureDoesNotMatch", 403, SENDER, CORAL)
UNAVAILABLE = Kind("ServiceUnavailableException", "ServiceUnavailable", 503, RECEIVER, CORAL)
INTERNAL = Kind("InternalFailure", "InternalFailure", 500, RECEIVER, CORAL)


class SqsError(Exception):
    """An error to return to an SQS client, in either protocol."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def invalid_value(message: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, message)


def invalid(value: object, parameter: str, reason: str) -> SqsError:
    """InvalidParameterValue, worded as SQS words it for an invalid value. Long values are shortened."""
    return SqsError(
        INVALID_PARAMETER_VALUE, f"Value {shortened(value)} for parameter {parameter} is invalid. Reason: {reason}"
    )


def missing(parameter: str) -> SqsError:
    return SqsError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def shortened(value: object, length_max: int = 1024) -> str:
    text = str(value)
    return text if len(text) <= length_max else text[:length_max] + "..."


# The nearest class of an error decides. A receive reports OverLimit as OVER_LIMIT instead (operations/receiving.py).
_KINDS: dict[type[baton.BatonError], Kind] = {
    baton.QueueDoesNotExist: QUEUE_DOES_NOT_EXIST,
    baton.QueueExists: QUEUE_NAME_EXISTS,
    baton.QueueDeletedRecently: QUEUE_DELETED_RECENTLY,
    baton.PurgeInProgress: PURGE_IN_PROGRESS,
    baton.InvalidAttributeName: INVALID_ATTRIBUTE_NAME,
    baton.InvalidAttributeValue: INVALID_ATTRIBUTE_VALUE,
    baton.InvalidInput: INVALID_PARAMETER_VALUE,
    baton.ReceiptInvalid: RECEIPT_HANDLE_IS_INVALID,
    baton.LeaseLost: INVALID_PARAMETER_VALUE,
    baton.MessageGone: INVALID_PARAMETER_VALUE,
    baton.DeduplicationConflict: INVALID_PARAMETER_VALUE,
    baton.IdempotencyConflict: INVALID_PARAMETER_VALUE,
    baton.JobNotFound: RESOURCE_NOT_FOUND,
    baton.JobConflict: INVALID_PARAMETER_VALUE,
    baton.OverLimit: REQUEST_THROTTLED,
    baton.QueuePaused: REQUEST_THROTTLED,
    baton.AccessDenied: ACCESS_DENIED,
    baton.DiskFull: UNAVAILABLE,
    baton.Unavailable: UNAVAILABLE,
    baton.Fenced: UNAVAILABLE,
    baton.LogGap: UNAVAILABLE,
    baton.LogError: UNAVAILABLE,
}


def translated(error: baton.BatonError) -> SqsError:
    kinds = (_KINDS.get(cls) for cls in type(error).__mro__)
    kind = next((kind for kind in kinds if kind is not None), INTERNAL)
    return SqsError(kind, in_words_of_sqs(error.message))

"""Errors as SNS clients see them, and the mapping from the errors of SQS and of Baton."""

from __future__ import annotations

from batonq import errors as baton
from batonq.api.sqs import errors as sqs
from batonq.api.sqs.errors import RECEIVER, SENDER, SqsError


class SnsError(Exception):
    """An error to return to an SNS client."""

    def __init__(self, code: str, message: str, status: int = 400, fault: str = SENDER) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fault = fault


def invalid(message: str) -> SnsError:
    return SnsError("InvalidParameter", f"Invalid parameter: {message}")


def missing(name: str) -> SnsError:
    return SnsError("ValidationError", f"The parameter {name} is required.")


def denied(message: str) -> SnsError:
    return SnsError("AuthorizationError", message, 403)


def topic_not_found() -> SnsError:
    return SnsError("NotFound", "Topic does not exist", 404)


def subscription_not_found() -> SnsError:
    return SnsError("NotFound", "Subscription does not exist", 404)


# Of errors that the checks of a request raise in the words of SQS: the code and the status in SNS.
_OF_SQS: dict[sqs.Kind, tuple[str, int]] = {
    sqs.INVALID_PARAMETER_VALUE: ("InvalidParameter", 400),
    sqs.MISSING_PARAMETER: ("InvalidParameter", 400),
    sqs.INVALID_ATTRIBUTE_NAME: ("InvalidParameter", 400),
    sqs.INVALID_ATTRIBUTE_VALUE: ("InvalidParameter", 400),
    sqs.INVALID_MESSAGE_CONTENTS: ("InvalidParameter", 400),
    sqs.UNSUPPORTED_OPERATION: ("InvalidParameter", 400),
    sqs.QUEUE_DOES_NOT_EXIST: ("InvalidParameter", 400),
    sqs.ACCESS_DENIED: ("AuthorizationError", 403),
    sqs.REQUEST_THROTTLED: ("Throttled", 429),
    sqs.OVER_LIMIT: ("Throttled", 429),
    sqs.INTERNAL: ("InternalError", 500),
}


def of_sqs(problem: SqsError) -> SnsError:
    """An error of SQS as SNS reports it. Other codes, such as those of signatures and batches, are the same in both."""
    kind = problem.kind
    code, status = _OF_SQS.get(kind, (kind.code.removeprefix("AWS.SimpleQueueService."), kind.status))
    message = f"Invalid parameter: {problem.message}" if code == "InvalidParameter" else problem.message
    return SnsError(code, message, status, kind.fault)


def of_baton(problem: baton.BatonError) -> SnsError:
    """An error of the broker as SNS reports it."""
    if isinstance(problem, baton.TopicDoesNotExist):
        return topic_not_found()
    if isinstance(problem, baton.TopicExists):
        return invalid(f"Attributes Reason: {problem.message}")
    if isinstance(problem, baton.NotFound):
        return SnsError("NotFound", problem.message, 404)
    return of_sqs(sqs.translated(problem))


def fault(message: str) -> SnsError:
    return SnsError("InternalError", message, 500, RECEIVER)

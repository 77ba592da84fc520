"""Errors of the CloudWatch API."""

from __future__ import annotations


class CloudWatchError(Exception):
    """An error with its code in the query protocol and its type in the others."""

    def __init__(self, code: str, type: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.message = message
        self.status = status


def invalid(message: str) -> CloudWatchError:
    return CloudWatchError("InvalidParameterValue", "InvalidParameterValueException", message)


def missing(name: str) -> CloudWatchError:
    return CloudWatchError(
        "MissingParameter", "MissingRequiredParameterException", f"The parameter {name} is required."
    )


def combination(message: str) -> CloudWatchError:
    return CloudWatchError("InvalidParameterCombination", "InvalidParameterCombinationException", message)


def bad_token(token: str) -> CloudWatchError:
    return CloudWatchError("InvalidNextToken", "InvalidNextToken", f"The NextToken {token[:40]!r} is not valid.")


def unknown_operation(name: str) -> CloudWatchError:
    return CloudWatchError(
        "InvalidAction",
        "UnknownOperationException",
        f"The operation {name[:100]!r} is not supported. Supported are GetMetricData, GetMetricStatistics and "
        "ListMetrics.",
    )

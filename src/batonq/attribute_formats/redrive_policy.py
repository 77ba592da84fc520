"""RedrivePolicy and RedriveAllowPolicy: the two JSON attributes that decide where dead letters may go."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from batonq.attribute_formats.arns import QueueName, parse_queue_arn
from batonq.errors import InvalidInput
from batonq.queue_attributes import MAX_RECEIVES_MAX

SOURCE_ARNS_MAX = 10

_REDRIVE_KEYS = ("deadLetterTargetArn", "maxReceiveCount")


class Redrive(NamedTuple):
    """A parsed RedrivePolicy."""

    target: QueueName
    max_receives: int


def parse_json(text: str) -> Any:
    """The value of a JSON text; None if the text is not valid JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _refuse(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}")


def parse_redrive_policy(text: str) -> Redrive:
    """Parse a RedrivePolicy. Raises InvalidInput. Does not check whether the target exists."""
    policy = parse_json(text)
    if not isinstance(policy, dict):
        raise InvalidInput(
            "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a valid JSON map."
        )
    for key in reversed(_REDRIVE_KEYS):
        if key not in policy:
            raise _refuse(text, f"Redrive policy does not contain mandatory attribute: {key}.")
    if len(policy) > len(_REDRIVE_KEYS):
        raise _refuse(text, f"Only following attributes are supported: [{', '.join(_REDRIVE_KEYS)}].")
    count = _count(policy["maxReceiveCount"])
    if not 1 <= count <= MAX_RECEIVES_MAX:
        raise _refuse(
            text,
            f"Invalid value for maxReceiveCount: {policy['maxReceiveCount']}, "
            f"valid values are from 1 to {MAX_RECEIVES_MAX} both inclusive.",
        )
    arn = policy["deadLetterTargetArn"]
    if not isinstance(arn, str) or not arn.startswith("arn:") or arn.count(":") != 5:
        raise _refuse(text, "Invalid value for deadLetterTargetArn.")
    target = parse_queue_arn(arn)
    if target is None:
        raise _refuse(text, "Only SQS queues are valid resources for deadLetterTargetArn.")
    return Redrive(target, count)


def _count(value: Any) -> int:
    """The count, which may be a number or a numeric string; 0, which is out of range, for any other value."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 9 else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def check_redrive_allow_policy(text: str) -> None:
    """Raise InvalidInput unless `text` is a RedriveAllowPolicy."""
    policy = parse_json(text)
    if (
        not isinstance(policy, dict)
        or policy.get("redrivePermission") not in ("allowAll", "denyAll", "byQueue")
        or not policy.keys() <= {"redrivePermission", "sourceQueueArns"}
    ):
        raise InvalidInput(
            "Invalid value for the parameter RedriveAllowPolicy. Reason: It must be a JSON map with redrivePermission "
            "(allowAll, denyAll or byQueue) and, for byQueue, sourceQueueArns."
        )
    arns = policy.get("sourceQueueArns")
    if arns is not None and not (
        isinstance(arns, list) and all(isinstance(arn, str) and parse_queue_arn(arn) for arn in arns)
    ):
        raise _refuse_allow(text, "sourceQueueArns must be a list of the ARNs of queues.")
    if policy["redrivePermission"] != "byQueue":
        if arns:
            raise _refuse_allow(text, "sourceQueueArns needs redrivePermission to be byQueue.")
    elif not arns or len(arns) > SOURCE_ARNS_MAX:
        raise _refuse_allow(text, f"byQueue needs 1 to {SOURCE_ARNS_MAX} sourceQueueArns.")


def _refuse_allow(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"Value {text} for parameter RedriveAllowPolicy is invalid. Reason: {reason}")


def allows_source(redrive_allow_policy: str, source: QueueName) -> bool:
    """Whether a dead-letter queue with this (valid or empty) RedriveAllowPolicy accepts dead letters of `source`."""
    if not redrive_allow_policy:
        return True
    policy = json.loads(redrive_allow_policy)
    if policy["redrivePermission"] == "byQueue":
        return any(parse_queue_arn(arn) == source for arn in policy["sourceQueueArns"])
    return bool(policy["redrivePermission"] == "allowAll")

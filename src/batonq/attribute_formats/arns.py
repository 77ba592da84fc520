"""ARNs of queues.

Baton has a single region of its own, so the partition and region of an ARN are accepted as the client sent them and
never compared. The account and the name identify the queue.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_REGION = "us-east-1"


class QueueName(NamedTuple):
    """The queue that an ARN names."""

    account: str
    name: str


def queue_arn(account: str, name: str, region: str = DEFAULT_REGION) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


def parse_queue_arn(arn: str) -> QueueName | None:
    """The queue that an ARN names; None if it is not the ARN of a queue."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[0] != "arn" or not parts[1] or parts[2] != "sqs" or not parts[4] or not parts[5]:
        return None
    return QueueName(parts[4], parts[5])

"""ARNs of topics and subscriptions. As with queues, the account and the name identify a topic; the region does not."""

from __future__ import annotations

from typing import NamedTuple

from batonq.attribute_formats.arns import DEFAULT_REGION


class TopicName(NamedTuple):
    """The topic that an ARN names."""

    account: str
    name: str


def topic_arn(account: str, name: str, region: str = DEFAULT_REGION) -> str:
    return f"arn:aws:sns:{region}:{account}:{name}"


def subscription_arn(topic: TopicName, uuid: str, region: str = DEFAULT_REGION) -> str:
    return f"{topic_arn(topic.account, topic.name, region)}:{uuid}"


def parse_topic_arn(arn: str) -> TopicName | None:
    """The topic that an ARN names; None if it is not the ARN of a topic."""
    parts = arn.split(":")
    return TopicName(parts[4], parts[5]) if len(parts) == 6 and _is_sns(parts) else None


def parse_subscription_arn(arn: str) -> tuple[TopicName, str] | None:
    """The topic and the UUID of the subscription that an ARN names; None if it is not the ARN of a subscription."""
    parts = arn.split(":")
    if len(parts) != 7 or not _is_sns(parts) or not parts[6]:
        return None
    return TopicName(parts[4], parts[5]), parts[6]


def _is_sns(parts: list[str]) -> bool:
    return parts[0] == "arn" and bool(parts[1]) and parts[2] == "sns" and bool(parts[4]) and bool(parts[5])

"""What the operations share: the broker, and the way from an ARN to a topic or subscription that the caller may use."""

from __future__ import annotations

from typing import NamedTuple

from batonq.api.http import Request
from batonq.api.sns.errors import denied, invalid, missing, subscription_not_found
from batonq.api.sqs.access import Caller
from batonq.api.sqs.errors import shortened
from batonq.attribute_formats.arns import QueueName, parse_queue_arn
from batonq.attribute_formats.permissions import allows
from batonq.attribute_formats.topic_arns import parse_subscription_arn, parse_topic_arn
from batonq.core.catalog.topic_entries import SubscriptionEntry
from batonq.errors import NotFound
from batonq.node.broker import Broker
from batonq.node.catalog.topic_control import Topic


class Call(NamedTuple):
    """One request as an operation sees it."""

    request: Request
    caller: Caller
    operation: str


class Service:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._open = broker.dev

    def topic(self, call: Call, arn: str | None, parameter: str = "TopicArn") -> Topic:
        """The topic of an ARN. Raises SnsError, or TopicDoesNotExist."""
        if not arn:
            raise missing(parameter)
        name = parse_topic_arn(arn)
        if name is None:
            raise invalid(f"{parameter} Reason: {shortened(arn, 256)} is not the ARN of a topic.")
        self._authorize(call, name.account, arn)
        return self.broker.topic(name.account, name.name)

    def subscription(self, call: Call, arn: str | None) -> SubscriptionEntry:
        if not arn:
            raise missing("SubscriptionArn")
        parsed = parse_subscription_arn(arn)
        if parsed is None:
            raise invalid(f"SubscriptionArn Reason: {shortened(arn, 256)} is not the ARN of a subscription.")
        self._authorize(call, parsed[0].account, arn)
        try:
            return self.broker.subscription(arn)
        except NotFound:
            raise subscription_not_found() from None

    def check_endpoint(self, call: Call, arn: str | None) -> str:
        """The ARN of a queue to subscribe. A queue of another account must allow the caller's account to send."""
        name = parse_queue_arn(arn or "")
        if arn is None or name is None:
            raise invalid(f"SQS endpoint ARN: {shortened(arn or '', 256)} is not the ARN of a queue.")
        if not self._open and name.account != call.caller.account and not self._may_send(call, name):
            raise denied(
                f"Account {call.caller.account} may not subscribe queue {shortened(name.name, 80)} of account "
                f"{shortened(name.account, 12)}: the queue's policy does not allow SendMessage."
            )
        return arn

    def _may_send(self, call: Call, name: QueueName) -> bool:
        found = [queue for queue in self.broker.queues(name.account, name.name) if queue.name == name.name]
        return any(
            allows(queue.attributes.get("Policy", ""), call.caller.account, "SendMessage", name) for queue in found
        )

    def _authorize(self, call: Call, account: str, arn: str) -> None:
        if not self._open and account != call.caller.account:
            raise denied(
                f"Account {call.caller.account} is not authorized to perform SNS:{call.operation} on resource "
                f"{shortened(arn, 256)}."
            )

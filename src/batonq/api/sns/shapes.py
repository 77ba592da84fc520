"""The inputs and outputs of the operations. Field names are those of the wire format, and every input is optional here:
each operation checks what it requires. Tests compare the structures with botocore's model.
"""

from __future__ import annotations

from msgspec import Struct

from batonq.api.sqs.shapes import AttributeValue


class Tag(Struct):
    Key: str | None = None
    Value: str | None = None


# --- topics -----------------------------------------------------------------------------------


class CreateTopicInput(Struct):
    Name: str | None = None
    Attributes: dict[str, str] | None = None
    Tags: list[Tag] | None = None
    DataProtectionPolicy: str | None = None


class TopicArnOutput(Struct):
    TopicArn: str


class TopicInput(Struct):
    TopicArn: str | None = None


class ListTopicsInput(Struct):
    NextToken: str | None = None


class ListTopicsOutput(Struct):
    Topics: list[TopicArnOutput]
    NextToken: str | None = None


class AttributesOutput(Struct):
    Attributes: dict[str, str]


class SetTopicAttributesInput(Struct):
    TopicArn: str | None = None
    AttributeName: str | None = None
    AttributeValue: str | None = None


class TagResourceInput(Struct):
    ResourceArn: str | None = None
    Tags: list[Tag] | None = None


class UntagResourceInput(Struct):
    ResourceArn: str | None = None
    TagKeys: list[str] | None = None


class ResourceInput(Struct):
    ResourceArn: str | None = None


class EmptyOutput(Struct):
    """A result element without content, where the operation has one."""


class TagsOutput(Struct):
    Tags: list[Tag]


# --- subscriptions ----------------------------------------------------------------------------


class SubscribeInput(Struct):
    TopicArn: str | None = None
    Protocol: str | None = None
    Endpoint: str | None = None
    Attributes: dict[str, str] | None = None
    ReturnSubscriptionArn: bool | None = None


class ConfirmSubscriptionInput(Struct):
    TopicArn: str | None = None
    Token: str | None = None
    AuthenticateOnUnsubscribe: str | None = None


class SubscriptionArnOutput(Struct):
    SubscriptionArn: str


class SubscriptionInput(Struct):
    SubscriptionArn: str | None = None


class SetSubscriptionAttributesInput(Struct):
    SubscriptionArn: str | None = None
    AttributeName: str | None = None
    AttributeValue: str | None = None


class ListSubscriptionsInput(Struct):
    NextToken: str | None = None


class ListSubscriptionsByTopicInput(Struct):
    TopicArn: str | None = None
    NextToken: str | None = None


class Subscription(Struct):
    SubscriptionArn: str
    Owner: str
    Protocol: str
    Endpoint: str
    TopicArn: str


class SubscriptionsOutput(Struct):
    Subscriptions: list[Subscription]
    NextToken: str | None = None


# --- publishing -------------------------------------------------------------------------------


class PublishInput(Struct):
    TopicArn: str | None = None
    TargetArn: str | None = None
    PhoneNumber: str | None = None
    Message: str | None = None
    Subject: str | None = None
    MessageStructure: str | None = None
    MessageAttributes: dict[str, AttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class PublishOutput(Struct):
    MessageId: str
    SequenceNumber: str | None = None


class PublishBatchRequestEntry(Struct):
    Id: str | None = None
    Message: str | None = None
    Subject: str | None = None
    MessageStructure: str | None = None
    MessageAttributes: dict[str, AttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class PublishBatchInput(Struct):
    TopicArn: str | None = None
    PublishBatchRequestEntries: list[PublishBatchRequestEntry] | None = None


class PublishBatchResultEntry(Struct):
    Id: str
    MessageId: str
    SequenceNumber: str | None = None


class BatchResultErrorEntry(Struct):
    Id: str
    Code: str
    Message: str
    SenderFault: bool


class PublishBatchOutput(Struct):
    Successful: list[PublishBatchResultEntry]
    Failed: list[BatchResultErrorEntry]

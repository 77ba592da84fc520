"""The inputs and outputs of the operations, as typed structures. Field names are those of the wire format.

Every input field is optional here: each operation checks what it requires, with the error messages of SQS. Outputs omit
fields that are None, which is how both protocols omit empty lists and maps. Tests compare all structures with
botocore's model.
"""

# ruff: noqa: N815 - field names are the wire's

from __future__ import annotations

from msgspec import Raw, Struct, field


class AttributeValue(Struct, gc=False, omit_defaults=True):
    """The value of a message attribute. The model includes lists, but no queue accepts them."""

    DataType: str | None = None
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


class Output(Struct, omit_defaults=True):
    """The output of an operation that returns nothing."""


# --- messages ---------------------------------------------------------------------------------


class SendMessageInput(Struct, gc=False):
    # Set by the protocol, never by the client. `clean`: all characters are known to be allowed. `as_is`: no character
    # is escaped.
    clean: bool = field(default=False, name="(clean)")
    as_is: bool = field(default=False, name="(as is)")
    QueueUrl: str | None = None
    MessageBody: str | bytes | None = None  # bytes: its JSON text
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, AttributeValue] | None = None
    MessageSystemAttributes: dict[str, AttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageOutput(Output, gc=False):
    MessageId: str | None = None
    MD5OfMessageBody: str | None = None
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchEntry(Struct, gc=False):
    Id: str | None = None
    MessageBody: str | bytes | None = None  # bytes: its JSON text
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, AttributeValue] | None = None
    MessageSystemAttributes: dict[str, AttributeValue] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageBatchInput(Struct, gc=False):
    clean: bool = field(default=False, name="(clean)")  # see SendMessageInput
    as_is: bool = field(default=False, name="(as is)")
    QueueUrl: str | None = None
    Entries: list[SendMessageBatchEntry] | None = None


class BatchFailure(Struct, gc=False):
    Id: str
    Code: str
    SenderFault: bool
    Message: str


class SendMessageBatchResultEntry(Struct, omit_defaults=True, gc=False):
    Id: str
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class SendMessageBatchOutput(Output, gc=False):
    Successful: list[SendMessageBatchResultEntry] | None = None
    Failed: list[BatchFailure] | None = None


class ReceiveMessageInput(Struct, gc=False):
    QueueUrl: str | None = None
    AttributeNames: list[str] | None = None
    MessageSystemAttributeNames: list[str] | None = None
    MessageAttributeNames: list[str] | None = None
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class Message(Struct, omit_defaults=True, gc=False):
    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str | Raw  # Raw: its JSON text
    Attributes: dict[str, str] | None = None
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: dict[str, AttributeValue] | None = None


class ReceiveMessageOutput(Output, gc=False):
    Messages: list[Message] | None = None


class DeleteMessageInput(Struct, gc=False):
    QueueUrl: str | None = None
    ReceiptHandle: str | None = None


class DeleteMessageBatchEntry(Struct, gc=False):
    Id: str | None = None
    ReceiptHandle: str | None = None


class DeleteMessageBatchInput(Struct, gc=False):
    QueueUrl: str | None = None
    Entries: list[DeleteMessageBatchEntry] | None = None


class BatchSuccess(Struct, gc=False):
    Id: str


class BatchOutput(Output, gc=False):
    """The output of DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    Successful: list[BatchSuccess] | None = None
    Failed: list[BatchFailure] | None = None


class ChangeMessageVisibilityInput(Struct, gc=False):
    QueueUrl: str | None = None
    ReceiptHandle: str | None = None
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatchEntry(Struct, gc=False):
    Id: str | None = None
    ReceiptHandle: str | None = None
    VisibilityTimeout: int | None = None


class ChangeMessageVisibilityBatchInput(Struct, gc=False):
    QueueUrl: str | None = None
    Entries: list[ChangeMessageVisibilityBatchEntry] | None = None


# --- queues -----------------------------------------------------------------------------------


class QueueInput(Struct):
    """The input of operations that take only a queue: DeleteQueue, PurgeQueue, ListQueueTags."""

    QueueUrl: str | None = None


class CreateQueueInput(Struct):
    QueueName: str | None = None
    Attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class QueueUrlOutput(Output):
    QueueUrl: str | None = None


class GetQueueUrlInput(Struct):
    QueueName: str | None = None
    QueueOwnerAWSAccountId: str | None = None


class GetQueueAttributesInput(Struct):
    QueueUrl: str | None = None
    AttributeNames: list[str] | None = None


class GetQueueAttributesOutput(Output):
    Attributes: dict[str, str] | None = None


class SetQueueAttributesInput(Struct):
    QueueUrl: str | None = None
    Attributes: dict[str, str] | None = None


class ListQueuesInput(Struct):
    QueueNamePrefix: str | None = None
    NextToken: str | None = None
    MaxResults: int | None = None


class ListQueuesOutput(Output):
    QueueUrls: list[str] | None = None
    NextToken: str | None = None


class ListDeadLetterSourceQueuesInput(Struct):
    QueueUrl: str | None = None
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueuesOutput(Output):
    queueUrls: list[str] | None = None
    NextToken: str | None = None


class ListQueueTagsOutput(Output):
    Tags: dict[str, str] | None = None


class TagQueueInput(Struct):
    QueueUrl: str | None = None
    Tags: dict[str, str] | None = None


class UntagQueueInput(Struct):
    QueueUrl: str | None = None
    TagKeys: list[str] | None = None


class AddPermissionInput(Struct):
    QueueUrl: str | None = None
    Label: str | None = None
    AWSAccountIds: list[str] | None = None
    Actions: list[str] | None = None


class RemovePermissionInput(Struct):
    QueueUrl: str | None = None
    Label: str | None = None


# --- move tasks -------------------------------------------------------------------------------


class StartMessageMoveTaskInput(Struct):
    SourceArn: str | None = None
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class StartMessageMoveTaskOutput(Output):
    TaskHandle: str | None = None


class CancelMessageMoveTaskInput(Struct):
    TaskHandle: str | None = None


class CancelMessageMoveTaskOutput(Output):
    ApproximateNumberOfMessagesMoved: int | None = None


class ListMessageMoveTasksInput(Struct):
    SourceArn: str | None = None
    MaxResults: int | None = None


class MoveTask(Struct, omit_defaults=True):
    Status: str
    SourceArn: str
    TaskHandle: str | None = None
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    ApproximateNumberOfMessagesMoved: int | None = None
    ApproximateNumberOfMessagesToMove: int | None = None
    FailureReason: str | None = None
    StartedTimestamp: int | None = None


class ListMessageMoveTasksOutput(Output):
    Results: list[MoveTask] | None = None

"""The query protocol: forms to inputs, outputs and errors to XML."""

from __future__ import annotations

from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, to_builtins

from batonq.api.sqs import protocol_query
from batonq.api.sqs.errors import QUEUE_DOES_NOT_EXIST, SqsError
from batonq.api.sqs.operations.table import OPERATIONS
from batonq.api.sqs.shapes import (
    AttributeValue,
    BatchFailure,
    GetQueueAttributesOutput,
    Message,
    Output,
    ReceiveMessageOutput,
    SendMessageBatchOutput,
    SendMessageBatchResultEntry,
)


def read(operation: str, form: dict[str, str]) -> dict[str, object]:
    fields = protocol_query.parse_form(urlencode(form))
    value = protocol_query.decode(OPERATIONS[operation].input, fields, operation)
    return without_none(to_builtins(value, builtin_types=(bytes,)))


def without_none(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return {
        name: without_none(part)
        if isinstance(part, dict)
        else [without_none(item) if isinstance(item, dict) else item for item in part]
        if isinstance(part, list)
        else part
        for name, part in value.items()
        if part is not None and name not in ("(clean)", "(as is)")
    }


def test_every_kind_of_parameter() -> None:
    assert read(
        "SendMessageBatch",
        {
            "Action": "SendMessageBatch",
            "QueueUrl": "http://h/1/q",
            "SendMessageBatchRequestEntry.2.Id": "b",
            "SendMessageBatchRequestEntry.2.MessageBody": "second & last",
            "SendMessageBatchRequestEntry.1.Id": "a",
            "SendMessageBatchRequestEntry.1.MessageBody": "first",
            "SendMessageBatchRequestEntry.1.DelaySeconds": "5",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "text.name",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "String",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue": "é=&",
            "SendMessageBatchRequestEntry.1.MessageAttribute.2.Name": "bytes",
            "SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.DataType": "Binary",
            "SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.BinaryValue": "AAH/",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Name": "AWSTraceHeader",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Value.DataType": "String",
            "SendMessageBatchRequestEntry.1.MessageSystemAttribute.1.Value.StringValue": "Root=1",
        },
    ) == {
        "QueueUrl": "http://h/1/q",
        "Entries": [
            {
                "Id": "a",
                "MessageBody": "first",
                "DelaySeconds": 5,
                "MessageAttributes": {
                    "text.name": {"DataType": "String", "StringValue": "é=&"},
                    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\x01\xff"},
                },
                "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
            },
            {"Id": "b", "MessageBody": "second & last"},
        ],
    }
    assert read(
        "CreateQueue",
        {
            "QueueName": "q",
            "Attribute.1.Name": "DelaySeconds",
            "Attribute.1.Value": "5",
            "Attribute.2.Name": "Policy",
            "Attribute.2.Value": "",
            "Tag.1.Key": "k",
            "Tag.1.Value": "v",
        },
    ) == {"QueueName": "q", "Attributes": {"DelaySeconds": "5", "Policy": ""}, "tags": {"k": "v"}}
    assert read(
        "ReceiveMessage",
        {
            "AttributeName.1": "All",
            "MessageAttributeName.1": "a",
            "MessageAttributeName.2": "b.*",
            "MessageSystemAttributeName.1": "SenderId",
            "WaitTimeSeconds": "-1",
        },
    ) == {
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["a", "b.*"],
        "MessageSystemAttributeNames": ["SenderId"],
        "WaitTimeSeconds": -1,
    }
    assert read("AddPermission", {"AWSAccountId.1": "1", "ActionName.1": "SendMessage", "Label": "l"}) == {
        "AWSAccountIds": ["1"],
        "Actions": ["SendMessage"],
        "Label": "l",
    }
    assert read("UntagQueue", {"TagKey.10": "b", "TagKey.9": "a"}) == {"TagKeys": ["a", "b"]}
    assert read("GetQueueAttributes", {"AttributeName": "All"}) == {"AttributeNames": ["All"]}


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("QueueUrl=a&QueueUrl=b", "MalformedInput"),
        ("QueueUrl=%FF", "MalformedInput"),
        ("&".join(f"x{number}=1" for number in range(3_000)), "MalformedInput"),
        ("AttributeName.x=All", "MalformedInput"),
        ("AttributeName.99999999999=All", "MalformedInput"),
        ("AttributeName.1.x=All", "MalformedInput"),
        ("QueueUrl.1=a", "MalformedInput"),
        ("MaxNumberOfMessages=ten", "InvalidParameterValue"),
        ("MaxNumberOfMessages=1.5", "InvalidParameterValue"),
        ("MaxNumberOfMessages=", "InvalidParameterValue"),
        ("MaxNumberOfMessages=" + "9" * 400, "InvalidParameterValue"),
        ("MaxNumberOfMessages=%D9%A1", "InvalidParameterValue"),
    ],
)
def test_what_is_refused(form: str, code: str) -> None:
    with pytest.raises(SqsError) as caught:
        protocol_query.decode(OPERATIONS["ReceiveMessage"].input, protocol_query.parse_form(form), "ReceiveMessage")
    assert caught.value.kind.code == code and caught.value.kind.status == 400


@pytest.mark.parametrize(
    "form",
    [
        "MessageAttribute.1.Name=a&MessageAttribute.2.Name=a",
        "MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=!",
    ],
)
def test_what_is_refused_of_attributes(form: str) -> None:
    with pytest.raises(SqsError, match=r"given twice|not valid base64"):
        protocol_query.decode(OPERATIONS["SendMessage"].input, protocol_query.parse_form(form), "SendMessage")


names = st.text("abN1.", max_size=12) | st.sampled_from(
    ["Entries.1", "MessageAttribute.1", "MessageAttribute.1.Value.StringValue.1", "Attribute.1.Name", "Tag", "QueueUrl"]
)


@given(st.dictionaries(names, st.text(max_size=8), max_size=8), st.sampled_from(sorted(OPERATIONS)))
def test_any_form_is_an_input_or_a_refusal(form: dict[str, str], operation: str) -> None:
    try:
        outcome: Struct | int = protocol_query.decode(OPERATIONS[operation].input, form, operation)
    except SqsError as error:
        outcome = error.kind.status
    assert outcome == 400 or isinstance(outcome, OPERATIONS[operation].input)


def tag(name: str) -> str:
    return f"{{{protocol_query.NAMESPACE}}}{name}"


def test_outputs_in_xml() -> None:
    output = ReceiveMessageOutput(
        [
            Message(
                "id",
                "receipt",
                "md5",
                "<a> & \"b\"\r\n'c' \u00e9",
                {"SenderId": "me"},
                "md5a",
                {"bytes": AttributeValue("Binary", None, b"\x00\xff"), "text": AttributeValue("String", "x")},
            )
        ]
    )
    root = ET.fromstring(protocol_query.encode(output, "ReceiveMessage", "request-1"))
    assert root.tag == tag("ReceiveMessageResponse")
    message = root.find(f"{tag('ReceiveMessageResult')}/{tag('Message')}")
    assert message is not None
    assert message.findtext(tag("Body")) == "<a> & \"b\"\r\n'c' \u00e9"
    assert message.findtext(f"{tag('Attribute')}/{tag('Name')}") == "SenderId"
    attributes = message.findall(tag("MessageAttribute"))
    assert attributes[0].findtext(f"{tag('Value')}/{tag('BinaryValue')}") == "AP8="
    assert attributes[1].findtext(f"{tag('Value')}/{tag('StringValue')}") == "x"
    assert root.findtext(f"{tag('ResponseMetadata')}/{tag('RequestId')}") == "request-1"


def test_batches_and_empty_outputs_in_xml() -> None:
    output = SendMessageBatchOutput(
        [SendMessageBatchResultEntry("1", "id", "md5")], [BatchFailure("2", "Code", True, "why")]
    )
    assert protocol_query.encode(output, "SendMessageBatch", "r") == (
        b'<?xml version="1.0"?><SendMessageBatchResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        b"<SendMessageBatchResult><SendMessageBatchResultEntry><Id>1</Id><MessageId>id</MessageId>"
        b"<MD5OfMessageBody>md5</MD5OfMessageBody></SendMessageBatchResultEntry><BatchResultErrorEntry><Id>2</Id>"
        b"<Code>Code</Code><SenderFault>true</SenderFault><Message>why</Message></BatchResultErrorEntry>"
        b"</SendMessageBatchResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>"
        b"</SendMessageBatchResponse>"
    )
    assert protocol_query.encode(Output(), "DeleteQueue", "r") == (
        b'<?xml version="1.0"?><DeleteQueueResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        b"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></DeleteQueueResponse>"
    )
    assert b"<GetQueueAttributesResult/>" in protocol_query.encode(
        GetQueueAttributesOutput(), "GetQueueAttributes", "r"
    )


@given(st.text())
def test_errors_in_xml(message: str) -> None:
    """Whatever an error quotes, the answer is well-formed."""
    root = ET.fromstring(protocol_query.error_body(QUEUE_DOES_NOT_EXIST, message, "r"))
    error = root.find(tag("Error"))
    assert error is not None
    assert [part.tag for part in error] == [tag(name) for name in ("Type", "Code", "Message", "Detail")]
    assert error.findtext(tag("Code")) == "AWS.SimpleQueueService.NonExistentQueue"
    assert root.findtext(tag("RequestId")) == "r"

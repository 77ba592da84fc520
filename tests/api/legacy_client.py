"""Runs in a process of its own, with the last botocore that speaks the query protocol: every operation once.

Usage: legacy_client.py ENDPOINT ACCOUNT. Prints OK when all went well; any surprise is an exception.
"""

from __future__ import annotations

import hashlib
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import botocore
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError


def main(endpoint: str, account: str) -> None:
    assert botocore.__version__.startswith("1.29."), botocore.__version__
    session = botocore.session.get_session()
    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": account, "aws_secret_access_key": "secret"}
    sqs = session.create_client("sqs", "us-east-1", endpoint_url=endpoint, config=config, **keys)
    assert sqs.meta.service_model.metadata["protocol"] == "query"
    messages(sqs)
    queues(sqs, endpoint, account)
    moves(sqs, account)
    errors(sqs)
    presigned(sqs)
    sts = session.create_client("sts", "us-east-1", endpoint_url=endpoint, config=config, **keys)
    assert sts.get_caller_identity()["Account"] == account
    print("OK")


def messages(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="messages")["QueueUrl"]
    text = 'l\u00e9gacy <&> " \r\n\t\U0001f600'
    attributes = {
        "text": {"DataType": "String", "StringValue": "v\u00e4lue & more"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff&"},
        "number": {"DataType": "Number.int", "StringValue": "7"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sent = sqs.send_message(
        QueueUrl=url, MessageBody=text, MessageAttributes=attributes, MessageSystemAttributes=trace, DelaySeconds=0
    )
    assert sent["MD5OfMessageBody"] == hashlib.md5(text.encode()).hexdigest()
    assert sent["MD5OfMessageAttributes"] and sent["MD5OfMessageSystemAttributes"]
    [message] = sqs.receive_message(
        QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"], WaitTimeSeconds=1
    )["Messages"]
    assert message["Body"] == text and message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1"
    receipt = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=60)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(9)]
    entries.append({"Id": "bad", "MessageBody": "\x00"})
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == [str(number) for number in range(9)]
    assert answer["Failed"][0]["Code"] == "InvalidMessageContents" and answer["Failed"][0]["SenderFault"] is True
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert len(received) == 9
    handles = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(received)]
    changes = [{**entry, "VisibilityTimeout": 60} for entry in handles]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)["Successful"]) == 9
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 9
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.purge_queue(QueueUrl=url)


def queues(sqs: Any, endpoint: str, account: str) -> None:
    created = sqs.create_queue(
        QueueName="q.fifo", Attributes={"FifoQueue": "true", "DelaySeconds": "3"}, tags={"a": "1", "b": "\u00e9"}
    )
    url = created["QueueUrl"]
    assert url == f"{endpoint}/{account}/q.fifo" == sqs.get_queue_url(QueueName="q.fifo")["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1", "b": "\u00e9"}
    sqs.tag_queue(QueueUrl=url, Tags={"c": "3"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "b"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"c": "3"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "Baton.StrictReceipts": "true"})
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"], found["FifoQueue"]) == ("7", "3", "true")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["1" * 12, "2" * 12], Actions=["SendMessage", "*"])
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert json.loads(policy)["Statement"][0]["Sid"] == "l"
    sqs.remove_permission(QueueUrl=url, Label="l")
    pages = sqs.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 1})
    assert [page["QueueUrls"] for page in pages] == [[f"{endpoint}/{account}/messages"], [url]]
    sqs.delete_queue(QueueUrl=url)


def moves(sqs: Any, account: str) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    dead_arn = f"arn:aws:sqs:us-east-1:{account}:dead"
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": "1"})
    work = sqs.create_queue(QueueName="work", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [work]
    for number in range(3):
        sqs.send_message(QueueUrl=dead, MessageBody=str(number))
    work_arn = f"arn:aws:sqs:us-east-1:{account}:work"
    handle = sqs.start_message_move_task(SourceArn=dead_arn, DestinationArn=work_arn, MaxNumberOfMessagesPerSecond=1)[
        "TaskHandle"
    ]
    [task] = sqs.list_message_move_tasks(SourceArn=dead_arn, MaxResults=10)["Results"]
    assert task["Status"] == "RUNNING" and task["TaskHandle"] == handle and task["DestinationArn"] == work_arn
    assert isinstance(sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"], int)


def errors(sqs: Any) -> None:
    gone = sqs.meta.endpoint_url + "/000000000000/gone"
    refusals: tuple[tuple[Callable[[], Any], str, str], ...] = (
        (
            lambda: sqs.get_queue_url(QueueName="gone"),
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist for this wsdl version.",
        ),
        (
            lambda: sqs.send_message(QueueUrl=gone, MessageBody="x"),
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist for this wsdl version.",
        ),
        (
            lambda: sqs.create_queue(QueueName="messages", Attributes={"DelaySeconds": "9"}),
            "QueueAlreadyExists",
            "A queue already exists with the same name and a different value for attribute DelaySeconds",
        ),
        (
            lambda: sqs.set_queue_attributes(
                QueueUrl=sqs.get_queue_url(QueueName="messages")["QueueUrl"], Attributes={"Nonsense": "1"}
            ),
            "InvalidAttributeName",
            "Unknown Attribute Nonsense.",
        ),
    )
    for call, code, message in refusals:
        try:
            call()
        except ClientError as error:
            said = error.response["Error"]
            assert (said["Code"], said["Message"], said["Type"]) == (code, message, "Sender"), said
        else:
            raise AssertionError(f"{code} was expected")


def presigned(sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName="messages")["QueueUrl"]
    link = sqs.generate_presigned_url("send_message", {"QueueUrl": url, "MessageBody": "by a link"})
    with urllib.request.urlopen(link) as response:
        assert b"<MessageId>" in response.read()
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "by a link"


if __name__ == "__main__":
    main(*sys.argv[1:])

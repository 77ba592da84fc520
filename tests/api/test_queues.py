"""Queues with boto3: making, finding, describing, changing, tagging, purging and deleting them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import client
from tests.api.support import arn_of, counts, receive, refused
from tests.support.server import ACCOUNT, TestServer

GONE = "AWS.SimpleQueueService.NonExistentQueue"


def attributes(sqs: Any, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names)).get("Attributes", {})
    return found


# --- create, find, list -----------------------------------------------------------------------


def test_create_and_find(server: TestServer, sqs: Any, account: str) -> None:
    url = sqs.create_queue(QueueName="a-Queue_1", tags={"team": "red"})["QueueUrl"]
    assert url == f"{server.url}/{account}/a-Queue_1"
    assert sqs.get_queue_url(QueueName="a-Queue_1")["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName="a-Queue_1", QueueOwnerAWSAccountId=account)["QueueUrl"] == url
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "red"}
    with refused(GONE, "The specified queue does not exist."):
        sqs.get_queue_url(QueueName="nothing")
    with refused(GONE, "The specified queue does not exist."):
        sqs.get_queue_url(QueueName="a-Queue_1", QueueOwnerAWSAccountId="999999999999")


def test_create_is_idempotent_and_compares_what_was_passed(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "5"})["QueueUrl"]
    assert sqs.create_queue(QueueName="q")["QueueUrl"] == url
    assert sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "5"})["QueueUrl"] == url
    assert sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "30"})["QueueUrl"] == url
    with refused(
        "QueueAlreadyExists",
        "A queue already exists with the same name and a different value for attribute DelaySeconds",
    ):
        sqs.create_queue(QueueName="q", Attributes={"DelaySeconds": "6"})


@pytest.mark.parametrize("name", ["", "a" * 81, "a b", "a/b", "\u00e9", "a.b", "a.fifo"])
def test_names_that_are_refused(sqs: Any, name: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=name)


def test_fifo_names(sqs: Any) -> None:
    sqs.create_queue(QueueName="x" * 75 + ".fifo", Attributes={"FifoQueue": "true"})
    for name in ("x" * 76 + ".fifo", "plain", ".fifo"):
        with refused("InvalidParameterValue"):
            sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"Nonsense": "1"}, "InvalidAttributeName", "Unknown Attribute Nonsense."),
        ({"QueueArn": "x"}, "InvalidAttributeName", "Unknown Attribute QueueArn."),
        (
            {"DeduplicationScope": "queue"},
            "InvalidAttributeName",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        ({"DelaySeconds": "901"}, "InvalidAttributeValue", None),
        ({"DelaySeconds": "-1"}, "InvalidAttributeValue", None),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue", None),
        ({"MaximumMessageSize": "1048577"}, "InvalidAttributeValue", None),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue", None),
        ({"MessageRetentionPeriod": "1209601"}, "InvalidAttributeValue", None),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue", None),
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue", None),
        ({"VisibilityTimeout": "soon"}, "InvalidAttributeValue", None),
        ({"Policy": "{"}, "InvalidAttributeValue", None),
        ({"KmsDataKeyReusePeriodSeconds": "59"}, "InvalidAttributeValue", None),
        (
            {"SqsManagedSseEnabled": "true", "KmsMasterKeyId": "k"},
            "InvalidAttributeName",
            (
                "You can use one type of server-side encryption (SSE) at one time. "
                "You can either enable KMS SSE or SQS SSE."
            ),
        ),
    ],
)
def test_attributes_that_are_refused(
    sqs: Any, queue: str, given: dict[str, str], code: str, message: str | None
) -> None:
    with refused(code, message):
        sqs.create_queue(QueueName="another", Attributes=given)
    with refused(code, message):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=given)


def test_lists_page(server: TestServer, sqs: Any, account: str) -> None:
    assert "QueueUrls" not in sqs.list_queues()
    names = [f"q{number}" for number in range(5)] + ["other"]
    for name in names:
        sqs.create_queue(QueueName=name)
    assert sqs.list_queues()["QueueUrls"] == [f"{server.url}/{account}/{name}" for name in sorted(names)]
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="q", PaginationConfig={"PageSize": 2})
    assert [len(page["QueueUrls"]) for page in pages] == [2, 2, 1]
    with refused("InvalidParameterValue", "Invalid or expired next token."):
        sqs.list_queues(MaxResults=2, NextToken="\u00e9")
    for count in (0, 1001):
        with refused(
            "InvalidParameterValue",
            "Value for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000.",
        ):
            sqs.list_queues(MaxResults=count)


def test_a_page_is_a_thousand(server: TestServer, sqs: Any, account: str) -> None:
    async def create() -> None:
        for number in range(1_001):
            await server.broker.create_queue(account, f"queue-{number}", {}, {})

    server.run(create)
    first = sqs.list_queues()
    assert len(first["QueueUrls"]) == 1_000
    rest = sqs.list_queues(NextToken=first["NextToken"], MaxResults=1_000)
    assert len(rest["QueueUrls"]) == 1 and "NextToken" not in rest


def test_accounts_are_apart(server: TestServer, sqs: Any, queue: str) -> None:
    other = client("sqs", server.url, "222222222222")
    configured = client("sqs", server.url, "AKIDEXAMPLE")
    assert "QueueUrls" not in other.list_queues()
    assert configured.create_queue(QueueName="mine")["QueueUrl"] == f"{server.url}/{ACCOUNT}/mine"
    other.close()
    configured.close()


# --- attributes -------------------------------------------------------------------------------


def test_attributes_of_a_new_queue(sqs: Any, queue: str, account: str) -> None:
    found = attributes(sqs, queue, "All")
    created = found.pop("CreatedTimestamp")
    assert len(created) == 10 and found.pop("LastModifiedTimestamp") == created
    assert found == {
        "QueueArn": f"arn:aws:sqs:us-east-1:{account}:queue",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
    }
    assert attributes(sqs, queue, "VisibilityTimeout", "QueueArn") == {
        "VisibilityTimeout": "30",
        "QueueArn": f"arn:aws:sqs:us-east-1:{account}:queue",
    }
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
    with refused("InvalidAttributeName", "Unknown Attribute Nonsense."):
        attributes(sqs, queue, "All", "Nonsense")


def test_attributes_of_a_fifo_queue(sqs: Any, fifo: str) -> None:
    found = attributes(sqs, fifo, "All")
    names = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
    assert [found[name] for name in names] == ["true", "true", "queue", "perQueue"]
    with refused(
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    ):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoThroughputLimit": "perMessageGroupId"})


def test_set_attributes(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    server.advance(5)
    policy = json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}]}
    )
    sqs.set_queue_attributes(
        QueueUrl=queue, Attributes={"VisibilityTimeout": "7", "Policy": policy, "KmsMasterKeyId": "alias/x"}
    )
    found = attributes(sqs, queue, "All", "Baton.AgeOfOldestMessage")
    assert found["VisibilityTimeout"] == "7" and json.loads(found["Policy"]) == json.loads(policy)
    assert int(found["LastModifiedTimestamp"]) >= int(found["CreatedTimestamp"]) + 5
    assert int(found["Baton.AgeOfOldestMessage"]) >= 5
    assert (found["KmsMasterKeyId"], found["KmsDataKeyReusePeriodSeconds"], found["SqsManagedSseEnabled"]) == (
        "alias/x",
        "300",
        "false",
    )
    receive(sqs, queue)
    server.advance(8)
    assert counts(sqs, queue) == (1, 0, 0)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "", "KmsMasterKeyId": ""})
    found = attributes(sqs, queue, "All")
    assert not {"Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"} & found.keys()
    with refused("MissingParameter", "The request must contain the parameter Attribute.Name."):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={})


# --- tags -------------------------------------------------------------------------------------


def test_tags(sqs: Any, queue: str) -> None:
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=queue)
    sqs.tag_queue(QueueUrl=queue, Tags={"tag1": "value1", "tag2": "", "tag3": "\u00e9"})
    sqs.untag_queue(QueueUrl=queue, TagKeys=["tag1", "unknown"])
    sqs.tag_queue(QueueUrl=queue, Tags={"tag3": "new"})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"tag2": "", "tag3": "new"}
    sqs.tag_queue(QueueUrl=queue, Tags={f"more{number}": "x" for number in range(48)})
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=queue, Tags={"one": "too many"})
    with refused("MissingParameter"):
        sqs.tag_queue(QueueUrl=queue, Tags={})
    with refused("MissingParameter"):
        sqs.untag_queue(QueueUrl=queue, TagKeys=[])


# --- purge and delete -------------------------------------------------------------------------


def test_purge_removes_everything(sqs: Any, queue: str) -> None:
    for body, delay in (("visible", 0), ("in flight", 0), ("delayed", 60)):
        sqs.send_message(QueueUrl=queue, MessageBody=body, DelaySeconds=delay)
    receive(sqs, queue, 1)
    assert counts(sqs, queue) == (1, 1, 1)
    for _ in range(2):  # the wait of a minute is off in the development profile
        sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == (0, 0, 0)


def test_delete_and_create_again(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.delete_queue(QueueUrl=queue)
    for call in (
        lambda: sqs.delete_queue(QueueUrl=queue),
        lambda: sqs.send_message(QueueUrl=queue, MessageBody="x"),
        lambda: sqs.receive_message(QueueUrl=queue),
        lambda: sqs.purge_queue(QueueUrl=queue),
        lambda: attributes(sqs, queue, "All"),
    ):
        with refused(GONE, "The specified queue does not exist."):
            call()
    assert sqs.create_queue(QueueName="queue")["QueueUrl"] == queue
    assert counts(sqs, queue) == (0, 0, 0)


def test_the_waits_of_a_minute(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = str(tmp_path_factory.mktemp("waits"))
    with TestServer(data, purge_wait_s=60, delete_wait_s=60) as server:
        sqs = client("sqs", server.url, "111111111111")
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.purge_queue(QueueUrl=url)
        with refused(
            "AWS.SimpleQueueService.PurgeQueueInProgress",
            "Only one PurgeQueue operation on q is allowed every 60 seconds.",
            403,
        ):
            sqs.purge_queue(QueueUrl=url)
        server.advance(61)
        sqs.purge_queue(QueueUrl=url)
        sqs.delete_queue(QueueUrl=url)
        with refused(
            "AWS.SimpleQueueService.QueueDeletedRecently",
            "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        ):
            sqs.create_queue(QueueName="q")
        server.advance(61)
        sqs.create_queue(QueueName="q")
        sqs.close()


# --- permissions ------------------------------------------------------------------------------


def test_permissions(sqs: Any, queue: str) -> None:
    arn = arn_of(sqs, queue)
    sqs.add_permission(QueueUrl=queue, Label="first", AWSAccountIds=["111111111111"], Actions=["ReceiveMessage"])
    policy = json.loads(attributes(sqs, queue, "Policy")["Policy"])
    assert policy == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "first",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                "Action": "SQS:ReceiveMessage",
                "Resource": arn,
            }
        ],
    }
    more = {"AWSAccountIds": ["111111111111", "222222222222"], "Actions": ["SendMessage", "*"]}
    with refused("InvalidParameterValue", "Value first for parameter Label is invalid. Reason: Already exists."):
        sqs.add_permission(QueueUrl=queue, Label="first", **more)
    sqs.add_permission(QueueUrl=queue, Label="second", **more)
    sqs.remove_permission(QueueUrl=queue, Label="first")
    [statement] = json.loads(attributes(sqs, queue, "Policy")["Policy"])["Statement"]
    assert statement["Sid"] == "second" and statement["Action"] == ["SQS:SendMessage", "SQS:*"]
    sqs.remove_permission(QueueUrl=queue, Label="second")
    assert attributes(sqs, queue, "Policy") == {}
    with refused("InvalidParameterValue"):
        sqs.remove_permission(QueueUrl=queue, Label="second")
    for label, accounts, actions in (
        ("", ["111111111111"], ["SendMessage"]),
        ("l", [], ["SendMessage"]),
        ("l", ["111111111111"], []),
    ):
        with refused("MissingParameter"):
            sqs.add_permission(QueueUrl=queue, Label=label, AWSAccountIds=accounts, Actions=actions)
    with refused("InvalidParameterValue"):
        sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["1"], Actions=["SendMessage"])
    with refused("InvalidParameterValue"):
        sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["1" * 12], Actions=["CreateQueue"])


# --- who am I ---------------------------------------------------------------------------------


def test_caller_identity(server: TestServer, account: str) -> None:
    for key, expected in ((account, account), ("AKIDEXAMPLE", ACCOUNT)):
        sts = client("sts", server.url, key)
        identity = sts.get_caller_identity()
        assert (identity["Account"], identity["UserId"]) == (expected, key)
        assert identity["Arn"] == f"arn:aws:iam::{expected}:root"
        sts.close()

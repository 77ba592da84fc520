"""SNS on a secured server: requests are signed for the service `sns`, and keys act for their account and role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config

from tests.api.support import refused
from tests.system.process import ServerProcess, baton


class Keys(NamedTuple):
    url: str
    admin: tuple[str, str]
    reader: tuple[str, str]
    other: tuple[str, str]

    def client(self, service: str, key: tuple[str, str]) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            config=Config(retries={"total_max_attempts": 1}),
        )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    directory = tmp_path_factory.mktemp("secured")

    def made(*flags: str) -> tuple[str, str]:
        told = json.loads(baton("keys", "create", "--data", str(directory), "--json", *flags).stdout)
        return told["keyId"], told["secret"]

    admin, reader = made(), made("--role", "read")
    other = made("--account", "222222222222")
    with ServerProcess(directory, "--secure") as server:
        yield Keys(server.url, admin, reader, other)


@pytest.fixture
def sns(keys: Keys) -> Iterator[Any]:
    made = keys.client("sns", keys.admin)
    yield made
    made.close()


def test_a_signed_publish_reaches_a_queue(keys: Keys, sns: Any) -> None:
    sqs = keys.client("sqs", keys.admin)
    url = sqs.create_queue(QueueName="emails")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = sns.create_topic(Name="orders")["TopicArn"]
    raw = {"RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=raw)
    sns.publish(TopicArn=topic, Message="signed")
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "signed"
    sqs.close()


def test_a_wrong_signature_is_refused(keys: Keys) -> None:
    wrong = keys.client("sns", (keys.admin[0], "wrong"))
    with refused("SignatureDoesNotMatch", status=403):
        wrong.list_topics()
    nobody = keys.client("sns", ("AKIANOBODY", "wrong"))
    with refused("InvalidClientTokenId", status=403):
        nobody.list_topics()


def test_a_reading_key_cannot_change_or_publish(keys: Keys, sns: Any) -> None:
    topic = sns.create_topic(Name="read")["TopicArn"]
    reader = keys.client("sns", keys.reader)
    assert topic in [one["TopicArn"] for one in reader.list_topics()["Topics"]]
    assert reader.get_topic_attributes(TopicArn=topic)["Attributes"]["TopicArn"] == topic
    with refused("AuthorizationError", status=403):
        reader.publish(TopicArn=topic, Message="x")
    with refused("AuthorizationError", status=403):
        reader.create_topic(Name="more")


def test_other_accounts_have_no_access(keys: Keys, sns: Any) -> None:
    topic = sns.create_topic(Name="private")["TopicArn"]
    other = keys.client("sns", keys.other)
    assert other.list_topics()["Topics"] == []
    for call, given in (
        (other.publish, {"TopicArn": topic, "Message": "x"}),
        (other.get_topic_attributes, {"TopicArn": topic}),
        (other.delete_topic, {"TopicArn": topic}),
        (other.tag_resource, {"ResourceArn": topic, "Tags": [{"Key": "a", "Value": "b"}]}),
    ):
        with refused("AuthorizationError", status=403):
            call(**given)


def test_a_queue_of_another_account_must_allow_it(keys: Keys, sns: Any) -> None:
    """Otherwise a topic would send into queues that its owner may not send to."""
    sqs = keys.client("sqs", keys.other)
    url = sqs.create_queue(QueueName="theirs")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = sns.create_topic(Name="shared")["TopicArn"]
    account = topic.split(":")[4]
    given = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": arn, "Attributes": {"RawMessageDelivery": "true"}}
    with refused("AuthorizationError", status=403):
        sns.subscribe(**given)
    sqs.add_permission(QueueUrl=url, Label="topic", AWSAccountIds=[account], Actions=["SendMessage"])
    sns.subscribe(**given)
    sns.publish(TopicArn=topic, Message="allowed")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "allowed"
    sqs.purge_queue(QueueUrl=url)
    sqs.remove_permission(QueueUrl=url, Label="topic")
    sns.publish(TopicArn=topic, Message="no longer allowed")
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
    sqs.add_permission(QueueUrl=url, Label="again", AWSAccountIds=[account], Actions=["SendMessage"])
    sns.publish(TopicArn=topic, Message="allowed again")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "allowed again"
    sqs.close()

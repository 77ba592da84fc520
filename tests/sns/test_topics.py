"""Topics and their attributes and tags, with boto3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import client
from tests.api.support import http_request, query_request, refused
from tests.sns.conftest import topic_of
from tests.support.server import TestServer


def test_a_topic_is_created_listed_and_deleted(sns: Any, account: str) -> None:
    arn = topic_of(sns)
    assert arn == f"arn:aws:sns:us-east-1:{account}:orders"
    assert topic_of(sns) == arn  # creating it again finds it
    topic_of(sns, "events")
    assert sns.list_topics()["Topics"] == [
        {"TopicArn": f"arn:aws:sns:us-east-1:{account}:events"},
        {"TopicArn": arn},
    ]
    sns.delete_topic(TopicArn=arn)
    sns.delete_topic(TopicArn=arn)  # not an error
    assert len(sns.list_topics()["Topics"]) == 1
    with refused("NotFound", "Topic does not exist", 404):
        sns.get_topic_attributes(TopicArn=arn)


def test_lists_have_pages(sns: Any) -> None:
    names = [f"topic-{number:03d}" for number in range(205)]
    for name in names:
        topic_of(sns, name)
    pages = [*sns.get_paginator("list_topics").paginate()]
    assert [len(page["Topics"]) for page in pages] == [100, 100, 5]
    assert [topic["TopicArn"].rpartition(":")[2] for page in pages for topic in page["Topics"]] == names
    for token in ("ä", "%%%", "abc"):
        with refused("InvalidParameter", "Invalid parameter: NextToken Reason: the token is not valid."):
            sns.list_topics(NextToken=token)


def test_attributes(sns: Any, account: str) -> None:
    arn = topic_of(sns, DisplayName="Orders")
    attributes = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
    assert attributes["TopicArn"] == arn
    assert attributes["Owner"] == account
    assert attributes["DisplayName"] == "Orders"
    assert attributes["SubscriptionsConfirmed"] == "0"
    assert json.loads(attributes["Policy"])["Statement"][0]["Resource"] == arn
    assert "FifoTopic" not in attributes
    sns.set_topic_attributes(TopicArn=arn, AttributeName="DisplayName", AttributeValue="All orders")
    assert sns.get_topic_attributes(TopicArn=arn)["Attributes"]["DisplayName"] == "All orders"
    sns.set_topic_attributes(TopicArn=arn, AttributeName="DisplayName", AttributeValue="")
    assert sns.get_topic_attributes(TopicArn=arn)["Attributes"]["DisplayName"] == ""
    with refused("InvalidParameter"):
        sns.set_topic_attributes(TopicArn=arn, AttributeName="Colour", AttributeValue="red")
    with refused("InvalidParameter"):
        sns.set_topic_attributes(TopicArn=arn, AttributeName="FifoTopic", AttributeValue="true")


def test_fifo_topics_end_in_fifo(sns: Any) -> None:
    arn = topic_of(sns, "orders.fifo", FifoTopic="true", ContentBasedDeduplication="true")
    attributes = sns.get_topic_attributes(TopicArn=arn)["Attributes"]
    assert (attributes["FifoTopic"], attributes["ContentBasedDeduplication"]) == ("true", "true")
    with refused("InvalidParameter"):
        topic_of(sns, "orders", FifoTopic="true")
    with refused("InvalidParameter"):
        topic_of(sns, "events.fifo")
    with refused("InvalidParameter"):
        topic_of(sns, "orders.fifo", FifoTopic="true", ContentBasedDeduplication="false")


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "a/b"])
def test_names_that_no_topic_can_have(sns: Any, name: str) -> None:
    with refused("InvalidParameter" if name else "ValidationError"):
        topic_of(sns, name)


def test_tags(sns: Any) -> None:
    arn = sns.create_topic(Name="orders", Tags=[{"Key": "team", "Value": "shop"}])["TopicArn"]
    sns.tag_resource(ResourceArn=arn, Tags=[{"Key": "stage", "Value": "test"}, {"Key": "team", "Value": "web"}])
    assert sns.list_tags_for_resource(ResourceArn=arn)["Tags"] == [
        {"Key": "stage", "Value": "test"},
        {"Key": "team", "Value": "web"},
    ]
    sns.untag_resource(ResourceArn=arn, TagKeys=["team"])
    assert sns.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "stage", "Value": "test"}]
    with refused("InvalidParameter", "...Duplicated keys are not allowed."):
        sns.tag_resource(ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}])
    with refused("ResourceNotFound", "Resource does not exist", 404):
        sns.list_tags_for_resource(ResourceArn=arn + "x")


def test_arns_that_are_none(sns: Any) -> None:
    with refused("InvalidParameter", "...is not the ARN of a topic."):
        sns.get_topic_attributes(TopicArn="orders")
    with refused("InvalidParameter", "...is not the ARN of a subscription."):
        sns.get_subscription_attributes(SubscriptionArn="orders")


def test_an_operation_that_baton_does_not_have(sns: Any) -> None:
    with refused("InvalidAction", "...GetSubscriptionAttributes, SetSubscriptionAttributes, Publish, PublishBatch."):
        sns.list_platform_applications()


def test_accounts_do_not_see_each_other_s_topics(server: TestServer, sns: Any, account: str) -> None:
    topic_of(sns)
    other = client("sns", server.url, str(int(account) + 500))
    assert other.list_topics()["Topics"] == []
    other.close()


# --- the wire ---------------------------------------------------------------------------------

FORM = {"Action": "CreateTopic", "Version": "2010-03-31", "Name": "x"}


def test_answers_are_xml_of_sns(server: TestServer) -> None:
    answer = query_request(server, FORM)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/xml"
    assert answer.text.startswith(
        '<CreateTopicResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><CreateTopicResult><TopicArn>arn:aws:sns:'
    )
    request_id = answer.headers["x-amzn-requestid"]
    assert f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>" in answer.text
    assert query_request(server, FORM, method="GET").status == 200


def test_text_in_errors_is_escaped(server: TestServer) -> None:
    answer = query_request(server, {"Action": "<b>&", "Version": "2010-03-31"})
    assert answer.status == 400
    assert "The action &lt;b&gt;&amp; is not supported." in answer.text


@pytest.mark.parametrize(
    "more",
    [
        {"Attributes": "x"},
        {"Attributes.entry": "x"},
        {"Attributes.entry.1": "x"},
        {"Attributes.entry.1.value": "x"},
        {"Attributes.entry.x.key": "x"},
        {"Attributes.entry.1.key.y": "x"},
        {"Tags.member.1": "x"},
        {"Tags.member.99999999.Key": "x"},
        {"Name.member.1": "x"},
        {"Tags": "x", "Tags.member.1.Key": "x"},
    ],
)
def test_forms_that_make_no_sense_are_refused(server: TestServer, more: dict[str, str]) -> None:
    answer = query_request(server, {**FORM, **more})
    assert answer.status == 400
    assert "<Code>InvalidParameter</Code>" in answer.text


def test_a_body_that_is_no_form(server: TestServer) -> None:
    answer = http_request(server, "POST", "/?Version=2010-03-31", "\u00e4".encode())
    assert answer.status == 400
    assert "<Code>MalformedInput</Code>" in answer.text

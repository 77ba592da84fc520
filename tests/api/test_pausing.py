"""A paused queue by SQS: sends are refused with an error that SDKs retry, receives get nothing."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.api.support import bodies, receive


def change(sqs: Any, queue: str, **attributes: str) -> None:
    named = {f"Baton.{name}": value for name, value in attributes.items()}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=named)


def test_sends_are_refused_while_they_are_paused(sqs: Any, queue: str) -> None:
    change(sqs, queue, Paused="sends")
    with pytest.raises(ClientError, match="are paused") as refused:
        sqs.send_message(QueueUrl=queue, MessageBody="a")
    assert refused.value.response["Error"]["Code"] == "RequestThrottled"
    entries = [{"Id": "one", "MessageBody": "a"}]
    (failed,) = sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Failed"]
    assert failed["Code"] == "RequestThrottled" and "are paused" in failed["Message"]
    change(sqs, queue, Paused="none")
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    assert bodies(receive(sqs, queue)) == ["a"]


def test_receives_get_nothing_while_delivery_is_paused(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    change(sqs, queue, Paused="delivery")
    assert receive(sqs, queue, WaitTimeSeconds=1) == []
    names = ["ApproximateNumberOfMessages", "Baton.Paused", "Baton.AgeOfOldestVisibleMessage"]
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    assert attributes["Baton.Paused"] == "delivery" and attributes["ApproximateNumberOfMessages"] == "1"
    assert "Baton.AgeOfOldestVisibleMessage" in attributes
    change(sqs, queue, Paused="")
    assert bodies(receive(sqs, queue)) == ["a"]


@pytest.mark.parametrize(
    ("name", "value"), [("Paused", "all"), ("DeliveriesPerSecond", "many"), ("OnlyGroup", "g" * 129)]
)
def test_wrong_values_name_the_attribute(sqs: Any, queue: str, name: str, value: str) -> None:
    with pytest.raises(ClientError, match=f"Baton.{name}"):
        change(sqs, queue, **{name: value})

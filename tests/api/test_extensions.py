"""What Baton adds to the SQS wire, with boto3 and with headers; and that the reference lists all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from batonq.api.sqs import extensions
from batonq.node.broker import Peeked
from batonq.queue_attributes import ATTRIBUTES, Access
from tests.api.support import bodies, counts, json_request, query_request, receive, refused, wait_until
from tests.api.test_dead_letters import Pair
from tests.support import brokers
from tests.support.server import TestServer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "baton-attributes.md"


def number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def send(sqs: Any, url: str, body: str, **attributes: dict[str, str]) -> dict[str, Any]:
    """Attributes are named without their prefix."""
    named = {f"Baton.{name}": value for name, value in attributes.items()}
    answer: dict[str, Any] = sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=named)
    return answer


def peek(server: TestServer, url: str) -> list[Peeked]:
    account, name = url.split("/")[-2:]
    return server.run(lambda: brokers.peek(server.broker, server.broker.queue(account, name), 0, 100))


# --- message attributes -----------------------------------------------------------------------


def test_priority(sqs: Any, queue: str) -> None:
    for body, priority in (("low", 0), ("high", 200), ("middle", 100)):
        send(sqs, queue, body, Priority=number(priority))
    sqs.send_message(QueueUrl=queue, MessageBody="none")
    messages = receive(sqs, queue, MessageAttributeNames=["All"])
    assert bodies(messages) == ["high", "none", "middle", "low"]  # without a priority it is normal, 128
    # it is returned like any other attribute, and is part of the digest
    assert messages[0]["MessageAttributes"] == {"Baton.Priority": {"DataType": "Number", "StringValue": "200"}}
    assert messages[0]["MD5OfMessageAttributes"]


def test_deduplication_on_a_standard_queue(server: TestServer, sqs: Any, queue: str) -> None:
    first = send(sqs, queue, "once", DeduplicationKey=text("order-1"))
    assert send(sqs, queue, "once", DeduplicationKey=text("order-1"))["MessageId"] == first["MessageId"]
    with refused("InvalidParameterValue", "...Use a new key for new content."):
        send(sqs, queue, "else", DeduplicationKey=text("order-1"))
    assert counts(sqs, queue) == (1, 0, 0)
    [message] = receive(sqs, queue, AttributeNames=["All"])
    assert "MessageDeduplicationId" not in message["Attributes"]
    server.advance(301)
    assert send(sqs, queue, "else", DeduplicationKey=text("order-1"))["MessageId"] != first["MessageId"]


def test_a_conflict_is_told_to_its_entry_of_a_batch(sqs: Any, queue: str) -> None:
    send(sqs, queue, "a", DeduplicationKey=text("k"))
    key = {"Baton.DeduplicationKey": text("k")}
    answer = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "same", "MessageBody": "a", "MessageAttributes": key},
            {"Id": "other", "MessageBody": "b", "MessageAttributes": key},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["same"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [("other", "InvalidParameterValue")]


def test_deduplication_for_as_long_as_the_message_lives(server: TestServer, sqs: Any) -> None:
    url = sqs.create_queue(QueueName="lives", Attributes={"Baton.DeduplicationScope": "lives"})["QueueUrl"]
    first = send(sqs, url, "x", DeduplicationKey=text("k"))
    server.advance(3600)
    assert send(sqs, url, "x", DeduplicationKey=text("k"))["MessageId"] == first["MessageId"]
    [message] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert send(sqs, url, "x", DeduplicationKey=text("k"))["MessageId"] != first["MessageId"]


def test_deduplication_while_alive_ends_when_the_message_is_completed(sqs: Any) -> None:
    """Also within the window that such a queue would have otherwise."""
    url = sqs.create_queue(
        QueueName="alive", Attributes={"Baton.DeduplicationScope": "lives", "Baton.DeduplicationWindow": "3600"}
    )["QueueUrl"]
    for _ in range(3):
        first = send(sqs, url, "x", DeduplicationKey=text("k"))
        assert send(sqs, url, "x", DeduplicationKey=text("k"))["MessageId"] == first["MessageId"]
        [message] = receive(sqs, url)
        assert send(sqs, url, "x", DeduplicationKey=text("k"))["MessageId"] == first["MessageId"], "it is in progress"
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, url) == (0, 0, 0)


def test_a_key_stands_in_for_the_id_of_a_fifo_queue(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="plain.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    key = {"Baton.DeduplicationKey": text("k")}
    one = sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageAttributes=key)
    two = sqs.send_message_batch(
        QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "x", "MessageGroupId": "g", "MessageAttributes": key}]
    )
    assert two["Successful"][0]["MessageId"] == one["MessageId"]


def test_time_to_live(server: TestServer, sqs: Any, queue: str) -> None:
    send(sqs, queue, "short", TimeToLive=number(10))
    send(sqs, queue, "long")
    server.advance(12)
    assert bodies(receive(sqs, queue)) == ["long"]


def test_max_receives(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, max_receives=10)
    send(sqs, pair.work, "x", MaxReceives=number(1))
    receive(sqs, pair.work, VisibilityTimeout=1)
    server.advance(2)
    assert receive(sqs, pair.work) == []
    wait_until(lambda: counts(sqs, pair.dead) == (1, 0, 0))


def test_a_delay_of_days(server: TestServer, sqs: Any, queue: str) -> None:
    send(sqs, queue, "later", DelaySeconds=number(86_400))
    server.advance(86_000)
    assert counts(sqs, queue) == (0, 0, 1)
    server.advance(401)
    assert bodies(receive(sqs, queue)) == ["later"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Priority", "256"),
        ("Priority", "-1"),
        ("Priority", "1.5"),
        ("TimeToLive", "0"),
        ("TimeToLive", "1209601"),
        ("MaxReceives", "0"),
        ("MaxReceives", "256"),
        ("DelaySeconds", "31622401"),
    ],
)
def test_values_that_are_refused(sqs: Any, queue: str, name: str, value: str) -> None:
    row = extensions.MESSAGE_ATTRIBUTES[f"Baton.{name}"]
    reason = f"Must be an integer from {row.low} to {row.high}."
    with refused("InvalidParameterValue", f"Value {value} for parameter Baton.{name} is invalid. Reason: {reason}"):
        send(sqs, queue, "x", **{name: {"DataType": "Number", "StringValue": value}})


def test_names_and_keys_that_are_refused(sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue", None):
        send(sqs, queue, "x", Priorty=number(1))
    with refused("InvalidParameterValue", None):
        send(sqs, queue, "x", DeduplicationKey=text("with space"))


def test_a_fifo_message_can_have_a_delay_of_its_own(server: TestServer, sqs: Any, fifo: str) -> None:
    """SQS has no such delay. The message holds up its group, so that the order stays that of the sends."""
    late = {"Baton.DelaySeconds": number(5)}
    sqs.send_message(QueueUrl=fifo, MessageBody="1", MessageGroupId="g", MessageAttributes=late)
    sqs.send_message(QueueUrl=fifo, MessageBody="2", MessageGroupId="g")
    assert receive(sqs, fifo) == []
    server.advance(6)
    assert [message["Body"] for message in receive(sqs, fifo)] == ["1", "2"]


# --- queue attributes -------------------------------------------------------------------------


def test_strict_receipts(server: TestServer, sqs: Any) -> None:
    url = sqs.create_queue(QueueName="strict", Attributes={"Baton.StrictReceipts": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url, VisibilityTimeout=1)
    server.advance(2)
    receipt = message["ReceiptHandle"]
    with refused("InvalidParameterValue", "...Reason: The receipt handle has expired."):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    with refused("InvalidParameterValue", "...Reason: The receipt handle has expired."):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=5)
    assert counts(sqs, url) == (1, 0, 0)


def test_our_attributes_are_shown_only_when_they_are_asked_for(sqs: Any, queue: str) -> None:
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Baton.SLASeconds": "60"})

    def names(*asked: str) -> set[str]:
        found: set[str] = set(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=list(asked))["Attributes"])
        return found

    assert not any(name.startswith("Baton.") for name in names("All"))
    assert names("All", "Baton.SLASeconds") - names("All") == {"Baton.SLASeconds"}
    everything = names("Baton.All")
    assert all(name.startswith("Baton.") for name in everything)
    unset = {"Baton.AlarmSeverity", "Baton.RetryPolicy", "Baton.Durability", "Baton.OnlyGroup"}
    assert everything == {name for name, row in ATTRIBUTES.items() if row.own} - unset
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Baton.StrictReceipts": "maybe"})
    with refused("InvalidAttributeName", "Unknown Attribute Baton.Nonsense."):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Baton.Nonsense": "1"})


def test_expiry_to_the_dead_letters(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs)
    sqs.set_queue_attributes(
        QueueUrl=pair.work, Attributes={"Baton.ExpiryToDeadLetter": "true", "MessageRetentionPeriod": "60"}
    )
    sqs.send_message(QueueUrl=pair.work, MessageBody="x")
    server.advance(62)
    assert counts(sqs, pair.work) == (0, 0, 0)
    wait_until(lambda: counts(sqs, pair.dead) == (1, 0, 0))


# --- who holds a lease, and why it was given back ---------------------------------------------


def test_the_holder_of_a_lease(server: TestServer, sqs: Any, queue: str, account: str) -> None:
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    json_request(server, "ReceiveMessage", {"QueueUrl": queue}, headers={"Baton-Consumer": "worker 7"})
    messages = receive(sqs, queue, 1, MessageAttributeNames=["Baton.Consumer=worker-8", "All"])
    assert "MessageAttributes" not in messages[0]
    receive(sqs, queue, 1)
    holders = [peeked.view.holder for peeked in peek(server, queue)]
    assert holders[:2] == ["worker 7", "worker-8"]
    assert holders[2].startswith(f"{account}@127.0.0.1:")
    long_name = {"QueueUrl": queue, "MessageAttributeNames": ["Baton.Consumer=" + "x" * 1000]}
    assert json_request(server, "ReceiveMessage", long_name).status == 200


def test_nack_with_a_reason(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    request = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 60}
    headers = {"Baton-Reason": "the database is away", "Baton-Error-Class": "OperationalError"}
    assert json_request(server, "ChangeMessageVisibility", request, headers=headers).status == 200
    [peeked] = peek(server, queue)
    assert (peeked.view.reason, peeked.view.error_class) == ("the database is away", "OperationalError")
    assert counts(sqs, queue) == (0, 0, 1)
    server.advance(61)
    assert bodies(receive(sqs, queue)) == ["x"]
    # the lease it was about is over
    again = json_request(server, "ChangeMessageVisibility", request, headers=headers)
    assert again.status == 400 and "has expired" in again.json["message"]


def test_nack_to_the_dead_letters(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, max_receives=100)
    sqs.send_message(QueueUrl=pair.work, MessageBody="x")
    [message] = receive(sqs, pair.work)
    request = {"QueueUrl": pair.work, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    headers = {"Baton-Dead-Letter": "true", "Baton-Reason": "cannot be parsed"}
    assert json_request(server, "ChangeMessageVisibility", request, headers=headers).status == 200
    wait_until(lambda: counts(sqs, pair.dead) == (1, 0, 0))
    [peeked] = peek(server, pair.dead)
    assert peeked.lineage is not None and peeked.lineage.reason == "cannot be parsed"


def test_nacks_that_are_refused(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    request = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    for given, headers, said in (
        (request, {"Baton-Reason": "x" * 501}, "at most 500 characters"),
        (request, {"Baton-Error-Class": "x" * 101}, "at most 100 characters"),
        ({**request, "VisibilityTimeout": 345_601}, {"Baton-Reason": "x"}, "between 0 and 345600"),
        ({**request, "VisibilityTimeout": -1}, {"Baton-Reason": "x"}, "between 0 and 345600"),
        ({**request, "ReceiptHandle": "garbage"}, {"Baton-Reason": "x"}, "not a valid receipt handle"),
    ):
        answer = json_request(server, "ChangeMessageVisibility", given, headers=headers)
        assert answer.status == 400 and said in answer.json["message"]
    assert counts(sqs, queue) == (0, 1, 0)


# --- system attributes ------------------------------------------------------------------------


def test_ours_are_given_when_they_are_asked_for(server: TestServer, sqs: Any, queue: str) -> None:
    send(sqs, queue, "x", Priority=number(3))

    def names(*asked: str, older: bool = False) -> set[str]:
        parameter = "AttributeNames" if older else "MessageSystemAttributeNames"
        more: dict[str, Any] = {parameter: list(asked)}
        [message] = receive(sqs, queue, 1, **more)
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        return set(message.get("Attributes", {}))

    of_sqs = {"SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"}
    always = {"Baton.Priority", "Baton.LeaseDeadline"}
    for older in (False, True):
        assert names("All", older=older) == of_sqs
        assert names("Baton.All", older=older) == always
        assert names("All", "Baton.All", older=older) == of_sqs | always
        assert names("Baton.Priority", "SenderId", older=older) == {"Baton.Priority", "SenderId"}
        assert names("All", "Baton.Priority", older=older) == of_sqs | {"Baton.Priority"}
        assert names("Baton.TraceId", older=older) == set()
    with refused("InvalidAttributeName", "Unknown Attribute Baton.Nonsense."):
        names("Baton.Nonsense")


def test_ours_in_the_query_protocol(server: TestServer, sqs: Any, queue: str) -> None:
    send(sqs, queue, "x", Priority=number(3))
    form = {"Action": "ReceiveMessage", "QueueUrl": queue, "AttributeName.1": "Baton.Priority"}
    answer = query_request(server, form)
    assert "<Attribute><Name>Baton.Priority</Name><Value>3</Value></Attribute>" in answer.text
    sqs.send_message(QueueUrl=queue, MessageBody="without one it is normal")
    answer = query_request(server, form)
    assert "<Attribute><Name>Baton.Priority</Name><Value>128</Value></Attribute>" in answer.text


# --- the reference ----------------------------------------------------------------------------


def listed(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    page = PAGE.read_text()
    part = page.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)


def test_the_reference_lists_every_attribute_and_header_in_its_section() -> None:
    ours = [row for row in ATTRIBUTES.values() if row.own]
    settable = [row.name for row in ours if row.access is not Access.READ_ONLY]
    assert listed("Queue attributes") == settable
    assert listed("Read-only queue attributes") == [row.name for row in ours if row.name not in settable]
    assert listed("Message attributes") == list(extensions.MESSAGE_ATTRIBUTES)
    assert listed("System attributes") == list(extensions.SYSTEM_ATTRIBUTES)
    assert listed("Headers") == list(extensions.HEADERS)


def test_the_reference_names_no_attribute_that_does_not_exist() -> None:
    page = PAGE.read_text()
    assert f"`{extensions.ALL_OF_OURS}`" in page and f"`{extensions.CONSUMER_ENTRY}" in page
    tables = (ATTRIBUTES, extensions.MESSAGE_ATTRIBUTES, extensions.SYSTEM_ATTRIBUTES)
    known = {extensions.ALL_OF_OURS, "Baton.Consumer", *(name for table in tables for name in table)}
    assert set(re.findall(r"Baton\.[A-Za-z]+", page)) <= known

"""Dead letters and move tasks with boto3."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import client
from tests.api.support import arn_of, bodies, counts, json_request, receive, refused, wait_until
from tests.support.server import TestServer


class Pair:
    """A queue and its dead-letter queue."""

    def __init__(self, sqs: Any, *, fifo: bool = False, max_receives: int = 1, name: str = "work") -> None:
        suffix, type_of = (".fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}) if fifo else ("", {})
        self.sqs = sqs
        self.dead = sqs.create_queue(QueueName=f"{name}-dead{suffix}", Attributes=type_of)["QueueUrl"]
        self.dead_arn = arn_of(sqs, self.dead)
        policy = json.dumps({"deadLetterTargetArn": self.dead_arn, "maxReceiveCount": max_receives})
        created = sqs.create_queue(QueueName=f"{name}{suffix}", Attributes={**type_of, "RedrivePolicy": policy})
        self.work = created["QueueUrl"]
        self.work_arn = arn_of(sqs, self.work)
        self.more = {"MessageGroupId": "g"} if fifo else {}

    def kill(self, server: TestServer, *texts: str) -> list[str]:
        """Send messages and receive them until they are dead letters. Returns their ids."""
        ids = [self.sqs.send_message(QueueUrl=self.work, MessageBody=text, **self.more)["MessageId"] for text in texts]
        while counts(self.sqs, self.work) != (0, 0, 0):
            receive(self.sqs, self.work, VisibilityTimeout=1)
            server.advance(2)
        wait_until(lambda: counts(self.sqs, self.dead)[0] == len(texts))  # they may go from shard to shard
        return ids


def test_a_dead_letter(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, max_receives=1)
    [sent_id] = pair.kill(server, "poison")
    [letter] = receive(sqs, pair.dead, AttributeNames=["All"])
    assert letter["MessageId"] == sent_id and letter["Body"] == "poison"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == pair.work_arn
    assert letter["Attributes"]["ApproximateReceiveCount"] == "2"
    assert sqs.list_dead_letter_source_queues(QueueUrl=pair.dead)["queueUrls"] == [pair.work]
    assert "queueUrls" not in sqs.list_dead_letter_source_queues(QueueUrl=pair.work)


def test_it_moves_at_the_receive_that_would_exceed_the_maximum(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, max_receives=2)
    sqs.send_message(QueueUrl=pair.work, MessageBody="x")
    for _ in range(2):
        assert len(receive(sqs, pair.work, VisibilityTimeout=1)) == 1
        server.advance(2)
    assert counts(sqs, pair.dead) == (0, 0, 0)  # nobody has polled since
    assert receive(sqs, pair.work) == []
    assert counts(sqs, pair.dead) == (1, 0, 0)


def test_or_at_the_failure_that_uses_up_the_last_attempt(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, max_receives=1)
    sqs.set_queue_attributes(QueueUrl=pair.work, Attributes={"Baton.DeadLetterOn": "failure"})
    sqs.send_message(QueueUrl=pair.work, MessageBody="x")
    receive(sqs, pair.work, VisibilityTimeout=1)
    server.advance(2)
    wait_until(lambda: counts(sqs, pair.dead) == (1, 0, 0))


def test_a_fifo_dead_letter(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs, fifo=True)
    [sent_id] = pair.kill(server, "poison")
    [letter] = receive(sqs, pair.dead, AttributeNames=["All"])
    system = letter["Attributes"]
    assert system["MessageDeduplicationId"] == sent_id and system["MessageGroupId"] == "g"
    assert system["DeadLetterQueueSourceArn"] == pair.work_arn


def test_what_a_redrive_policy_asks_for(sqs: Any, account: str, fifo: str) -> None:
    sqs.create_queue(QueueName="closed", Attributes={"RedriveAllowPolicy": '{"redrivePermission":"denyAll"}'})
    prefix = f"arn:aws:sqs:us-east-1:{account}"
    for arn, count, reason in (
        (f"{prefix}:nothing", 1, "Dead letter target does not exist."),
        (f"{prefix}:queue.fifo", 1, "Dead-letter queue must be same type of queue as the source."),
        (f"arn:aws:sns:us-east-1:{account}:t", 1, "Only SQS queues are valid resources for deadLetterTargetArn."),
        (f"{prefix}:closed", 1, None),
        (
            f"{prefix}:closed",
            1001,
            "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
        ),
        ("dummy", 1, None),
    ):
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})
        message = f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}" if reason else None
        with refused("InvalidParameterValue", message):
            sqs.create_queue(QueueName="source", Attributes={"RedrivePolicy": policy})


# --- move tasks -------------------------------------------------------------------------------


def wait_for_end(server: TestServer, sqs: Any, source_arn: str) -> dict[str, Any]:
    for _ in range(100):
        server.advance(1)
        task: dict[str, Any] = sqs.list_message_move_tasks(SourceArn=source_arn)["Results"][0]
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            return task
    raise AssertionError("the move task did not end")


def test_move_back(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs)
    ids = pair.kill(server, "a", "b", "c")
    handle = sqs.start_message_move_task(SourceArn=pair.dead_arn)["TaskHandle"]
    assert json.loads(base64.urlsafe_b64decode(handle))["sourceArn"] == pair.dead_arn
    task = wait_for_end(server, sqs, pair.dead_arn)
    assert task["Status"] == "COMPLETED" and task["SourceArn"] == pair.dead_arn
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (3, 3)
    assert "TaskHandle" not in task and "DestinationArn" not in task and "FailureReason" not in task
    assert len(str(task["StartedTimestamp"])) == 13
    messages = receive(sqs, pair.work, AttributeNames=["All"])
    assert sorted(bodies(messages)) == ["a", "b", "c"]
    assert not {message["MessageId"] for message in messages} & set(ids)  # redriven messages get new ids
    assert not any("DeadLetterQueueSourceArn" in message["Attributes"] for message in messages), "no dead letters now"
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in messages} == {"1"}


def test_move_to_another_queue_and_cancel(server: TestServer, sqs: Any, queue: str) -> None:
    pair = Pair(sqs)
    pair.kill(server, *(str(number) for number in range(20)))
    destination = arn_of(sqs, queue)
    handle = sqs.start_message_move_task(
        SourceArn=pair.dead_arn, DestinationArn=destination, MaxNumberOfMessagesPerSecond=1
    )["TaskHandle"]
    with refused(
        "InvalidParameterValue",
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    ):
        sqs.start_message_move_task(SourceArn=pair.dead_arn)
    [running] = sqs.list_message_move_tasks(SourceArn=pair.dead_arn)["Results"]
    assert running["Status"] == "RUNNING" and running["TaskHandle"] == handle
    assert running["DestinationArn"] == destination and running["MaxNumberOfMessagesPerSecond"] == 1
    server.advance(3)
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 20
    ended = wait_for_end(server, sqs, pair.dead_arn)
    assert ended["Status"] == "CANCELLED" and "TaskHandle" not in ended
    assert counts(sqs, queue)[0] + counts(sqs, pair.dead)[0] == 20


def test_tasks_are_listed_newest_first(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs)
    for text in ("a", "b"):
        pair.kill(server, text)
        sqs.start_message_move_task(SourceArn=pair.dead_arn)
        wait_for_end(server, sqs, pair.dead_arn)
        sqs.purge_queue(QueueUrl=pair.work)
    assert len(sqs.list_message_move_tasks(SourceArn=pair.dead_arn)["Results"]) == 1
    tasks = sqs.list_message_move_tasks(SourceArn=pair.dead_arn, MaxResults=10)["Results"]
    assert not any("MaxNumberOfMessagesPerSecond" in task for task in tasks), "no rate was asked for"
    assert len(tasks) == 2 and tasks[0]["StartedTimestamp"] > tasks[1]["StartedTimestamp"]
    for count in (0, 11):
        with refused("InvalidParameterValue"):
            sqs.list_message_move_tasks(SourceArn=pair.dead_arn, MaxResults=count)


def test_a_destination_that_is_deleted_on_the_way(server: TestServer, sqs: Any, queue: str) -> None:
    pair = Pair(sqs)
    pair.kill(server, *(str(number) for number in range(5)))
    sqs.start_message_move_task(
        SourceArn=pair.dead_arn, DestinationArn=arn_of(sqs, queue), MaxNumberOfMessagesPerSecond=1
    )
    sqs.delete_queue(QueueUrl=queue)
    task = wait_for_end(server, sqs, pair.dead_arn)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"


def test_move_tasks_that_are_refused(sqs: Any, queue: str, fifo: str, account: str) -> None:
    pair = Pair(sqs)
    nowhere = f"arn:aws:sqs:us-east-1:{account}:nowhere"
    missing = "The resource that you specified for the {} parameter doesn't exist."
    form = "You must use this format to specify the {}: arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
    with refused("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."):
        sqs.start_message_move_task(SourceArn=arn_of(sqs, queue))
    with refused("ResourceNotFoundException", missing.format("SourceArn"), 404):
        sqs.start_message_move_task(SourceArn=nowhere)
    with refused("ResourceNotFoundException", missing.format("DestinationArn"), 404):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=nowhere)
    with refused("InvalidParameterValue", form.format("SourceArn")):
        sqs.start_message_move_task(SourceArn="")
    with refused("InvalidParameterValue", form.format("DestinationArn")):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn="arn:aws:sqs:r:1:a/b")
    with refused("InvalidParameterValue", "Source queue arn and destination queue arn cannot be the same."):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=pair.dead_arn)
    with refused("InvalidParameterValue", "The source queue and destination queue must be of the same queue type."):
        sqs.start_message_move_task(SourceArn=pair.dead_arn, DestinationArn=arn_of(sqs, fifo))
    for rate in (0, 501):
        with refused(
            "InvalidParameterValue",
            "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
            "Reason: You must enter a number that's between 1 and 500.",
        ):
            sqs.start_message_move_task(SourceArn=pair.dead_arn, MaxNumberOfMessagesPerSecond=rate)


def test_cancels_that_are_refused(server: TestServer, sqs: Any, account: str) -> None:
    pair = Pair(sqs)

    def handle(task_id: str, source_arn: str) -> str:
        text = json.dumps({"taskId": task_id, "sourceArn": source_arn})
        return base64.urlsafe_b64encode(text.encode()).decode()

    for garbage in ("garbage", "\u00e9", handle("x", "y"), base64.b64encode(b"[" * 5000).decode()):
        with refused("InvalidParameterValue", "Value for parameter TaskHandle is invalid."):
            sqs.cancel_message_move_task(TaskHandle=garbage)
    with refused("ResourceNotFoundException", None, 404):
        sqs.cancel_message_move_task(TaskHandle=handle("x", f"arn:aws:sqs:us-east-1:{account}:nothing"))
    with refused("ResourceNotFoundException", "Task does not exist.", 404):
        sqs.cancel_message_move_task(TaskHandle=handle("x", pair.dead_arn))
    pair.kill(server, "a")
    ended = sqs.start_message_move_task(SourceArn=pair.dead_arn)["TaskHandle"]
    wait_for_end(server, sqs, pair.dead_arn)
    with refused("ResourceNotFoundException", "Task does not exist.", 404):  # only a running one can be cancelled
        sqs.cancel_message_move_task(TaskHandle=ended)


# --- what died in its own queue -----------------------------------------------------------------


def dead_in_place(sqs: Any, url: str) -> int:
    name = "Baton.DeadMessages"
    return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


@pytest.mark.parametrize("fifo", [False, True])
def test_what_died_in_its_own_queue_can_be_moved_back(server: TestServer, sqs: Any, fifo: bool) -> None:
    suffix, type_of = (".fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}) if fifo else ("", {})
    more = {"MessageGroupId": "g"} if fifo else {}
    url = sqs.create_queue(QueueName=f"alone{suffix}", Attributes={**type_of, "Baton.MaxReceives": "1"})["QueueUrl"]
    source = arn_of(sqs, url)
    sent_id = sqs.send_message(QueueUrl=url, MessageBody="poison", **more)["MessageId"]
    with refused("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."):
        sqs.start_message_move_task(SourceArn=source)
    receive(sqs, url, VisibilityTimeout=1)
    server.advance(2)
    assert receive(sqs, url) == [] and dead_in_place(sqs, url) == 1
    sqs.send_message(QueueUrl=url, MessageBody="waits", **more)
    sqs.start_message_move_task(SourceArn=source)
    task = wait_for_end(server, sqs, source)
    assert (task["Status"], task["ApproximateNumberOfMessagesToMove"]) == ("COMPLETED", 1)
    assert task["ApproximateNumberOfMessagesMoved"] == 1 and "DestinationArn" not in task
    assert dead_in_place(sqs, url) == 0
    waits, back = receive(sqs, url, MessageSystemAttributeNames=["All", "Baton.All"])
    assert (waits["Body"], back["Body"]) == ("waits", "poison")
    system = back["Attributes"]
    assert back["MessageId"] != sent_id == system["Baton.FirstMessageId"]
    assert (system["ApproximateReceiveCount"], system["Baton.Attempts"]) == ("1", "1")
    assert system["Baton.FirstQueue"] == source and "DeadLetterQueueSourceArn" not in system
    with refused("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue."):
        sqs.start_message_move_task(SourceArn=source)


def test_what_died_can_be_moved_to_another_queue_and_what_waits_stays(server: TestServer, sqs: Any, queue: str) -> None:
    url = sqs.create_queue(QueueName="alone", Attributes={"Baton.MaxReceives": "1"})["QueueUrl"]
    for text in ("a", "b"):
        sqs.send_message(QueueUrl=url, MessageBody=text)
    receive(sqs, url, VisibilityTimeout=1)
    server.advance(2)
    assert receive(sqs, url) == []
    sqs.send_message(QueueUrl=url, MessageBody="waits")
    source = arn_of(sqs, url)
    with refused("InvalidParameterValue", "Source queue arn and destination queue arn cannot be the same."):
        sqs.start_message_move_task(SourceArn=source, DestinationArn=source)
    sqs.start_message_move_task(SourceArn=source, DestinationArn=arn_of(sqs, queue))
    assert wait_for_end(server, sqs, source)["Status"] == "COMPLETED"
    assert sorted(bodies(receive(sqs, queue))) == ["a", "b"]
    assert (counts(sqs, url), dead_in_place(sqs, url)) == ((1, 0, 0), 0)


# --- a dead letter's past -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("two-shards")), shards=2) as running:
        yield running


@pytest.fixture(params=["one shard", "two shards"])
def place(request: pytest.FixtureRequest, server: TestServer, account: str) -> Iterator[tuple[TestServer, Any]]:
    """A server and a client: queues share a shard, or every second one stands on the other."""
    running = server if request.param == "one shard" else request.getfixturevalue("two_shards")
    made = client("sqs", running.url, account)
    yield running, made
    made.close()


@pytest.mark.parametrize("fifo", [False, True])
def test_the_past_of_a_dead_letter_through_a_redrive(place: tuple[TestServer, Any], account: str, fifo: bool) -> None:
    server, sqs = place
    pair = Pair(sqs, fifo=fifo, max_receives=2)
    queues = [server.broker.queue(account, url.split("/")[-1]) for url in (pair.work, pair.dead)]
    assert len({queue.shard for queue in queues}) == len(server.node.shards)
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    priority = {"Baton.Priority": {"DataType": "Number", "StringValue": "7"}}
    first_id = sqs.send_message(
        QueueUrl=pair.work,
        MessageBody="poison",
        MessageSystemAttributes=trace,
        MessageAttributes=priority,
        **pair.more,
    )["MessageId"]

    def fail(why: str, dead: bool) -> int:
        [message] = receive(sqs, pair.work)
        given = {"QueueUrl": pair.work, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        headers = {"Baton-Reason": why, "Baton-Error-Class": "ValueError", "Baton-Dead-Letter": str(dead).lower()}
        failed_ms = server.broker.now_ms()
        assert json_request(server, "ChangeMessageVisibility", given, headers=headers).status == 200
        server.advance(1)
        return failed_ms

    def past(url: str) -> dict[str, str]:
        """Receive it, and give it back, which is an attempt and no failure."""
        [letter] = receive(sqs, url, MessageSystemAttributeNames=["Baton.All"])
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=letter["ReceiptHandle"], VisibilityTimeout=0)
        found: dict[str, str] = letter["Attributes"]
        return found

    first_ms = fail("first", dead=False)
    again = past(pair.work)
    assert (again["Baton.ErrorClass"], again["Baton.Reason"]) == ("ValueError", "first"), "the next attempt is told"
    assert "Baton.FirstQueue" not in again and "Baton.Attempts" not in again
    assert receive(sqs, pair.work) == [], "it had its two attempts"
    wait_until(lambda: counts(sqs, pair.dead)[0] == 1)
    for life in ("dead letter", "redriven", "dead letter again"):
        if life == "redriven":
            server.advance(1)
            sqs.start_message_move_task(SourceArn=pair.dead_arn)
            assert wait_for_end(server, sqs, pair.dead_arn)["Status"] == "COMPLETED"
        elif life == "dead letter again":
            fail("last", dead=True)
            wait_until(lambda: counts(sqs, pair.dead)[0] == 1)
        url = pair.work if life == "redriven" else pair.dead
        before_ms = server.broker.now_ms()
        found = past(url)
        assert before_ms + 30_000 <= int(found.pop("Baton.LeaseDeadline")) <= server.broker.now_ms() + 30_000
        last_ms = int(found.pop("Baton.LastFailureTimestamp"))
        assert abs(int(found.pop("Baton.FirstFailureTimestamp")) - first_ms) < 900
        assert (last_ms > first_ms + 900) == (life == "dead letter again")
        assert found == {
            "Baton.FirstQueue": pair.work_arn,
            "Baton.FirstMessageId": first_id,
            "Baton.ErrorClass": "ValueError",
            "Baton.Reason": "last" if life == "dead letter again" else "first",
            "Baton.Attempts": "2",
            "Baton.TraceId": trace["AWSTraceHeader"]["StringValue"],
            "Baton.Priority": "7",
        }, life


def test_the_past_outlives_the_first_queue(server: TestServer, sqs: Any) -> None:
    pair = Pair(sqs)
    pair.kill(server, "poison")
    sqs.delete_queue(QueueUrl=pair.work)
    [letter] = receive(sqs, pair.dead, MessageSystemAttributeNames=["All", "Baton.FirstQueue"])
    assert letter["Attributes"]["Baton.FirstQueue"] == pair.work_arn
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == pair.work_arn

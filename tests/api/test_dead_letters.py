"""Dead letters and move tasks with boto3."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.api.support import arn_of, bodies, counts, receive, refused
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
        assert counts(self.sqs, self.dead)[0] == len(texts)
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
    assert counts(sqs, pair.dead) == (1, 0, 0)


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

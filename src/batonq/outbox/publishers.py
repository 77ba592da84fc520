"""Where a relay publishes: a Baton server through its client, or an SQS endpoint through boto3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from batonq.client.models import Outgoing
from batonq.client.retry import Retries
from batonq.errors import BatonError, InvalidInput, OverLimit, QueueDoesNotExist, TopicDoesNotExist, Unavailable
from batonq.outbox.rows import TOPIC

if TYPE_CHECKING:
    from batonq.sync import Baton

Numbered = Sequence[tuple[int, Outgoing]]
# Short, because the lanes are locked meanwhile. The relay retries what is left.
RETRIES = Retries(attempts=5, deadline=15.0)
_SQS_BATCH_MAX = 10
_SQS_BATCH_BYTES_MAX = 240 * 1024


class Publisher(Protocol):
    def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
        """Publish messages in order, each with its number: a message that was accepted before is not stored again.
        `queue` is the name of a queue, or `topic:` and the name of a topic.

        Returns None or an error per message. If one is refused temporarily, no later one with the same key may be
        accepted. Raises if the queue cannot be reached at all.
        """
        ...

    def close(self) -> None: ...


class BatonPublisher:
    """Publishes through REST with producer numbers: the queue ignores numbers that are not above the last one."""

    def __init__(self, baton: str | Baton, *, access_key: str | None = None, secret_key: str | None = None) -> None:
        if isinstance(baton, str):
            from batonq.sync import Baton

            baton = Baton(baton, access_key=access_key, secret_key=secret_key, retries=RETRIES)
        self._baton = baton

    def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
        send_many = (
            self._baton.topic(queue.removeprefix(TOPIC)).publish_many
            if queue.startswith(TOPIC)
            else self._baton.queue(queue).send_many
        )
        results: list[BatonError | None] = []
        start = 0
        for at in range(1, len(messages) + 1):
            # Consecutive numbers go into one request; there is a gap where a row was refused before.
            if at < len(messages) and messages[at][0] == messages[at - 1][0] + 1:
                continue
            part = [message for _, message in messages[start:at]]
            sent = send_many(part, producer=(producer, messages[start][0]))
            results += [result if isinstance(result, BatonError) else None for result in sent]
            start = at
            if any(result is not None and result.retryable for result in results):
                break
        return results + [Unavailable("Not sent: an earlier message was refused temporarily.")] * (
            len(messages) - len(results)
        )

    def close(self) -> None:
        self._baton.close()


class SqsPublisher:
    """Publishes with the protocols of SQS and, for topics, SNS. FIFO queues and topics deduplicate for five minutes; in
    standard queues and topics a crash may cause duplicates.
    """

    def __init__(self, client: Any = None, *, sns: Any = None, endpoint_url: str | None = None) -> None:
        self._client = client or _boto3_client("sqs", endpoint_url)
        self._sns = sns  # made when a row is first for a topic
        self._endpoint_url = endpoint_url
        self._urls: dict[str, str] = {}  # queue → URL, or topic → ARN

    def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
        url = self._arn(queue) if queue.startswith(TOPIC) else self._url(queue)
        results: list[BatonError | None] = [None] * len(messages)
        stopped: set[str] = set()  # keys of which one message was refused temporarily
        waiting: list[int] = []
        keys: set[str] = set()
        size = 0
        for at, (_, message) in enumerate(messages):
            entry_bytes = len(_sqs_body(message.body)) + 1024
            # One row per key in a request: the entries of a request are accepted or refused one by one.
            full = len(waiting) == _SQS_BATCH_MAX or size + entry_bytes > _SQS_BATCH_BYTES_MAX or message.group in keys
            if full and waiting:
                self._send(url, producer, messages, waiting, results, stopped)
                waiting, keys, size = [], set(), 0
            if message.group is not None and message.group in stopped:
                results[at] = Unavailable("Not sent: an earlier message was refused temporarily.")
                continue
            waiting.append(at)
            size += entry_bytes
            keys |= {message.group} if message.group is not None else set()
        if waiting:
            self._send(url, producer, messages, waiting, results, stopped)
        return results

    def close(self) -> None:
        self._client.close()
        if self._sns is not None:
            self._sns.close()

    def _arn(self, topic: str) -> str:
        """The ARN of a topic. A topic that does not exist is not created: no queue would get its messages."""
        if topic not in self._urls:
            if self._sns is None:
                self._sns = _boto3_client("sns", self._endpoint_url)
            end = f":{topic.removeprefix(TOPIC)}"
            try:
                pages = self._sns.get_paginator("list_topics").paginate()
                arns = (one["TopicArn"] for page in pages for one in page.get("Topics", ()))
                found = next((arn for arn in arns if arn.endswith(end)), None)
            except Exception as problem:  # botocore's errors, whose classes are not imported here
                raise Unavailable(str(problem)) from None
            if found is None:
                raise TopicDoesNotExist(f"Topic {end[1:]} does not exist.")
            self._urls[topic] = found
        return self._urls[topic]

    def _url(self, queue: str) -> str:
        if queue not in self._urls:
            try:
                self._urls[queue] = self._client.get_queue_url(QueueName=queue)["QueueUrl"]
            except self._client.exceptions.QueueDoesNotExist:
                raise QueueDoesNotExist(f"Queue {queue} does not exist.") from None
            except Exception as problem:  # botocore's errors, whose classes are not imported here
                raise Unavailable(str(problem)) from None
        return self._urls[queue]

    def _send(
        self,
        url: str,
        producer: str,
        messages: Numbered,
        places: Sequence[int],
        results: list[BatonError | None],
        stopped: set[str],
    ) -> None:
        entries = [_sqs_entry(str(at), *messages[at], producer, url.endswith(".fifo")) for at in places]
        try:
            if url.startswith("arn:"):
                told = self._sns.publish_batch(TopicArn=url, PublishBatchRequestEntries=[*map(_sns_entry, entries)])
            else:
                told = self._client.send_message_batch(QueueUrl=url, Entries=entries)
            failed = told.get("Failed", [])
            problems = {int(one["Id"]): _sqs_problem(one) for one in failed}
        except Exception as problem:
            problems = dict.fromkeys(places, Unavailable(str(problem)))
        for at, found in problems.items():
            results[at] = found
            group = messages[at][1].group
            if found.retryable and group is not None:
                stopped.add(group)


def _boto3_client(service: str, endpoint_url: str | None) -> Any:
    try:
        import boto3
    except ImportError:
        raise InvalidInput("Publishing to SQS needs boto3: pip install boto3.") from None
    return boto3.client(service, endpoint_url=endpoint_url)


def _sns_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry of a batch for SQS as SNS takes it."""
    others = {name: value for name, value in entry.items() if name not in ("MessageBody", "DelaySeconds")}
    return {"Message": entry["MessageBody"], **others}


def _sqs_problem(failed: dict[str, Any]) -> BatonError:
    text = f"{failed.get('Code')}: {failed.get('Message', '')}"
    return InvalidInput(text) if failed.get("SenderFault") else OverLimit(text)


def _sqs_body(body: Any) -> str:
    if isinstance(body, str):
        return body
    if isinstance(body, bytes):
        try:
            return body.decode()
        except UnicodeDecodeError:
            raise InvalidInput("SQS messages must be text, but the body is binary. Encode it before put().") from None
    return msgspec.json.encode(body).decode()


def _sqs_entry(id: str, number: int, message: Outgoing, producer: str, fifo: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": id, "MessageBody": _sqs_body(message.body)}
    if message.group is not None:
        entry["MessageGroupId"] = message.group
    if fifo:
        entry["MessageDeduplicationId"] = message.dedup_key or f"{producer}-{number}"
    elif message.delay:
        entry["DelaySeconds"] = int(message.delay)
    attributes = {name: _sqs_attribute(value) for name, value in (message.attributes or {}).items()}
    if attributes:
        entry["MessageAttributes"] = attributes
    return entry


def _sqs_attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"DataType": "Binary", "BinaryValue": value}
    return {"DataType": "String" if isinstance(value, str) else "Number", "StringValue": str(value)}

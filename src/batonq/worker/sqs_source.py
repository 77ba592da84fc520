"""Messages from an SQS endpoint, with the program's own boto3 client: `SqsSource(boto3.client("sqs"))`.

Features that SQS does not have are approximated. A nack sets the visibility timeout to the delay (0 without one,
because SQS has no retry policy). A poison message is sent to the queue's dead-letter queue with the reason in its
attributes, and then deleted. Patterns are not supported; several queues are polled in turn.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from batonq.client.models import Nack
from batonq.errors import (
    AccessDenied,
    BatonError,
    InvalidInput,
    MessageGone,
    OverLimit,
    QueueDoesNotExist,
    ReceiptInvalid,
    Unavailable,
)
from batonq.worker.source import Message, Outcome, QueueFacts

BATCH_MAX = 10
VISIBILITY_MAX_S = 43_200
_TURN_S = 1
FACTS_S = 60.0  # how old the facts about a queue may be
_Result = TypeVar("_Result")
_CODES: tuple[tuple[str, type[BatonError]], ...] = (
    ("NonExistentQueue", QueueDoesNotExist),
    ("QueueDoesNotExist", QueueDoesNotExist),
    ("ReceiptHandleIsInvalid", ReceiptInvalid),
    ("MessageNotInflight", MessageGone),
    (
        "InvalidParameterValue",
        MessageGone,
    ),  # "message does not exist or is not available for visibility timeout change"
    ("Throttl", OverLimit),
    ("OverLimit", OverLimit),
    ("AccessDenied", AccessDenied),
    ("InvalidClientTokenId", AccessDenied),
    ("SignatureDoesNotMatch", AccessDenied),
)


class SqsSource:
    """`client` is a boto3 SQS client; `queue_urls` maps names to URLs for queues of other accounts."""

    batch_max = BATCH_MAX

    def __init__(self, client: Any, queue_urls: dict[str, str] | None = None) -> None:
        self._client = client
        self._urls = dict(queue_urls or {})
        self._facts: dict[str, tuple[float, QueueFacts]] = {}  # by queue, with the time when they are too old
        # receipt → the message as received from SQS, needed if it turns out to be poison
        self._raw: dict[str, dict[str, Any]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._turn = 0
        self._cut_off: list[tuple[str, asyncio.Future[list[Message]]]] = []

    async def open(self, consumer: str, connections: int) -> None:
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="baton-sqs")

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        for queue in queues:
            if "*" in queue or "?" in queue:
                raise InvalidInput(f"SQS does not support patterns such as {queue!r}. Name the queues.")
        if len(queues) == 1:
            return await self._receive(queues[0], max_messages, wait, visibility)
        self._turn += 1
        turned = [*queues[self._turn % len(queues) :], *queues[: self._turn % len(queues)]]
        for queue in turned:
            if found := await self._receive(queue, max_messages, 0, visibility):
                return found
        return await self._receive(turned[0], max_messages, min(wait, _TURN_S), visibility)

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        return await self._call(self._delete, queue, receipts)

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]:
        return await self._call(self._give_back, queue, nacks)

    async def facts(self, queue: str) -> QueueFacts:
        try:
            return await self._call(self._facts_now, queue)
        except BatonError:  # a worker may not be allowed to read the queue's attributes
            return QueueFacts(queue.endswith(".fifo"))

    async def close(self) -> None:
        """Cancelled long polls are awaited, because boto3 cannot cancel them: the messages that they return are
        released.
        """
        if self._threads is None:
            return
        for queue, receiving in self._cut_off:
            try:
                late = await receiving
                if late:
                    await self._call(self.change, queue, [(message.receipt, 0.0) for message in late])
            except BatonError:
                continue  # nothing was received, or the lease expires by itself
        self._cut_off.clear()
        self._threads.shutdown(wait=False)
        self._threads = None

    def keeper(self, timeout: float) -> SqsKeeper:
        return SqsKeeper(self)

    # --- on threads, since boto3 blocks

    async def _call(self, function: Callable[..., _Result], *given: Any) -> _Result:
        assert self._threads is not None, "the source is not open"
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*given))

    async def _receive(self, queue: str, count: int, wait: float, visibility: float) -> list[Message]:
        receiving = asyncio.ensure_future(self._call(self._receive_now, queue, count, wait, visibility))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            self._cut_off.append((queue, receiving))
            raise

    def _receive_now(self, queue: str, count: int, wait: float, visibility: float) -> list[Message]:
        answer = self._request(
            "receive_message",
            QueueUrl=self.url(queue),
            MaxNumberOfMessages=min(count, BATCH_MAX),
            WaitTimeSeconds=int(wait),
            VisibilityTimeout=max(1, int(visibility)),
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return [self._message(queue, raw) for raw in answer.get("Messages", [])]

    def _message(self, queue: str, raw: dict[str, Any]) -> Message:
        system = raw.get("Attributes", {})
        self._raw[raw["ReceiptHandle"]] = raw
        return Message(
            id=raw["MessageId"],
            receipt=raw["ReceiptHandle"],
            body=raw["Body"],
            receive_count=int(system.get("ApproximateReceiveCount", 1)),
            sequence=int(system.get("SequenceNumber", 0)),
            queue=queue,
            attributes={name: _value(value) for name, value in raw.get("MessageAttributes", {}).items()},
            group=system.get("MessageGroupId"),
            dedup_key=system.get("MessageDeduplicationId"),
            sent_at_ms=int(system.get("SentTimestamp", 0)),
            first_received_at_ms=int(system.get("ApproximateFirstReceiveTimestamp", 0)),
            traceparent=raw.get("MessageAttributes", {}).get("traceparent", {}).get("StringValue"),
        )

    def _delete(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        entries = [{"Id": str(index), "ReceiptHandle": receipt} for index, receipt in enumerate(receipts)]
        return list(self._batch("delete_message_batch", queue, entries, forget=True))

    def change(self, queue: str, changes: Sequence[tuple[str, float]], forget: bool = False) -> list[Outcome]:
        entries = [
            {"Id": str(index), "ReceiptHandle": receipt, "VisibilityTimeout": min(int(seconds), VISIBILITY_MAX_S)}
            for index, (receipt, seconds) in enumerate(changes)
        ]
        return list(self._batch("change_message_visibility_batch", queue, entries, forget=forget))

    def _give_back(self, queue: str, nacks: Sequence[Nack]) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(nacks)
        kept = []
        for index, nack in enumerate(nacks):
            if nack.dead_letter and nack.receipt in self._raw and (target := self._facts_now(queue).dead_letter_queue):
                outcomes[index] = self._bury(queue, self.url(target), nack)
            else:
                kept.append(index)
        if kept:
            changes = [(nacks[index].receipt, nacks[index].delay or 0.0) for index in kept]
            for index, outcome in zip(kept, self.change(queue, changes, forget=True), strict=True):
                outcomes[index] = outcome
        return outcomes

    def _bury(self, queue: str, target: str, nack: Nack) -> Outcome:
        """First send it to the dead-letter queue, then delete it: a crash in between leaves two copies, never none."""
        raw = self._raw[nack.receipt]
        system = raw.get("Attributes", {})
        attributes = dict(raw.get("MessageAttributes", {}))
        for name, text in (("ErrorClass", nack.error_class), ("ErrorReason", nack.reason)):
            if text and len(attributes) < 10:
                attributes[name] = {"DataType": "String", "StringValue": text}
        request = {"QueueUrl": target, "MessageBody": raw["Body"], "MessageAttributes": attributes}
        if target.endswith(".fifo"):
            request["MessageGroupId"] = system.get("MessageGroupId", "dead")
            request["MessageDeduplicationId"] = raw["MessageId"]
        try:
            self._request("send_message", **request)
        except BatonError as error:
            return error
        return self._delete(queue, [nack.receipt])[0]

    def _batch(self, operation: str, queue: str, entries: list[dict[str, Any]], forget: bool) -> Iterator[Outcome]:
        for start in range(0, len(entries), BATCH_MAX):
            part = entries[start : start + BATCH_MAX]
            answer = self._request(operation, QueueUrl=self.url(queue), Entries=part)
            failed = {
                entry["Id"]: _error(entry["Code"], entry.get("Message", "")) for entry in answer.get("Failed", [])
            }
            for entry in part:
                outcome = failed.get(entry["Id"])
                if forget and (outcome is None or not outcome.retryable):
                    self._raw.pop(entry["ReceiptHandle"], None)
                yield outcome

    # ---

    def url(self, queue: str) -> str:
        if queue not in self._urls:
            self._urls[queue] = self._request("get_queue_url", QueueName=queue)["QueueUrl"]
        return self._urls[queue]

    def _facts_now(self, queue: str) -> QueueFacts:
        until, found = self._facts.get(queue, (0.0, QueueFacts()))
        if until <= time.monotonic():
            answer = self._request("get_queue_attributes", QueueUrl=self.url(queue), AttributeNames=["RedrivePolicy"])
            policy = json.loads(answer.get("Attributes", {}).get("RedrivePolicy") or "{}")
            target = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
            found = QueueFacts(queue.endswith(".fifo"), int(policy.get("maxReceiveCount", 0)), target)
            self._facts[queue] = (time.monotonic() + FACTS_S, found)
        return found

    def _request(self, operation: str, **given: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**given)
        except Exception as error:
            response = getattr(error, "response", None)
            if not isinstance(response, dict):  # no response: no network, or an unknown host
                raise Unavailable(str(error)) from error
            details = response.get("Error", {})
            raise _error(str(details.get("Code", "")), str(details.get("Message", ""))) from error
        return answer


class SqsKeeper:
    """Several threads may use one boto3 client, so this uses the same client."""

    def __init__(self, source: SqsSource) -> None:
        self._source = source

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        # SQS accepts whole seconds only; rounded up, so that a lease is never shorter than requested.
        return self._source.change(queue, [(receipt, float(-(-seconds // 1))) for receipt, seconds in changes])

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return self.extend(queue, changes)  # SQS counts it as a receive all the same

    def close(self) -> None:
        """The client belongs to the program and stays open."""


def _error(code: str, text: str) -> BatonError:
    for part, kind in _CODES:
        if part in code:
            return kind(text or code)
    return Unavailable(f"{code}: {text}")


def _value(attribute: dict[str, Any]) -> str | int | float | bytes:
    if "BinaryValue" in attribute:
        return bytes(attribute["BinaryValue"])
    text = str(attribute.get("StringValue", ""))
    if attribute.get("DataType", "").startswith("Number"):
        try:
            return int(text)
        except ValueError:
            return float(text)
    return text

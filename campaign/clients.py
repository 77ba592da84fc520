"""Clients of the cluster: every request is recorded before it is made and when its response arrives.

The records are those of the simulator's history (sim/history.py), so that its checkers can be used. The times in
milliseconds are the campaign's own until the judge converts them to bounds of the shards' time.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode
from collections import Counter
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

from batonq.client.transport import NotSent
from batonq.errors import BatonError
from batonq.priorities import NORMAL_PRIORITY
from campaign.cluster import BatonNode, Cluster
from sim.bodies import number_of
from sim.clients import UNREACHED
from sim.history import OK, UNKNOWN, Answer, Call, Delivered, History, Holding, Outgoing, Receiving, Sending
from sim.scenario import ACCOUNT

ANSWER_S = 8.0  # longer than a node lets a request wait for an owner
RECEIVE_S = 10.0
LATE_S = 60.0  # an unanswered request may be executed this much later
SQS_TYPE = "application/x-amz-json-1.0"
_SDK_CODES = {
    "ServiceUnavailable": "unavailable",
    "ServiceUnavailableException": "unavailable",
    "RequestThrottled": "over_limit",
}
EXPECTED = {
    OK,
    UNKNOWN,
    UNREACHED,
    "unavailable",
    "log_error",
    "lease_lost",
    "message_gone",
    "over_limit",
}


class Place(NamedTuple):
    """The content of a receipt, see node/messages/receipts.py."""

    shard: int
    queue: int
    sequence: int

    @classmethod
    def of(cls, receipt: str) -> Place:
        data = urlsafe_b64decode(receipt)
        return cls(*(int.from_bytes(data[start:stop], "little") for start, stop in ((3, 5), (5, 9), (13, 19))))


class Surroundings:
    """The state that all clients of a round share."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.history = History()
        self.outcomes: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self.asked: dict[int, str] = {}  # call → the node that it was sent to
        self.visibility_ms: dict[str, int] = {}  # of each queue


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Client:
    def __init__(self, name: str, around: Surroundings, random: Random) -> None:
        self.name = name
        self.around = around
        self.random = random

    def any_node(self) -> BatonNode:
        """Any running node, including one that is stopped or cut off."""
        nodes = self.around.cluster.nodes
        return self.random.choice([node for node in nodes if node.running] or nodes)

    async def send(
        self, queue: str, messages: list[Outgoing], invocation: str, producer: str = "", first: int = 0
    ) -> Sending:
        call = Sending(*self._head(queue), invocation=invocation, messages=messages, producer=producer)
        self.around.history.add(call)
        body: dict[str, Any] = {"messages": [_message(message) for message in messages]}
        headers = []
        if producer:
            body["producer"] = {"id": producer, "sequence": first}
        else:
            headers.append(("Idempotency-Key", invocation))
        told = await self._ask(call, f"/v1/queues/{queue}/messages:batch", body, ANSWER_S, headers)
        if told is not None:
            call.answers = [_answer(result) for result in told["results"]]
            self._count(*(answer.outcome for answer in call.answers))
        return call

    async def send_by_sdk(self, queue: str, messages: list[Outgoing], invocation: str, attempt: int) -> Sending:
        """A send as by an AWS SDK, which names its requests and numbers its attempts."""
        call = Sending(*self._head(queue), invocation=invocation, messages=messages)
        self.around.history.add(call)
        entries = [{"Id": str(at), "MessageBody": message.body.decode()} for at, message in enumerate(messages)]
        headers = [
            ("X-Amz-Target", "AmazonSQS.SendMessageBatch"),
            ("amz-sdk-invocation-id", invocation),
            ("amz-sdk-request", f"attempt={attempt}; max=100"),
        ]
        body = {"QueueUrl": f"http://localhost/{ACCOUNT}/{queue}", "Entries": entries}
        told = await self._ask(call, "/", body, ANSWER_S, headers, SQS_TYPE)
        if told is not None:
            results = {result["Id"]: result for kind in told.values() for result in kind}
            call.answers = [_sdk_answer(results[entry["Id"]]) for entry in entries]
            self._count(*(answer.outcome for answer in call.answers))
        return call

    async def receive(
        self, queue: str, count: int, visibility_ms: int | None, wait_ms: int, attempt: str = ""
    ) -> Receiving:
        call = Receiving(*self._head(queue), visibility_ms=visibility_ms, wait_ms=wait_ms, attempt=attempt)
        self.around.history.add(call)
        body: dict[str, Any] = {"maxMessages": count, "waitSeconds": wait_ms / 1000, "consumer": self.name}
        if visibility_ms is not None:
            body["visibilityTimeoutSeconds"] = visibility_ms / 1000
        if attempt:
            body["attemptId"] = attempt
        told = await self._ask(call, f"/v1/queues/{queue}/messages:receive", body, RECEIVE_S + wait_ms / 1000)
        if told is not None:
            lasts_ms = self.around.visibility_ms[queue] if visibility_ms is None else visibility_ms
            call.deliveries = [_delivered(call, each, lasts_ms) for each in told["messages"]]
        return call

    async def delete(self, held: Delivered) -> Holding:
        return await self._hold(held, "delete", "ack", 0)

    async def change(self, held: Delivered, visibility_ms: int) -> Holding:
        body = {"visibilityTimeoutSeconds": visibility_ms / 1000}
        return await self._hold(held, "change", "change-visibility", visibility_ms, body)

    async def nack(self, held: Delivered, delay_ms: int, dead_letter: bool = False) -> Holding:
        body = {"delaySeconds": delay_ms / 1000, "reason": "no luck", "deadLetter": dead_letter}
        return await self._hold(held, "nack", "nack", delay_ms, body, dead_letter)

    async def _hold(
        self, held: Delivered, kind: str, verb: str, value_ms: int, body: Any = None, dead_letter: bool = False
    ) -> Holding:
        call = Holding(
            *self._head(held.queue), kind=kind, receipt=held.receipt, value_ms=value_ms, dead_letter=dead_letter
        )
        self.around.history.add(call)
        await self._ask(call, f"/v1/queues/{held.queue}/messages/{quote(held.receipt)}:{verb}", body, ANSWER_S)
        return call

    def _head(self, queue: str) -> tuple[int, str, str, float, int]:
        return self.around.history.next_number(), self.name, queue, time.monotonic(), now_ms()

    async def _ask(
        self,
        call: Call,
        path: str,
        body: Any,
        timeout_s: float,
        headers: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """Make the call. Returns the response if it was successful."""
        data = b"" if body is None else json.dumps(body).encode()
        told = None
        node = self.any_node()
        self.around.asked[call.number] = node.name
        sent = [("Content-Type", content_type), *(headers or ())]
        try:
            answer = await node.transport.request(
                "POST", path, data, sent, timeout_s, polls=isinstance(call, Receiving)
            )
            told = json.loads(answer.body) if answer.body else {}
            call.outcome = OK if answer.status < 300 else _code(answer.status, told)
            if call.outcome not in EXPECTED:
                self.around.unexpected.append(f"call {call.number}: {path} returned {told}")
        except NotSent:
            call.outcome = UNREACHED
        except BatonError:
            call.outcome = UNKNOWN
        finally:
            call.ended_s, call.ended_ms = time.monotonic(), now_ms()
            if call.uncertain:
                call.ended_s += LATE_S
        self._count(call.outcome)
        return told if call.outcome == OK else None

    def _count(self, *outcomes: str) -> None:
        self.around.outcomes.update(outcomes)


def _code(status: int, told: dict[str, Any]) -> str:
    """A node that is no longer the owner may have executed it all the same."""
    code = _SDK_CODES.get(told.get("__type", "").rpartition("#")[2]) or str(told.get("code", status))
    return "unavailable" if code in ("fenced", "not_owner", "ownership_held") else code


def _message(message: Outgoing) -> dict[str, Any]:
    fields: dict[str, Any] = {"body": message.body.decode()}
    if message.group:
        fields["messageGroupId"] = message.group
    if message.dedup_id:
        fields["deduplicationKey"] = message.dedup_id
    if message.delay_ms is not None:
        fields["delaySeconds"] = message.delay_ms / 1000
    return fields


def _answer(result: dict[str, Any]) -> Answer:
    if "error" in result:
        error = result["error"]
        return Answer(_code(error.get("status", 0), error))
    return Answer(OK, result["messageId"], result["sequence"], result.get("duplicate", False))


def _sdk_answer(result: dict[str, Any]) -> Answer:
    if "Code" in result:
        return Answer(_SDK_CODES.get(result["Code"], result["Code"]))
    return Answer(OK, result["MessageId"])


def _delivered(call: Receiving, each: dict[str, Any], lasts_ms: int) -> Delivered:
    body = each["body"].encode()
    return Delivered(
        call=call.number,
        queue=call.queue,
        number=number_of(body),
        body=body,
        message_id=each["messageId"],
        receipt=each["receiptHandle"],
        group=each.get("messageGroupId", ""),
        sequence=Place.of(each["receiptHandle"]).sequence,
        sent_ms=each["sentAtMs"],
        began_ms=each["deadlineMs"] - lasts_ms,
        deadline_ms=each["deadlineMs"],
        receive_count=each["receiveCount"],
        priority=each.get("priority", NORMAL_PRIORITY),
        shard=Place.of(each["receiptHandle"]).shard,
    )

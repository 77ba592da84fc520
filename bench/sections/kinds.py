"""What a message costs by its kind: JSON documents, UTF-8, attributes, FIFO groups, returned messages, signed requests.

Server CPU per message, batches of ten of 1 KiB, beside plain text on the same server in the same rounds; and plain text
beside another revision, if one is named.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench import bodies
from bench.clients import Flow, Request
from bench.context import Context, Meter, run_flows
from bench.flows import Prepared, Tally, send_flow
from bench.report import Sample
from bench.servers import Server
from bench.sqs import SqsQueue, call

_GROUPS = 100
_BATCH = 10
_LETTERS = "abcdefghijklmnopqrstuvwxyz äöüßéèñçøåЖдяλπ中文字符"
# kind: at most so many times the server CPU of plain text
BARS = {"JSON": 1.15, "UTF-8": 1.15, "attributes": 1.5, "FIFO": 1.5, "returned": 1.1, "signed": 1.4}


def documents(count: int) -> list[str]:
    """JSON documents of about 1 KiB, as services send them to each other."""
    made = []
    for seed in range(count):
        dice = random.Random(seed)
        items = [
            {"sku": f"SKU-{dice.randrange(10**6):06d}", "quantity": dice.randrange(1, 9), "price": dice.random() * 100}
            for _ in range(9)
        ]
        note = bodies.text(bodies.KIB, seed)[: 1024 - len(json.dumps(items)) - 160]
        made.append(
            json.dumps(
                {"type": "order.created", "orderId": f"{dice.randrange(10**12):012d}", "items": items, "note": note}
            )
        )
    return made


def utf8_texts(count: int) -> list[str]:
    return ["".join(random.Random(seed).choices(_LETTERS, k=700)) for seed in range(count)]


@dataclass(slots=True)
class Kind:
    """One kind of message, sent to a fresh queue of one server."""

    name: str
    server: Server
    texts: Sequence[str]
    extra: Callable[[int], dict[str, object]] = lambda number: {}
    asked: bytes = b""  # more fields of a receive
    fifo: bool = False
    returned: bool = False
    ascii_only: bool = True

    def queue(self) -> SqsQueue:
        work = self.server.work(self.fifo)
        assert isinstance(work, SqsQueue)
        return work

    def supply(self, queue: SqsQueue, messages: int, start: int) -> Iterator[Prepared]:
        texts = itertools.cycle(self.texts)
        for first in range(start, start + messages, _BATCH):
            entries = [
                {"Id": str(place), "MessageBody": next(texts), **self.extra(first + place)} for place in range(_BATCH)
            ]
            fields = {"QueueUrl": queue.url, "Entries": entries}
            text = json.dumps(fields, separators=(",", ":"), ensure_ascii=self.ascii_only)
            yield Prepared(text.encode(), _BATCH, batch=True)

    def receive(self, queue: SqsQueue) -> Request:
        if not self.asked:
            return queue.receive(_BATCH)
        fields = f'{{"QueueUrl":"{queue.url}","MaxNumberOfMessages":{_BATCH},"VisibilityTimeout":600,'.encode()
        return queue.receive_by(fields + self.asked + b"}")


def _attributes(number: int) -> dict[str, object]:
    return {
        "MessageAttributes": {
            "source": {"DataType": "String", "StringValue": "checkout-service"},
            "attempt": {"DataType": "Number", "StringValue": str(number % 7)},
            "trace": {"DataType": "String", "StringValue": f"00-{number:032x}-00f067aa0ba902b7-01"},
        }
    }


def _group(number: int) -> dict[str, object]:
    return {"MessageGroupId": f"customer-{number % _GROUPS}", "MessageDeduplicationId": f"{number:x}"}


def _kinds(server: Server) -> list[Kind]:
    texts = bodies.texts(200)
    return [
        Kind("plain", server, texts),
        Kind("JSON", server, documents(200)),
        Kind("UTF-8", server, utf8_texts(200), ascii_only=False),
        Kind("attributes", server, texts, _attributes, b'"MessageAttributeNames":["All"]'),
        Kind("FIFO", server, texts, _group, fifo=True),
        Kind("returned", server, texts, returned=True),
    ]


_numbers = itertools.count(1, 10_000_000)


def _measure(kind: Kind, messages: int, connections: int) -> Sample:
    queue = kind.queue()
    start = next(_numbers)
    batches = list(kind.supply(queue, messages, start))
    meter = Meter(kind.server)
    tally = Tally()
    supply = iter(batches)
    seconds = run_flows(queue, lambda: send_flow(queue, supply, tally), connections)
    sent = meter.sample(tally.sent, seconds)
    if kind.returned:
        for _ in range(messages // _BATCH // _BATCH):
            call(kind.server.port, "ReceiveMessage", QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    meter = Meter(kind.server)
    used = Tally(target=messages)
    seconds = run_flows(queue, lambda: _consume(kind, queue, used), connections)
    consumed = meter.sample(used.deleted, seconds)
    send_us, consume_us = sent["server µs/message"], consumed["server µs/message"]
    return {
        "send µs/message": send_us,
        "consume µs/message": consume_us,
        "life µs/message": send_us + consume_us,
        "messages/s": messages / (messages / sent["messages/s"] + messages / consumed["messages/s"]),
        "steal %": max(sent["steal %"], consumed["steal %"]),
    }


def _consume(kind: Kind, queue: SqsQueue, tally: Tally) -> Flow:
    while tally.received < tally.target:
        receipts = queue.receipts((yield kind.receive(queue)))
        if receipts:
            tally.received += len(receipts)
            queue.check((yield queue.delete(receipts)))
            tally.deleted += len(receipts)


def kinds(context: Context) -> None:
    """The kinds of messages, on 16 connections and on one."""
    (server,) = context.servers.contestants("Baton")
    contestants = _kinds(server)
    if context.servers.has_before:
        (old,) = context.servers.contestants("before")
        contestants += [
            Kind(
                f"{kind.name}, before",
                old,
                kind.texts,
                kind.extra,
                kind.asked,
                kind.fifo,
                kind.returned,
                kind.ascii_only,
            )
            for kind in _kinds(old)
        ]
    for connections, full, quick in ((16, 20_000, 4_000), (1, 6_000, 2_000)):
        messages = context.size(full, quick)
        samples = context.interleave(
            contestants,
            lambda kind, n=messages, c=connections: _measure(kind, n, c),  # type: ignore[misc]
        )
        where = f"{connections} connection{'s' if connections > 1 else ''}"
        table = context.report.table("kinds", f"batches of 10 × 1 KiB, {where}", samples, "life µs/message")
        for figure in ("send µs/message", "life µs/message"):
            for kind, limit in BARS.items():
                if kind in samples:
                    ratio = table.ratio(kind, "plain", figure)
                    context.report.bar("kinds", f"{kind} ÷ plain, {figure}, {where}", ratio, limit, at_least=False)
            if "plain, before" in samples:
                ratio = table.ratio("plain", "plain, before", figure)
                text = f"plain text, this code ÷ before, {figure}, {where}"
                context.report.bar("kinds", text, ratio, 1.05, at_least=False)

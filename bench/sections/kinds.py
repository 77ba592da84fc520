"""What a message costs by its kind: JSON, UTF-8, attributes, FIFO groups, returned messages; signed and forwarded.

Server CPU per message, in batches of ten of 1 KiB, for sends alone and for the whole life. All kinds take turns in the
same rounds, and so does another revision of Baton, if one is named.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench import bodies, process_connections
from bench.clients import Flow, Place, Request
from bench.context import Context, Meter, run_flows
from bench.flows import Prepared, Tally, send_flow
from bench.report import Sample
from bench.servers import Server, Servers
from bench.sqs import SqsQueue, call

_GROUPS = 100
_BATCH = 10
_TEXTS = 200
SEND, LIFE = "send µs/message", "life µs/message"
PLAIN, JSON = "plain text", "JSON"
SIGNED = "plain text, signed"
LOCAL, FORWARDED = "JSON, at the owner", "JSON, forwarded"
BEFORE = ", before"
BEFORE_MAX = 1.05  # plain text, relative to the other revision
# kind: the kind that it is compared with, and at most so many times its server CPU
BARS = {
    JSON: (PLAIN, 1.15),
    "UTF-8": (PLAIN, 1.15),
    "three attributes": (PLAIN, 1.5),
    f"FIFO, {_GROUPS} groups": (PLAIN, 1.5),
    "a tenth returned once": (PLAIN, 1.1),
    SIGNED: (PLAIN, 1.4),
    FORWARDED: (LOCAL, 1.6),
}


@dataclass(slots=True, frozen=True)
class Kind:
    name: str
    texts: Sequence[str]
    extra: Callable[[int], dict[str, object]] = lambda number: {}
    asked: bytes = b""  # more fields of a receive
    fifo: bool = False
    returned: bool = False
    ascii_only: bool = True
    server: str = "one process"
    to_owner: bool | None = None  # None: any process is right


@dataclass(slots=True, frozen=True)
class Contestant:
    """One kind of message on one build's server; each measurement has a fresh queue."""

    name: str
    kind: Kind
    server: Server

    def queue(self) -> SqsQueue:
        work = self.server.work(self.kind.fifo)
        assert isinstance(work, SqsQueue)
        return work

    def supply(self, queue: SqsQueue, messages: int, start: int) -> Iterator[Prepared]:
        kind = self.kind
        texts = itertools.cycle(kind.texts)
        for first in range(start, start + messages, _BATCH):
            entries = [
                {"Id": str(place), "MessageBody": next(texts), **kind.extra(first + place)} for place in range(_BATCH)
            ]
            fields = {"QueueUrl": queue.url, "Entries": entries}
            text = json.dumps(fields, separators=(",", ":"), ensure_ascii=kind.ascii_only)
            yield Prepared(text.encode(), _BATCH, batch=True)

    def receive(self, queue: SqsQueue) -> Request:
        if not self.kind.asked:
            return queue.receive(_BATCH)
        fields = f'{{"QueueUrl":"{queue.url}","MaxNumberOfMessages":{_BATCH},"VisibilityTimeout":600,'.encode()
        return queue.receive_by(fields + self.kind.asked + b"}")

    def place(self, queue: SqsQueue, connections: int) -> Place:
        """Where to connect. Connections to a chosen process are opened before the measurement."""
        if self.kind.to_owner is None:
            return queue.port
        return process_connections.connections(queue, connections, to_owner=self.kind.to_owner)


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


def _kinds() -> list[Kind]:
    texts, documents = bodies.texts(_TEXTS), bodies.documents(_TEXTS)
    return [
        Kind(PLAIN, texts),
        Kind(JSON, documents),
        Kind("UTF-8", bodies.utf8_texts(_TEXTS), ascii_only=False),
        Kind("three attributes", texts, _attributes, b'"MessageAttributeNames":["All"]'),
        Kind(f"FIFO, {_GROUPS} groups", texts, _group, fifo=True),
        Kind("a tenth returned once", texts, returned=True),
        Kind(SIGNED, texts, server="secured"),
        Kind(LOCAL, documents, server="two processes", to_owner=True),
        Kind(FORWARDED, documents, server="two processes", to_owner=False),
    ]


def contestants_of(servers: Servers) -> list[Contestant]:
    """Every kind with this code, each followed by the same kind with the other revision, if one is named."""
    running: dict[tuple[str, str], Server] = {}
    for build in servers.builds:
        running[build, "one process"] = servers.baton(build=build)
        running[build, "secured"] = servers.baton("--secure", build=build)
        running[build, "secured"].sign_requests()
        running[build, "two processes"] = servers.baton("--shards", "2", "--processes", "2", build=build)
    return [
        Contestant(kind.name + (BEFORE if build == "before" else ""), kind, running[build, kind.server])
        for kind in _kinds()
        for build in servers.builds
    ]


_numbers = itertools.count(1, 10_000_000)


def measure(contestant: Contestant, messages: int, connections: int) -> Sample:
    server, queue = contestant.server, contestant.queue()
    batches = iter(list(contestant.supply(queue, messages, next(_numbers))))
    place = contestant.place(queue, connections)
    meter = Meter(server)
    tally = Tally()
    seconds = run_flows(queue, lambda: send_flow(queue, batches, tally), connections, place)
    sent = meter.sample(tally.sent, seconds)
    if contestant.kind.returned:
        for _ in range(messages // _BATCH // _BATCH):
            call(server.port, "ReceiveMessage", QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    place = contestant.place(queue, connections)
    meter = Meter(server)
    used = Tally(target=messages)
    seconds = run_flows(queue, lambda: _consume(contestant, queue, used), connections, place)
    consumed = meter.sample(used.deleted, seconds)
    send_us, consume_us = sent["server µs/message"], consumed["server µs/message"]
    return {
        SEND: send_us,
        "consume µs/message": consume_us,
        LIFE: send_us + consume_us,
        "messages/s": messages / (messages / sent["messages/s"] + messages / consumed["messages/s"]),
        "steal %": max(sent["steal %"], consumed["steal %"]),
    }


def _consume(contestant: Contestant, queue: SqsQueue, tally: Tally) -> Flow:
    while tally.received < tally.target:
        receipts = queue.receipts((yield contestant.receive(queue)))
        if receipts:
            tally.received += len(receipts)
            queue.check((yield queue.delete(receipts)))
            tally.deleted += len(receipts)


def kinds(context: Context) -> None:
    """All kinds, on 16 connections and on one."""
    contestants = contestants_of(context.servers)
    for connections, full, quick in ((16, 20_000, 4_000), (1, 6_000, 2_000)):
        messages = context.size(full, quick)
        samples = context.interleave(
            contestants,
            lambda contestant, n=messages, c=connections: measure(contestant, n, c),  # type: ignore[misc]
        )
        where = f"{connections} connection{'s' if connections > 1 else ''}"
        table = context.report.table("kinds", f"batches of 10 × 1 KiB, {where}", samples, LIFE)
        for figure in (LIFE, SEND):
            compared = [(kind, other, limit) for kind, (other, limit) in BARS.items()]
            if PLAIN + BEFORE in samples:
                compared.insert(0, (PLAIN, PLAIN + BEFORE, BEFORE_MAX))
            for kind, other, limit in compared:
                text = f"{kind} ÷ {other}, {figure}, {where}"
                context.report.bar("kinds", text, table.ratio(kind, other, figure), limit, at_least=False)

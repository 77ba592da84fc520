"""What filters cost a publish: ten subscriptions that match, alone and among thousands that do not.

The core of a shard is measured in this process, without a network: what is compared is the work per message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from batonq.core.commands import Send
from batonq.core.payload import Attribute, encode_attributes
from batonq.core.policy import QueuePolicy
from batonq.core.shard.machine import Shard
from batonq.core.topics.subscription import Subscription
from bench.context import Context
from bench.report import Sample

MATCHING = 10
LIMIT = 1.3  # times the cost of the subscriptions that match alone
_TOPIC = 1
_NOW = 1_700_000_000_000
_BATCH = 10
_ATTRIBUTES = encode_attributes(
    [
        Attribute("shop", "String", b"shop-0", False),
        Attribute("event", "String", b"order", False),
        Attribute("total", "Number", b"12.5", False),
    ]
)
_BODY = json.dumps({"order": 1017, "lines": [{"sku": f"x-{at}", "price": at} for at in range(10)]}).encode()


def filters(context: Context) -> None:
    """A topic with 10, 100 and 10,000 subscriptions of which ten match, by attributes and by the body."""
    for scope, policy in (
        ("MessageAttributes", {"event": ["order", "refund"], "shop": ["{}"], "total": [{"numeric": [">", 10]}]}),
        ("MessageBody", {"order": [{"numeric": [">", 0]}], "lines": {"sku": [{"prefix": "x-"}], "shop": ["{}"]}}),
    ):
        _compare(context, scope, json.dumps(policy))


def _compare(context: Context, scope: str, policy: str) -> None:
    counts = (MATCHING, 100, 10_000)
    messages = context.size(5_000, 500)
    topics = {count: _Topic(count, scope, policy) for count in counts}
    samples: dict[str, list[Sample]] = {f"{count:,} subscriptions": [] for count in counts}
    for _ in range(max(3, context.rounds)):
        for count, name in zip(counts, samples, strict=True):
            samples[name].append({"µs per publish": topics[count].publish(messages)})
    context.report.table("filters", f"ten matching subscriptions, {scope}", samples, "µs per publish")
    best = {name: min(sample["µs per publish"] for sample in rounds) for name, rounds in samples.items()}
    alone, *_, most = best.values()
    text = f"publish with 10,000 subscriptions of which ten match ÷ with ten, {scope}"
    context.report.bar("filters", text, most / alone, LIMIT, at_least=False)


class _Topic:
    """A shard with a topic, and the queues of the subscriptions that match."""

    def __init__(self, count: int, scope: str, policy: str) -> None:
        self._shard = shard = Shard(0)
        self._frame = 1
        self._body = _BODY if scope == "MessageAttributes" else _BODY.replace(b'"sku"', b'"shop": "shop-0", "sku"')
        shard.begin_frame(1)
        shard.take_ownership(1, _NOW, 0)
        shard.set_policy(QueuePolicy(_TOPIC, "tenant", "topic", topic=True), _NOW)
        for number in range(count):
            queue = 2 + min(number, MATCHING - 1)
            if number < MATCHING:
                shard.set_policy(QueuePolicy(queue, "tenant", f"q{queue}"), _NOW)
            text = policy.replace("{}", f"shop-{max(0, number - MATCHING + 1)}")
            one = Subscription(number + 1, _TOPIC, 1, queue, 0, name=f"q{queue}", raw=True, filter=text, scope=scope)
            shard.set_subscription(_TOPIC, number + 1, one, 1, _NOW)
            self._seal()
        self.publish(100)

    def publish(self, messages: int) -> float:
        """Publish messages; returns the processor time per message in microseconds."""
        copies = self._copies()
        bodies: Sequence[bytes] = [self._body] * _BATCH
        started = time.process_time()
        for _ in range(messages // _BATCH):
            self._shard.send([Send(_TOPIC, bodies, attributes=[_ATTRIBUTES] * _BATCH)], _NOW)
            self._seal()
        spent_us = (time.process_time() - started) * 1e6
        made = self._copies() - copies
        assert made == MATCHING * messages, f"{made} copies of {messages} messages"
        for queue in range(2, 2 + MATCHING):
            self._shard.purge(queue, _NOW)
            self._seal()
        return spent_us / messages

    def _copies(self) -> int:
        return int(self._shard.topics[_TOPIC].copies)

    def _seal(self) -> None:
        while self._shard.frame.finished:
            self._shard.frame.take_finished()
            self._frame += 1
        if self._shard.frame.row_count:
            self._shard.seal()
            self._frame += 1
            self._shard.begin_frame(self._frame)

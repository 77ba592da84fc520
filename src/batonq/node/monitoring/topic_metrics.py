"""The metrics of topics, on the shards that this node serves. Only the busiest topics have metrics of their own."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import Families, joined, label, many
from batonq.node.shard_host.keeper import ShardKeeper

TOPICS_MAX = 100  # with metrics of their own; the others are added up under an empty name

_Row = tuple[int, int, int, int, int]  # published, copies, refused, dropped, waiting
_METRICS = (
    metrics.TOPIC_PUBLISHED,
    metrics.TOPIC_COPIES,
    metrics.TOPIC_REFUSED,
    metrics.TOPIC_DROPPED,
    metrics.TOPIC_WAITING,
)


def topic_metrics(shards: Sequence[ShardKeeper], own_account: str) -> Families:
    rows: list[tuple[str, _Row]] = []
    for keeper in shards:
        if not keeper.serving:
            continue
        shard = keeper.host().shard
        for number, topic in shard.topics.items():
            queue = shard.queues[number]
            names = label("topic", queue.policy.name)
            if queue.policy.tenant != own_account:
                names = joined(names, label("account", queue.policy.tenant))
            rows.append((names, (topic.published, topic.copies, topic.refused, topic.dropped, queue.messages)))
    rows.sort(key=lambda row: (-row[1][4], -row[1][1], row[0]))
    shown, others = rows[:TOPICS_MAX], rows[TOPICS_MAX:]
    if others:
        total = tuple(map(sum, zip(*map(itemgetter(1), others), strict=True)))
        shown.append((label("topic", ""), total))  # type: ignore[arg-type]
    return [
        many(metric, [(names, values[at]) for names, values in shown]) for at, metric in enumerate(_METRICS) if shown
    ]

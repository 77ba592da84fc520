"""The audit of a quiet node: the core's own invariants, a replay, and a comparison with the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.records import State
from batonq.core.shard.machine import Shard
from batonq.node.node import Node
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.recovery import replay_log
from sim.ledger import Ledger, ShardBook
from sim.log import Witness


def audit(node: Node, witness: Witness, *, replay: bool) -> Iterator[str]:
    """Violations found on a serving node. Shards with requests in progress are skipped."""
    for alarm in node.alarms.active():
        if alarm.severity == "critical" and alarm.kind == "channel-stopped":
            yield alarm.text
    ledger = witness.fold()
    for keeper in node.shards:
        if keeper.serving and keeper.host().commit.idle:
            yield from _audit_shard(keeper.host(), ledger, replay)


def _audit_shard(host: ShardHost, ledger: Ledger, replay: bool) -> Iterator[str]:
    shard = host.shard
    try:
        shard.validate()
    except AssertionError as problem:
        yield f"shard {shard.number}: {problem}"
    yield from _compare(shard, ledger.book(shard.number))
    if replay:
        again = Shard(shard.number)
        replay_log(again, host.log)
        now_ms = shard.last_time_ms
        live, replayed = shard.dump(now_ms), again.dump(now_ms)
        if live != replayed:
            yield f"shard {shard.number}: replay gives another state{_first_difference(live, replayed)}"


def _compare(shard: Shard, book: ShardBook) -> Iterator[str]:
    """Compare every message and every count between the shard and its book."""
    columns = shard.columns
    have = {columns.sequence[slot] for slot in shard.live_slots()}
    should = {copy.sequence for copies in map(book.live, list(book.totals)) for copy in copies.values()}
    if have != should:
        yield f"shard {shard.number} has messages {sorted(have - should)} too many and {sorted(should - have)} too few"
    for number, queue in shard.queues.items():
        totals = book.of(number)
        counted = (queue.sent, queue.arrived, queue.deleted, queue.expired_messages, queue.moved, queue.messages)
        kept = (
            totals.sent,
            totals.arrived,
            totals.deleted + totals.purged,
            totals.expired + totals.moved_expired,
            totals.moved,
            len(book.live(number)),
        )
        if counted != kept:
            yield (
                f"shard {shard.number}, queue {queue.policy.name}: sent, arrived, deleted, expired, moved, present are "
                f"{counted}, the log says {kept}"
            )
    owed = {copy.sequence for copies in map(book.live, list(book.totals)) for copy in copies.values() if copy.owed}
    if owed != {columns.sequence[slot] for slot in shard.live_slots() if columns.state[slot] == State.OWED}:
        yield f"shard {shard.number}: other messages are OWED than the log says"


def _first_difference(live: bytes, replayed: bytes) -> str:
    at = next((at for at, pair in enumerate(zip(live, replayed, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, at - 200)
    return f"\n   live: …{live[start : at + 100]!r}\n replay: …{replayed[start : at + 100]!r}"

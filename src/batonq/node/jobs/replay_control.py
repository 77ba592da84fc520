"""Starts replay jobs: a part for each shard of the queue, with its bounds in the shard's retained history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Job
from batonq.core.shard.state.job_book import REPLAY
from batonq.core.spread import divided
from batonq.errors import InvalidInput, PositionInvalid
from batonq.node.catalog.queue_control import Queue
from batonq.node.jobs.id_list import listed_ids
from batonq.node.jobs.redrive_filter import encode_pick
from batonq.node.jobs.replay_scan import encode_selection
from batonq.node.routing.ports import ShardPort

RATE_DEFAULT_PER_S = 100
SECOND_MS = 1_000


@dataclass(slots=True, frozen=True, kw_only=True)
class Replay:
    """Which retained messages to send again, where to, and how fast. Times are in milliseconds.

    Positions are log positions by shard. A message is replayed if it entered the queue at `from_ms` or later and before
    `until_ms`, and its position is at least the shard's `from_positions` and below its `until_positions`.
    """

    target: Queue | None = None  # None: the same queue
    from_ms: int = 0
    until_ms: int = 0  # 0: up to now
    from_positions: Mapping[int, int] = field(default_factory=dict)
    until_positions: Mapping[int, int] = field(default_factory=dict)
    filter: Mapping[str, Any] | None = None
    rate_per_s: int = RATE_DEFAULT_PER_S
    dry_run: bool = False
    max_messages: int = 0  # 0: all


async def replay_parts(
    source: Queue, replay: Replay, job_id: str, rate_max_per_s: int, bytes_max: int, port: Callable[[int], ShardPort]
) -> dict[int, Job]:
    """The job's part per shard. Each has a share of the rate, in proportion to the messages that the shard retains.

    `bytes_max` is the maximum size of a message of the target. Raises InvalidInput, PositionInvalid, NotRetained.
    """
    target = replay.target or source
    _check(source, target, replay, rate_max_per_s)
    ports = {shard: port(shard) for shard in source.shards}
    bounds = await asyncio.gather(*(each.retained_bounds(source.number, replay.from_ms) for each in ports.values()))
    ends = bounds
    if replay.until_ms:  # times are indexed in whole seconds; messages are compared exactly later
        until_ms = replay.until_ms + SECOND_MS
        ends = await asyncio.gather(*(each.retained_bounds(source.number, until_ms) for each in ports.values()))
    listed = None
    if replay.filter is not None and replay.filter.get("messageIds") is not None:
        nexts = await asyncio.gather(*(each.next_sequence() for each in ports.values()))
        listed = listed_ids(replay.filter, dict(zip(ports, nexts, strict=True)))
    job = Job(
        id=job_id,
        source=source.number,
        source_arn=queue_arn(source.account, source.name),
        destination=target.number,
        destination_shard=target.shard,
        destination_arn=queue_arn(target.account, target.name),
        rate_per_s=replay.rate_per_s,
        state="RUNNING",
        started_ms=0,
        to_move=0,
        kind=REPLAY,
    )
    weights = [bound.messages for bound in bounds]
    whole = sum(weights)
    limits = divided(replay.max_messages, weights)
    parts: dict[int, Job] = {}
    for shard, bound, end, limit in zip(ports, bounds, ends, limits, strict=True):
        idle = not bound.messages or (replay.max_messages and not limit)
        if idle and (whole or parts):
            continue
        sequences = listed.sequences[shard] if listed is not None else None
        pick = encode_pick(replay.filter, None, bytes_max, sequences)
        through = end.before if replay.until_ms else 0
        if shard in replay.until_positions:
            before = max(replay.until_positions[shard] - 1, 1)  # 0 would mean: up to now
            through = min(through or before, before)
        parts[shard] = replace(
            job,
            selection=encode_selection(pick, replay.from_ms, replay.until_ms, bytes_max),
            cursor=max(bound.before if replay.from_ms else 0, replay.from_positions.get(shard, 1) - 1),
            through_sequence=through,
            max_messages=limit,
            share=bound.messages / whole if whole else 1.0,
        )
    return parts


def _check(source: Queue, target: Queue, replay: Replay, rate_max_per_s: int) -> None:
    if not 1 <= replay.rate_per_s <= rate_max_per_s:
        raise InvalidInput(
            f"The rate of a job must be 1 to {rate_max_per_s} messages per second, not {replay.rate_per_s}."
        )
    if target.fifo != source.fifo:
        raise InvalidInput(
            f"Queue {source.name} can only be replayed to a queue of the same type (standard or FIFO), and "
            f"{target.name} is not."
        )
    if replay.until_ms and replay.until_ms <= replay.from_ms:
        raise InvalidInput("The end of a replay must be later than its start: `until` is not after `from`.")
    for shard in (*replay.from_positions, *replay.until_positions):
        if shard not in source.shards:
            raise PositionInvalid(
                f"A position of shard {shard} is not in queue {source.name}: its shards are "
                f"{', '.join(map(str, source.shards))}."
            )

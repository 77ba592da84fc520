"""POST /v1/queues/{queue}:replay: send retained messages again, as a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from batonq.api.rest.jobs import check_size, filter_of, shown_job, target_of
from batonq.api.rest.replay_shapes import ReplaySpec
from batonq.api.rest.service import Answer, Call
from batonq.core.positions import parse_position
from batonq.errors import InvalidInput, PositionInvalid
from batonq.node.jobs.replay_control import Replay


async def replay(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(ReplaySpec)
    check_size(call, given.filter)
    status = await call.broker.start_replay(
        queue,
        Replay(
            target=target_of(call, given.target_queue) if given.target_queue else None,
            from_ms=_milliseconds(given.since, "from"),
            until_ms=_milliseconds(given.until, "until"),
            from_positions=_positions(given.from_positions or (), "fromPositions"),
            until_positions=_positions(given.until_positions or (), "untilPositions"),
            filter=filter_of(given.filter),
            rate_per_s=given.max_messages_per_second,
            dry_run=given.dry_run,
            max_messages=given.max_messages or 0,
        ),
    )
    headers = () if given.dry_run else (("Location", f"/v1/jobs/{status.id}"),)
    return Answer(200 if given.dry_run else 202, shown_job(call, status), headers)


def _milliseconds(moment: datetime | None, name: str) -> int:
    if moment is None:
        return 0
    if moment.year < 1970:
        raise InvalidInput(f"{name} must be a time after 1970, not {moment.isoformat()}.")
    return round(moment.timestamp() * 1000)


def _positions(texts: Sequence[str], name: str) -> dict[int, int]:
    """Positions by shard."""
    found: dict[int, int] = {}
    for text in texts:
        shard, number = parse_position(text)
        if shard in found:
            raise PositionInvalid(f"{name} has two positions of shard {shard}. Give one per shard.")
        found[shard] = number
    return found

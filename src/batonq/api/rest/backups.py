"""Backups of a running server: the point of a backup, and the catalog's part of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from batonq import __version__
from batonq.api.http import Response
from batonq.api.rest.history import CONTENT_TYPE, FRAME_MAX, HEADERS
from batonq.api.rest.queues import query, whole
from batonq.api.rest.service import NO_CONTENT, Answer, Call
from batonq.api.rest.shapes import Answered
from batonq.node.backup.backups import Cut

BackupId = Annotated[str, Meta(min_length=1, max_length=64)]


class LogCut(Answered):
    """The part of a log that belongs to a backup."""

    shard: int
    first_frame: int
    next_frame: int
    digest: str
    bytes: int


class BackupPoint(Answered):
    """The point of a backup: where it ends in each log."""

    backup: str
    at_ms: int
    release: str
    cluster: str
    account: str
    held_seconds: float
    shards: list[LogCut]
    catalog: LogCut


async def create_backup(call: Call) -> Answer:
    call.require_operator(write=True)
    point = await call.broker.backups.create()
    shown = BackupPoint(
        backup=point.backup,
        at_ms=point.at_ms,
        release=__version__,
        cluster=f"{point.cluster:016x}",
        account=call.broker.account,
        held_seconds=point.held_s,
        shards=[_shown(cut) for cut in point.shards],
        catalog=_shown(point.catalog),
    )
    return Answer(201, shown)


def _shown(cut: Cut) -> LogCut:
    return LogCut(cut.shard, cut.first, cut.next, cut.digest, cut.bytes)


async def read_catalog(call: Call) -> Answer:
    call.require_operator(write=True)  # the catalog contains the secrets of keys
    values = query(call, ("from", "to"))
    start = whole(values.get("from"), "from", 1, FRAME_MAX, 1)
    stop = whole(values.get("to"), "to", start + 1, FRAME_MAX, FRAME_MAX)
    served = await call.broker.backups.read_catalog(call.name, start, stop)
    numbers = (served.next, served.first, served.end)
    headers = [(name, str(number)) for (name, _), number in zip(HEADERS, numbers, strict=True)]
    return Answer(200, Response(200, served.data, CONTENT_TYPE, headers))


async def finish_backup(call: Call) -> Answer:
    call.require_operator(write=True)
    await call.broker.backups.finish(call.name)
    return NO_CONTENT

"""GET /v1/history: the range of frames that each shard has, and the frames themselves as they are in the log."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from batonq.api.http import Response
from batonq.api.rest.queues import query, whole
from batonq.api.rest.service import Answer, Call
from batonq.errors import InvalidInput, NotFound
from batonq.node.operations.history import BYTES_MAX

CONTENT_TYPE = "application/vnd.baton.frames"
BYTES_DEFAULT = 4 << 20
WAIT_MAX_S = 20
FRAME_MAX = (1 << 47) - 1
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")

ShardNumber = Annotated[int, Meta(ge=0, le=65_534)]
FrameNumber = Annotated[int, Meta(ge=1, le=FRAME_MAX)]
PieceBytes = Annotated[int, Meta(ge=1, le=BYTES_MAX)]
WaitSeconds = Annotated[float, Meta(ge=0, le=WAIT_MAX_S)]


class NamedQueue(Struct, rename="camel"):
    """A queue's number in the shard's log, with the queue's name and account."""

    number: int
    tenant: str
    name: str


class RetainedHistory(Struct, rename="camel"):
    """The part of a shard's log that is retained."""

    shard: int
    first_frame: int
    next_frame: int
    bytes: int
    queues: list[NamedQueue] | UnsetType = UNSET


class Histories(Struct, rename="camel"):
    shards: list[RetainedHistory]
    unavailable: list[int]


HEADERS = (
    ("Baton-Next-Frame", "First frame to request next, as `from`."),
    ("Baton-First-Frame", "The first retained frame."),
    ("Baton-End-Frame", "Number of the log's next frame."),
)


async def list_history(call: Call) -> Answer:
    call.require_operator(write=False)
    names = query(call, ("names",)).get("names", "false")
    if names not in ("true", "false"):
        raise InvalidInput("names must be true or false.")
    found = await call.broker.history.listed(names == "true")
    listed = [RetainedHistory(*one) for one in found.shards]
    for one in listed:
        if one.shard in found.queues:
            one.queues = [NamedQueue(*queue) for queue in found.queues[one.shard]]
    return Answer(200, Histories(listed, found.unavailable))


async def read_history(call: Call) -> Answer:
    call.require_operator(write=False)
    values = query(call, ("from", "to", "max_bytes", "wait"))
    if not call.name.isascii() or not call.name.isdigit() or len(call.name) > 5:
        raise NotFound(f"Shard {call.name[:40]!r} does not exist. GET /v1/history lists the shards.")
    start = whole(values.get("from"), "from", 1, FRAME_MAX, 1)
    bytes_max = whole(values.get("max_bytes"), "max_bytes", 1, BYTES_MAX, BYTES_DEFAULT)
    wait_s = _seconds(values.get("wait"))
    call.request.cancellable = wait_s > 0
    stop = whole(values["to"], "to", start + 1, FRAME_MAX, 0) if "to" in values else None
    served = await call.broker.history.read(int(call.name), start, bytes_max, wait_s, stop)
    numbers = (served.next, served.first, served.end)
    headers = [(name, str(number)) for (name, _), number in zip(HEADERS, numbers, strict=True)]
    return Answer(200, Response(200, served.data, CONTENT_TYPE, headers))


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    if not _NUMBER.fullmatch(text) or not 0 <= float(text) <= WAIT_MAX_S:
        raise InvalidInput(f"wait must be a number from 0 to {WAIT_MAX_S}.")
    return float(text)

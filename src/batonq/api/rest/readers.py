"""Reader groups and retained history: the operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import trace_of
from batonq.api.rest.queues import query, whole
from batonq.api.rest.reader_shapes import (
    CommitSpec,
    Committed,
    FailResult,
    FailSpec,
    FetchedMessages,
    FetchSpec,
    HistoryPage,
    Joined,
    JoinSpec,
    Reader,
    ReaderMember,
    Readers,
    ReaderShard,
    ReaderSpec,
    RetainedMessage,
    SeekSpec,
)
from batonq.api.rest.receiving import attribute_values, json_bodies, packed_bodies
from batonq.api.rest.service import NO_CONTENT, Answer, Call, Turns, find_queue, finished, milliseconds
from batonq.core.positions import parse_position, position_text
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.errors import InvalidInput, PositionInvalid, QueueDoesNotExist
from batonq.node.broker import Queue
from batonq.node.messages.reader_control import GroupView
from batonq.node.messages.received import CONTENT_BITS
from batonq.node.messages.retained_reader import LIMIT_MAX, RetainedPage
from batonq.priorities import NORMAL_PRIORITY

TIME_MAX_MS = 253_402_300_799_000  # the year 9999


async def list_readers(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    return Answer(200, Readers(readers=[_shown(queue, view) for view in await call.broker.readers.groups(queue)]))


async def create_reader(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(ReaderSpec)
    dead: Queue | None = None
    if given.dead_letter_queue is not None:
        try:
            dead = find_queue(call, given.dead_letter_queue)
        except QueueDoesNotExist as problem:
            raise InvalidInput(f"deadLetterQueue: {problem.message}") from None
    settings = GroupSettings(
        given.max_failures,
        dead.number if dead is not None else 0,
        dead.name if dead is not None else "",
        milliseconds(given.session_seconds),
    )
    view, is_new = await call.broker.readers.create(queue, given.name, settings, start_of(given.from_, "from"))
    return Answer(201 if is_new else 200, _shown(queue, view))


async def get_reader(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    return Answer(200, _shown(queue, await call.broker.readers.get(queue, call.token)))


async def delete_reader(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    await call.broker.readers.delete(queue, call.token)
    return NO_CONTENT


async def join(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(JoinSpec)
    own = await call.broker.readers.join(queue, call.token, given.member)
    return Answer(
        200,
        Joined(
            member=given.member,
            epoch=own.epoch,
            shards=own.shards,
            reset_epoch=own.reset_epoch,
            members=own.members,
            session_seconds=own.session_ms / 1000,
        ),
    )


async def leave(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(JoinSpec)
    await call.broker.readers.leave(queue, call.token, given.member)
    return NO_CONTENT


async def fetch(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(FetchSpec)
    call.request.cancellable = True
    call.request.brief = given.wait_seconds <= 0
    if given.commit:
        done = _positions(given.commit, "commit")
        await call.broker.readers.commit(queue, call.token, given.member, given.epoch, done)
    found = await call.broker.readers.fetch(
        queue,
        call.token,
        given.member,
        given.epoch,
        given.shards,
        dict(_positions(given.after or (), "after")),
        given.max_messages,
        milliseconds(given.wait_seconds),
    )
    messages: list[RetainedMessage] = []
    for fetched in found:
        messages += await finished(messages_of(fetched.page, call.wanted is MSGPACK))
    lag = sum(fetched.view.lag_messages for fetched in found)
    blocked_at = next((fetched.blocked_at for fetched in found if fetched.blocked_at), "")
    return Answer(200, FetchedMessages(messages=messages, lag_messages=lag, blocked_at=blocked_at))


async def commit(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(CommitSpec)
    positions = _positions(given.positions, "positions")
    done = await call.broker.readers.commit(queue, call.token, given.member, given.epoch, positions)
    return Answer(200, Committed(positions=[position_text(shard, number) for shard, number in done]))


async def fail(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(FailSpec)
    position = parse_position(given.position)
    failed = await call.broker.readers.fail(queue, call.token, given.member, given.epoch, position, given.error)
    return Answer(200, FailResult(failures=failed.failures, skipped=failed.is_skipped, why=failed.why))


async def seek(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(SeekSpec)
    if (given.to is None) == (given.positions is None):
        raise InvalidInput("Set either `to` (start, end or a time) or `positions`.")
    start = start_of(given.to, "to") if given.to is not None else None
    positions = _positions(given.positions or (), "positions")
    return Answer(200, _shown(queue, await call.broker.readers.seek(queue, call.token, start, positions)))


async def read_queue_history(call: Call) -> Answer:
    """Retained messages without a group, one shard after another."""
    queue = call.queue()
    given = query(call, ("from", "cursor", "limit"))
    limit = whole(given.get("limit"), "limit", 1, LIMIT_MAX, 100)
    readers = call.broker.readers
    if "cursor" in given and "from" in given:
        raise InvalidInput("The query parameters cursor and from exclude each other.")
    if "cursor" in given:
        after = dict(_positions(given["cursor"].split(",")[:64], "cursor"))
        for shard, number in after.items():
            readers.check_shard(queue, shard, number)
    elif ":" in given.get("from", "") and "T" not in given["from"].upper():
        shard, number = parse_position(given["from"])
        readers.check_shard(queue, shard, number)
        after = {shard: number - 1}
    else:
        start = start_of(given.get("from", "start"), "from")
        if start.kind == "end":
            raise InvalidInput("from: the history ends at `end`. Use `start`, a time or a position.")
        after = {shard: await readers.before_time(queue, shard, start.value) for shard in queue.shards}
    messages: list[RetainedMessage] = []
    cursor: list[str] = []
    for shard, position in after.items():
        page = await readers.read(queue, shard, position, limit - len(messages)) if limit > len(messages) else None
        if page is None:
            cursor.append(position_text(shard, position))
        else:
            messages += await finished(messages_of(page, call.wanted is MSGPACK))
            if page.left:
                cursor.append(position_text(shard, page.positions[-1]))
    return Answer(200, HistoryPage(messages=messages, next_cursor=",".join(cursor)))


# --- what requests say ------------------------------------------------------------------------------


def start_of(given: str | int, name: str) -> Start:
    """Where to start: `start`, `end`, or a time in RFC 3339 or in milliseconds since 1970."""
    if given in ("start", "end"):
        return Start(str(given))
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise InvalidInput(
                f"{name}: {given[:60]!r} is neither `start` nor `end` nor a time with a time zone, such as "
                "2026-11-17T22:00:00Z."
            )
        at_ms = round(moment.timestamp() * 1000)
    else:
        at_ms = int(given)
    if not 0 <= at_ms <= TIME_MAX_MS:
        raise InvalidInput(f"{name}: the time {given!r} is out of range.")
    return Start("time", at_ms)


def _positions(texts: Sequence[str], name: str) -> list[tuple[int, int]]:
    """Positions by shard. Raises PositionInvalid, which says which of them is wrong."""
    found: dict[int, int] = {}
    for at, text in enumerate(texts):
        try:
            shard, number = parse_position(text)
        except PositionInvalid as problem:
            raise PositionInvalid(f"{name}[{at}]: {problem.message}") from None
        if shard in found:
            raise PositionInvalid(f"{name}[{at}]: there is already a position of shard {shard}.")
        found[shard] = number
    return [*found.items()]


# --- what answers say -------------------------------------------------------------------------------


def _shown(queue: Queue, view: GroupView) -> Reader:
    reader = view.reader
    return Reader(
        name=reader.group,
        queue=queue.name,
        created_at_ms=reader.created_ms,
        epoch=reader.group_epoch or reader.epoch,
        max_failures=reader.settings.max_failures,
        session_seconds=reader.settings.session_ms / 1000,
        lag_messages=view.lag_messages,
        lag_seconds=view.lag_ms / 1000,
        members=[ReaderMember(member=member, shards=shards) for member, shards in sorted(reader.members.items())],
        shards=[
            ReaderShard(
                shard=part.shard,
                committed=position_text(part.shard, part.reader.position),
                lag_messages=part.lag_messages,
                lag_seconds=part.lag_ms / 1000,
                last=position_text(part.shard, part.last) if part.last else "",
                member=part.reader.member,
                failed_position=position_text(part.shard, part.reader.failed) if part.reader.failed else "",
                failures=part.reader.failures,
                error=part.reader.error,
            )
            for part in view.parts
        ],
        dead_letter_queue=reader.settings.dead_letter_name,
    )


_DEFAULTS = RetainedMessage.__struct_defaults__[1:]  # of the fields after the body


def messages_of(page: RetainedPage, binary: bool) -> Turns[list[RetainedMessage]]:
    """The messages of a page as the client gets them."""
    contents = [content & CONTENT_BITS for content in page.contents]
    texts64: Sequence[Any] = ()
    if binary:
        bodies = yield from packed_bodies(page.bodies, contents)
    else:
        bodies, texts64 = json_bodies(page.bodies, contents)
    attributes: Sequence[Any] = ()
    if page.attributes:
        attributes = yield from attribute_values(page.attributes, binary)
    traces = [*map(trace_of, page.traces)]
    usual = page.priorities.count(NORMAL_PRIORITY) == len(page.priorities)
    more: list[Iterable[Any]] = [
        () if usual else page.priorities,
        texts64,
        attributes,
        page.groups,
        page.dedup_ids,
        [parent for parent, _ in traces],
        [state for _, state in traces],
    ]
    while more and not more[-1]:
        more.pop()
    optional = [column or repeat(default) for column, default in zip(more, _DEFAULTS, strict=False)]
    shard, numbers_from = page.shard, page.numbers_from
    return [
        *map(
            RetainedMessage,
            [f"{shard}:{position}" for position in page.positions],
            page.message_ids(),
            [numbers_from + sequence for sequence in page.sequences],
            page.sents_ms or page.times_ms,
            page.times_ms,
            bodies,
            *optional,
        )
    ]

"""POST /v1/queues/{queue}/messages:receive, and POST /v1/messages:receive for several queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET, Raw, UnsetType

from batonq.api.consumer_names import agent_of
from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_of, base64_of, packed_text, trace_of, value_of
from batonq.api.rest.service import Answer, Call, Finish, Turns, finished, milliseconds
from batonq.api.rest.shapes import DeadLetter, LastFailure, Receive, ReceiveAny, Received, ReceivedMessages
from batonq.attribute_formats.arns import parse_queue_arn
from batonq.core.commands import Failure
from batonq.core.commands import Receive as ReceiveCommand
from batonq.core.payload import Content, Lineage
from batonq.errors import BatonError, InvalidInput
from batonq.node.broker import Delivery
from batonq.node.broker import Received as BrokerReceived
from batonq.node.messages.consumers import ANY_QUEUE
from batonq.node.messages.received import CONTENT_BITS

ATTEMPT_MESSAGES_MAX = 10  # any 10 messages fit into one answer, and a repeated attempt must return the same messages
TURN_BYTES = 256 * 1024  # of JSON to convert to MessagePack per turn of the event loop
ATTRIBUTES_FACTOR = 2  # the cost of attributes per byte, relative to bytes of a body
_TEXT, _JSON = int(Content.TEXT), int(Content.JSON)
_CONTENTS = frozenset(map(int, Content))


def receive(call: Call, finish: Finish) -> None:
    queue = call.queue()
    given = call.read(Receive)
    attempt = given.attempt_id or ""
    if attempt and not queue.fifo:
        raise InvalidInput("attemptId can be used only with FIFO queues.")
    binary = call.wanted is MSGPACK

    def delivered(outcome: BrokerReceived | BatonError) -> None:
        poll.ended(outcome)
        if isinstance(outcome, BatonError):
            finish(outcome)
            return

        def failed(problem: Exception) -> None:
            outcome.give_back()
            finish(call.fault(problem))

        call.run_in_turns(
            _messages(_columns(queue.name, outcome), binary),
            lambda messages: finish(Answer(200, ReceivedMessages(messages)), outcome.give_back),
            failed,
        )

    command = ReceiveCommand(
        queue.number,
        min(given.max_messages, ATTEMPT_MESSAGES_MAX) if attempt else given.max_messages,
        _visibility_ms(given.visibility_timeout_seconds),
        given.consumer or call.holder,
        attempt,
        queue.wait_ms if given.wait_seconds is None else milliseconds(given.wait_seconds),
    )
    poll = call.broker.consumers.polls(
        call.caller.account, queue.number, command.holder, call.request.peer, agent_of(call.request)
    )
    waiting = call.broker.receive(queue, command, delivered)
    # A client that disconnects before the answer must not hold a lease on any message.
    call.request.cancellable = True
    call.request.brief = command.wait_ms <= 0
    call.request.abandon = None if waiting is None else partial(poll.abandon, waiting.abandon)


async def receive_any(call: Call) -> Answer:
    given = call.read(ReceiveAny)
    call.request.cancellable = True
    call.request.brief = not given.wait_seconds
    holder = given.consumer or call.holder
    consumers = call.broker.consumers
    poll = consumers.polls(call.caller.account, ANY_QUEUE, holder, call.request.peer, agent_of(call.request))
    try:
        found = await call.broker.receive_any(
            call.broker.select(call.caller.account, given.queues),
            given.max_messages,
            _visibility_ms(given.visibility_timeout_seconds),
            milliseconds(given.wait_seconds or 0),
            holder,
        )
        poll.answered(len(found))
    finally:
        poll.left()
    for number, count in Counter(queue.number for queue, _ in found).items():
        consumers.receives(call.caller.account, holder, number, count)
    call.give_back = partial(call.broker.give_back_found, [(queue.number, delivery) for queue, delivery in found])
    columns = _columns_of_rows([queue.name for queue, _ in found], [delivery for _, delivery in found])
    return Answer(200, ReceivedMessages(await finished(_messages(columns, call.wanted is MSGPACK))))


def _visibility_ms(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)


class _Columns(NamedTuple):
    """Received messages, one column per property. A column that no message uses is empty."""

    ids: Sequence[str]
    receipts: Sequence[str]
    counts: Iterable[int]
    sequences: Sequence[int]
    queues: Iterable[str]
    sents_ms: Sequence[int]
    firsts_ms: Sequence[int]
    deadlines_ms: Iterable[int]
    bodies: Sequence[bytes]
    contents: Sequence[int]
    priorities: Iterable[int]
    attributes: Sequence[bytes]
    groups: Sequence[str]
    dedup_ids: Sequence[str]
    traces: Sequence[str]
    lineages: Sequence[Lineage | None]
    failures: Sequence[Failure | None]


def _columns(queue: str, found: BrokerReceived) -> _Columns:
    if found.rows:
        return _columns_of_rows(repeat(queue), found.rows)
    leases, numbers_from = found.leases, found.numbers_from
    contents = found.contents
    flagged = {*contents}
    if len(flagged) == 1:
        contents = [flagged.pop() & CONTENT_BITS] * len(contents)
    elif not _CONTENTS.issuperset(flagged):
        contents = [content & CONTENT_BITS for content in contents]
    return _Columns(
        found.message_ids(),
        found.receipts,
        leases.counts or repeat(1),
        [numbers_from + sequence for sequence in leases.sequences] if numbers_from else leases.sequences,
        repeat(queue),
        leases.sents_ms,
        leases.first_receives_ms(),
        repeat(leases.deadline_ms),
        found.bodies,
        contents,
        leases.priorities or repeat(leases.priority),
        found.attributes,
        found.groups,
        found.dedup_ids,
        found.traces,
        [Lineage.decode(lineage) if lineage else None for lineage in found.lineages],
        [*map(found.failures.get, leases.slots)] if found.failures else (),
    )


def _columns_of_rows(queues: Iterable[str], rows: Sequence[Delivery]) -> _Columns:
    ids, receipts, bodies, _, attributes, _, groups, dedup_ids, traces, sequences, *others = (
        zip(*rows, strict=True) if rows else repeat((), len(Delivery._fields))
    )
    sents_ms, firsts_ms, counts, deadlines_ms, priorities, lineages, failures, contents = others
    used = [column if any(column) else () for column in (attributes, groups, dedup_ids, traces, lineages, failures)]
    return _Columns(
        ids,
        receipts,
        counts,
        sequences,
        queues,
        sents_ms,
        firsts_ms,
        deadlines_ms,
        bodies,
        contents,
        priorities,
        *used,
    )


_DEFAULTS = Received.__struct_defaults__[1:]  # of the fields after the body


def _messages(columns: _Columns, binary: bool) -> Turns[list[Received]]:
    """The messages as the client gets them."""
    if binary:
        bodies = yield from packed_bodies(columns.bodies, columns.contents)
        texts64: Sequence[Any] = ()
    else:
        bodies, texts64 = json_bodies(columns.bodies, columns.contents)
    attributes: Sequence[Any] = ()
    if columns.attributes:
        attributes = yield from attribute_values(columns.attributes, binary)
    traces = [*map(trace_of, columns.traces)]
    more: list[Iterable[Any]] = [
        columns.priorities,
        texts64,
        attributes,
        columns.groups,
        columns.dedup_ids,
        [parent for parent, _ in traces],
        [state for _, state in traces],
        [None if one is None else dead_letter(one) for one in columns.lineages],
        [None if one is None else _last_failure(one) for one in columns.failures],
    ]
    while more and not more[-1]:
        more.pop()
    optional = [column or repeat(default) for column, default in zip(more, _DEFAULTS, strict=False)]
    return [*map(Received, *columns[:_BODIES_AT], bodies, *optional)]


_BODIES_AT = _Columns._fields.index("bodies")


def json_bodies(bodies: Sequence[bytes], contents: Sequence[int]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The bodies for JSON, and the bodies in base64."""
    kinds = {*contents}
    if kinds == {_TEXT}:
        return [*map(bytes.decode, bodies)], ()
    values = [
        body.decode() if content == _TEXT else Raw(body) if content == _JSON else UNSET
        for body, content in zip(bodies, contents, strict=True)
    ]
    if kinds <= {_TEXT, _JSON}:
        return values, ()
    return values, [
        UNSET if content in (_TEXT, _JSON) else base64_of(body) for body, content in zip(bodies, contents, strict=True)
    ]


def packed_bodies(bodies: Sequence[bytes], contents: Sequence[int]) -> Turns[Sequence[Any]]:
    """The bodies for MessagePack."""
    if {*contents} == {_TEXT}:
        return [*map(packed_text, bodies)]
    values: list[Any] = []
    size = 0
    for body, content in zip(bodies, contents, strict=True):
        if content == _JSON:
            if size > TURN_BYTES:
                size = 0
                yield
            size += len(body)
        values.append(packed_body(body, content))
    return values


def attribute_values(encoded: Sequence[bytes], binary: bool) -> Turns[list[Any]]:
    values: list[Any] = []
    size = 0
    for one in encoded:
        if size > TURN_BYTES:
            size = 0
            yield
        size += ATTRIBUTES_FACTOR * len(one)
        values.append((attributes_of(one, binary=binary) if one else None) or UNSET)
    return values


class HasBody(Protocol):
    body: Any
    body_base64: str | UnsetType


def put_body(message: HasBody, body: bytes, content: int, *, binary: bool) -> None:
    if binary:
        message.body = packed_body(body, content)
    elif content == _TEXT:
        message.body = body.decode()
    elif content == _JSON:
        message.body = Raw(body)
    else:
        message.body_base64 = base64_of(body)


def packed_body(body: bytes, content: int) -> Any:
    """A body for MessagePack."""
    if content == _TEXT:
        return packed_text(body)
    value = value_of(body, content)
    # Decoded JSON is very many objects, so it is encoded to bytes at once and not when the answer is written.
    return Raw(MSGPACK.encode(value)) if content == _JSON else value


def dead_letter(lineage: Lineage) -> DeadLetter | None:
    """What a dead letter keeps. None for a message that a replay sent again: it is new."""
    if lineage.moved == "replay":
        return None
    source = parse_queue_arn(lineage.source_arn or lineage.first_arn)
    return DeadLetter(
        queue=source.name if source is not None else "",
        message_id=lineage.first_id,
        reason=lineage.reason,
        error_class=lineage.error_class,
        first_failure_ms=lineage.first_failure_ms,
        last_failure_ms=lineage.last_failure_ms,
        attempts=lineage.attempts,
    )


def _last_failure(failure: Failure) -> LastFailure:
    return LastFailure(
        reason=failure.reason,
        error_class=failure.error_class,
        first_failure_ms=failure.first_ms,
        last_failure_ms=failure.last_ms,
    )

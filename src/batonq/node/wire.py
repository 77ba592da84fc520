"""A port's calls as MessagePack: what one node asks another about a shard, and what it is answered.

Arguments go as arrays, without the names of fields. An error goes by its code, alone or in the place of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from batonq.core.commands import Accepted, Arrival, Claim, Counters, Job, Nack, Send
from batonq.core.shard.once import Once
from batonq.core.spread import Hint
from batonq.errors import BY_CODE, BatonError, InvalidInput
from batonq.node.deliveries import Delivery
from batonq.node.examining import Sample
from batonq.node.peeking import Peeked
from batonq.node.ports import JobView
from batonq.node.relayed import RelayedAnswer, RelayedCall

CONTENT_TYPE = "application/msgpack"


class Problem(Struct):
    """An error. It is the only thing that goes as a map, so that it can stand where a result would."""

    code: str
    message: str


class Queue(NamedTuple):
    """A queue as the owner of its shard has to know it: see deliveries.QueueRef."""

    account: str
    number: int
    name: str


class Operation(NamedTuple):
    arguments: Any  # type of the array
    answer: Any


_send_values: Callable[[Send], tuple[Any, ...]] = attrgetter(*(field.name for field in fields(Send)))
_SendRow = tuple[
    bytes, bytes, bytes, str, str, str, bool, str, int, int | None, int | None, int, int, str, int
]  # Send's fields, in their order
_Run = tuple[list[bytes], str, int, str, int]  # ports.Bodies's fields, in their order
_Done = list[Problem | None]
_Sent = list[Accepted | Problem]

OPERATIONS: dict[str, Operation] = {
    "send": Operation(tuple[int, list[_SendRow], int], _Sent),
    "send_plain": Operation(tuple[int, _Run], int | _Sent),
    "send_once": Operation(tuple[int, list[_SendRow], Once], tuple[_Sent, bool]),
    "receive": Operation(tuple[Queue, int, int | None, int, str, str], list[Delivery]),
    "receive_matching": Operation(tuple[str, list[str], int, int | None, int, str], list[tuple[int, Delivery]]),
    "delete": Operation(tuple[int, list[Claim], bool], _Done),
    "change_visibility": Operation(tuple[int, list[tuple[Claim, int]], bool], list[int | Problem]),
    "nack": Operation(tuple[int, list[Nack]], _Done),
    "hint": Operation(tuple[int, int, int], Hint),
    "give_back": Operation(tuple[int, list[Claim]], None),
    "counters": Operation(tuple[int], Counters),
    "waiting": Operation(tuple[int], int),
    "relay": Operation(tuple[list[RelayedCall]], list[RelayedAnswer]),
    "peek": Operation(tuple[int, int, int], list[Peeked]),
    "reach": Operation(tuple[int, int], None),
    "purge_point": Operation(tuple[int], tuple[int, int]),
    "purge": Operation(tuple[int, int, int], None),
    "next_sequence": Operation(tuple[()], int),
    "start_job": Operation(tuple[Job], JobView),
    "dry_run": Operation(tuple[Job], tuple[JobView, list[Sample]]),
    "jobs": Operation(tuple[int], list[JobView]),
    "job": Operation(tuple[str], JobView | None),
    "cancel_job": Operation(tuple[str], JobView),
    "pause_job": Operation(tuple[str, str], JobView),
    "resume_job": Operation(tuple[str], JobView),
    "arrive": Operation(tuple[list[Arrival]], list[tuple[int, int]]),
}


def send_rows(sends: Iterable[Send]) -> list[tuple[Any, ...]]:
    return [_send_values(send) for send in sends]


def sends_of(rows: Iterable[tuple[Any, ...]]) -> list[Send]:
    return [Send(*row) for row in rows]


_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: _told(value))
_arguments = {name: msgspec.msgpack.Decoder(operation.arguments) for name, operation in OPERATIONS.items()}
_answers = {name: msgspec.msgpack.Decoder(operation.answer) for name, operation in OPERATIONS.items()}
_problem = msgspec.msgpack.Decoder(Problem)


def encode(value: Any) -> bytes:
    """Arguments or an answer; errors in it included."""
    return _encoder.encode(value)


def decode_arguments(operation: str, data: bytes) -> tuple[Any, ...]:
    """Raises InvalidInput."""
    decoder = _arguments.get(operation)
    if decoder is None:
        raise InvalidInput(f"Unknown shard operation {operation!r}: the calling node may run a newer release.")
    try:
        return tuple(decoder.decode(data))
    except msgspec.DecodeError as problem:
        raise InvalidInput(f"The arguments of {operation} cannot be read: {problem}") from None


def decode_answer(operation: str, data: bytes) -> Any:
    """Errors in the places of results are BatonErrors again."""
    answer = _answers[operation].decode(data)
    if operation == "send_once":
        return [*map(_heard, answer[0])], answer[1]
    return [*map(_heard, answer)] if isinstance(answer, list) else answer


def encode_problem(problem: BatonError) -> bytes:
    return _encoder.encode(problem)


def decode_problem(data: bytes) -> BatonError:
    """The error that a call as a whole ended with."""
    try:
        told = _problem.decode(data)
    except msgspec.DecodeError:
        return BatonError(f"The other node returned an unknown error: {data[:200]!r}")
    return _error(told)


def _told(value: Any) -> Problem:
    if isinstance(value, BatonError):
        return Problem(value.code, value.message)
    raise NotImplementedError(f"{type(value).__name__} cannot go over the wire")


def _heard(value: Any) -> Any:
    return _error(value) if isinstance(value, Problem) else value


def _error(told: Problem) -> BatonError:
    return BY_CODE.get(told.code, BatonError)(told.message)

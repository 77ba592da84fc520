"""Calls between nodes about a shard, and their answers, as MessagePack.

Arguments are arrays, without field names. An error is sent by its code, alone or in the place of a result. The forms
are derived from declarations elsewhere: operations from ports.ShardOperations, commands and outcomes from
core/commands.py.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct, defstruct

from batonq.core.commands import (
    Accepted,
    ChangeVisibility,
    Command,
    Delete,
    Failing,
    Failure,
    Leases,
    Nack,
    Once,
    Receive,
    Send,
    Sent,
)
from batonq.errors import BY_CODE, BatonError, InvalidInput
from batonq.node.messages.received import ANSWER_BYTES_MAX, Received
from batonq.node.routing.ports import ShardOperations, ShardPort
from batonq.node.routing.submission import Waiting, awaited, client_error

CONTENT_TYPE = "application/msgpack"
SUBMIT = "submit"  # the operation that executes commands
POLL = "poll"  # executes one receive that may wait; a caller that stops waiting wants no messages


class Problem(Struct):
    """An error. It is the only value sent as a map, so that it can stand in the place of a result."""

    code: str
    message: str


# --- commands and outcomes ----------------------------------------------------------------------


class _Form(NamedTuple):
    """A class of the core on the wire: an array of its fields, behind a number that identifies the class."""

    struct: type[Struct]
    values: Callable[[Any], tuple[Any, ...]]  # of an object, in the order of the array
    plain: type
    in_order: Callable[[Any], tuple[Any, ...]]  # of an array, in the order of the class's own arguments

    def make(self, struct: Struct) -> Any:
        return self.plain(*self.in_order(struct))


def _form(plain: type, tag: int, left_out: Sequence[str] = (), **types: Any) -> _Form:
    hints = get_type_hints(plain) | types
    names = [each for each in fields(plain) if each.name not in left_out]
    columns = [
        (each.name, hints[each.name]) if each.default is MISSING else (each.name, hints[each.name], each.default)
        for each in names
        if each.default_factory is MISSING
    ]
    columns += [
        (each.name, hints[each.name], msgspec.field(default_factory=each.default_factory))
        for each in names
        if each.default_factory is not MISSING
    ]
    struct = defstruct(plain.__name__, columns, array_like=True, tag=tag, gc=False)
    arguments = [each.name for each in names]
    assert arguments == [each.name for each in fields(plain)][: len(arguments)], "what is left out stands at the end"
    return _Form(struct, attrgetter(*(name for name, *_ in columns)), plain, attrgetter(*arguments))


_leases = _form(Leases, 0, ("whole", "start", "kept"))
_COMMANDS = {
    form.plain: form
    for form in (
        _form(Send, 0, once=Once | None),
        _form(Receive, 1),
        _form(Delete, 2),
        _form(ChangeVisibility, 3),
        _form(Nack, 4, failings=Sequence[Failing]),
    )
}
_RECEIVED_OWN = ("receipts", "rows", "give_back")  # set by the asking node
_sent = _form(Sent, 0, each=Sequence[Accepted | Problem])
_received = _form(Received, 1, _RECEIVED_OWN, leases=_leases.struct, failures=dict[int, Failure])


class _Results(Struct, array_like=True, tag=2, gc=False):
    """A result per claim of a command."""

    each: list[int | Problem | None]


class _Failed(Struct, array_like=True, tag=3, gc=False):
    """The command ended with an error."""

    problem: Problem


class _Alone(Struct, array_like=True, tag=4, gc=False):
    """See ALONE."""


# The outcome of a receive for which the answer had no space: the receive is repeated in a call of its own.
ALONE = _Alone()
_OUTCOMES = {form.plain: form for form in (_sent, _received)}
_PLAIN = {form.struct: form for form in (*_COMMANDS.values(), *_OUTCOMES.values(), _leases)}


def _written(value: Any) -> Any:
    """Convert a command or an outcome to its wire form."""
    form = _COMMANDS.get(type(value)) or _OUTCOMES.get(type(value))
    if form is not None:
        written: Any = form.struct(*form.values(value))
        if form is _received:
            written.leases = _leases.struct(*_leases.values(value.leases))
        return written
    if value is ALONE:
        return value
    return _Results(value) if isinstance(value, list) else _Failed(Problem(value.code, value.message))


def _read(value: Any) -> Any:
    """Convert a wire form back to the command or outcome."""
    form = _PLAIN.get(type(value))
    if form is None:
        if isinstance(value, _Results):
            return value.each if value.each.count(None) == len(value.each) else [*map(_heard, value.each)]
        return ALONE if isinstance(value, _Alone) else _error(value.problem)
    plain = form.make(value)
    if form is _sent:
        plain.each = [*map(_heard, plain.each)]
    elif form is _received:
        plain.leases = _leases.make(plain.leases)
    return plain


_command_types: Any = None
for _each in _COMMANDS.values():
    _command_types = _each.struct if _command_types is None else _command_types | _each.struct


# --- operations ---------------------------------------------------------------------------------


class Operation(NamedTuple):
    arguments: Any  # type of the array
    answer: Any


def _operations() -> dict[str, Operation]:
    found: dict[str, Operation] = {}
    for name, function in vars(ShardOperations).items():
        if asyncio.iscoroutinefunction(function):
            hints = get_type_hints(function)
            answer = hints.pop("return")
            found[name] = Operation(tuple[tuple(hints.values())], answer)  # type: ignore[misc]
    found[SUBMIT] = found[POLL] = Operation(
        tuple[list[_command_types]],
        list[_sent.struct | _received.struct | _Results | _Failed | _Alone],  # type: ignore[name-defined]
    )
    return found


OPERATIONS = _operations()


def _hook(value: Any) -> Any:
    if isinstance(value, (array, range)):
        return list(value)
    if isinstance(value, BatonError):
        return Problem(value.code, value.message)
    raise NotImplementedError(f"{type(value).__name__} cannot go over the wire")


_encoder = msgspec.msgpack.Encoder(enc_hook=_hook)
_arguments = {name: msgspec.msgpack.Decoder(operation.arguments) for name, operation in OPERATIONS.items()}
_answers = {name: msgspec.msgpack.Decoder(operation.answer) for name, operation in OPERATIONS.items()}
_problem = msgspec.msgpack.Decoder(Problem)


def encode(value: Any) -> bytes:
    """Encode arguments or an answer, including the errors in it."""
    return _encoder.encode(value)


def encode_commands(commands: Sequence[Command]) -> bytes:
    return _encoder.encode((([*map(_written, commands)]),))


def encode_outcomes(outcomes: Sequence[Any]) -> bytes:
    return _encoder.encode([*map(_written, outcomes)])


def decode_commands(data: bytes) -> list[Command]:
    """Raises InvalidInput."""
    return [*map(_read, decode_arguments(SUBMIT, data)[0])]


def decode_outcomes(data: bytes) -> list[Any]:
    """Decode outcomes. Errors become BatonErrors again."""
    return [*map(_read, _answers[SUBMIT].decode(data))]


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
    return _answers[operation].decode(data)


def encode_problem(problem: BatonError) -> bytes:
    return _encoder.encode(problem)


def decode_problem(data: bytes) -> BatonError:
    """The error that a whole call ended with."""
    try:
        problem = _problem.decode(data)
    except msgspec.DecodeError:
        return BatonError(f"The other node returned an unknown error: {data[:200]!r}")
    return _error(problem)


def _heard(value: Any) -> Any:
    return _error(value) if isinstance(value, Problem) else value


def _error(told: Problem) -> BatonError:
    return BY_CODE.get(told.code, BatonError)(told.message)


# --- the called side ----------------------------------------------------------------------------


async def answer(port: ShardPort, operation: str, data: bytes) -> bytes:
    """Run a call of another node at the shard's own port. Raises BatonError."""
    if operation in (SUBMIT, POLL):
        commands = decode_commands(data)

        def begin(done: Callable[[list[Any]], None]) -> Execution:
            return Execution(port, commands, done)

        return encode_outcomes(await awaited(begin, give_back_all))
    arguments = decode_arguments(operation, data)
    return encode(await getattr(port, operation)(*arguments))


class Execution:
    """Commands of one call in progress. Calls `done` once, with an outcome per command. A command that failed has its
    error in its place.
    """

    __slots__ = ("_done", "_missing", "_outcomes", "_polls")

    def __init__(self, port: ShardPort, commands: Sequence[Command], done: Callable[[list[Any]], None]) -> None:
        self._done: Callable[[list[Any]], None] | None = done
        self._outcomes: list[Any] = [None] * len(commands)
        self._missing = len(commands)
        self._polls: list[Waiting] = []
        if not commands:
            done([])
        for at, command in enumerate(commands):
            ended = partial(self._ended, at)
            try:
                poll = port.submit(command, ended)
            except Exception as problem:
                ended(client_error(problem))
            else:
                if poll is not None:
                    self._polls.append(poll)

    def _ended(self, at: int, outcome: Any) -> None:
        if self._done is None:
            give_back_all((outcome,))
            return
        self._outcomes[at] = outcome
        self._missing -= 1
        if not self._missing:
            done, self._done = self._done, None
            done(_fitting(self._outcomes) if len(self._outcomes) > 1 else self._outcomes)

    def abandon(self) -> None:
        """The caller no longer wants the outcomes: messages that were received, or are received from now on, are given
        back.
        """
        if self._done is not None:
            self._done = None
            for poll in self._polls:
                poll.abandon()
            give_back_all(self._outcomes)


def give_back_all(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Received):
            outcome.give_back()


def _fitting(outcomes: list[Any]) -> list[Any]:
    """As many messages as fit into one answer: those of other receives are given back."""
    size = 0
    for at, outcome in enumerate(outcomes):
        if isinstance(outcome, Received) and outcome:
            before, size = size, size + sum([extent >> 32 for extent in outcome.leases.extents])
            if before and size > ANSWER_BYTES_MAX:
                outcome.give_back()
                outcomes[at], size = ALONE, before
    return outcomes

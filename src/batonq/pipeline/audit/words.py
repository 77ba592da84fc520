"""SQL fragments that the rules share: events and states as numbers, a message as one number, events as text.

Before a shuffle everything is a number: rows are short, and one number per message sorts by its first eight bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from batonq.core.records import Reason, State, Type
from batonq.pipeline.events.schema import EVENTS, REASONS, STATES
from batonq.pipeline.spark import local

SEQUENCES = 1 << 48  # a sequence has 48 bits
REFUSED = 7  # delayed until it is owed again: its destination refused it, and it never becomes visible
MESSAGE = f"(CAST(shard AS BIGINT) * {SEQUENCES} + sequence)"


def case(column: str, values: Mapping[str, int]) -> str:
    """A text as its number; null for an unknown text."""
    return f"CASE {column} " + " ".join(f"WHEN '{text}' THEN {number}" for text, number in values.items()) + " END"


def named(column: str, names: Mapping[int, str]) -> str:
    """A number as its text."""
    return f"CASE {column} " + " ".join(f"WHEN {number} THEN '{text}'" for number, text in names.items()) + " END"


def text(value: str) -> str:
    """A text as an SQL literal."""
    return "'" + value.replace("'", "\\'") + "'"


def _numbers(names: Mapping[int, str]) -> dict[str, int]:
    return {text: number for number, text in names.items()}


# Events of one message.
OF_MESSAGES = {
    int(number): EVENTS[number]
    for number in (
        Type.SENT,
        Type.LEASED,
        Type.DELETED,
        Type.RETURNED,
        Type.EXTENDED,
        Type.OWED,
        Type.SETTLED,
        Type.ARRIVED,
        Type.CARRIED,
        Type.EDITED,
    )
}
_CODE = case("event", _numbers(OF_MESSAGES))
_WHY = case("reason", _numbers(REASONS))
# Events of messages, with event and reason as numbers, `code` and `why`, so that texts are compared only once.
CODED = f"(SELECT *, {_CODE} AS code, {_WHY} AS why FROM {{events}} WHERE sequence IS NOT NULL)"
# The message's state after an event; it follows from the event alone.
_RETURNED = f"CASE WHEN visible_at IS NULL THEN {State.DEAD:d} WHEN visible_at <= time THEN {State.VISIBLE:d} ELSE "
STATE = (
    f"CASE code WHEN {Type.SENT:d} THEN CASE WHEN visible_at > time THEN {State.DELAYED:d} ELSE {State.VISIBLE:d} END "
    f"WHEN {Type.LEASED:d} THEN {State.IN_FLIGHT:d} WHEN {Type.DELETED:d} THEN {State.DELETED:d} "
    f"WHEN {Type.RETURNED:d} THEN {_RETURNED} {State.DELAYED:d} END WHEN {Type.EXTENDED:d} THEN {State.IN_FLIGHT:d} "
    f"WHEN {Type.ARRIVED:d} THEN CASE WHEN visible_at > time THEN {State.DELAYED:d} ELSE {State.VISIBLE:d} END "
    f"WHEN {Type.OWED:d} THEN {State.OWED:d} "
    f"WHEN {Type.SETTLED:d} THEN CASE WHEN why = {Reason.ACCEPTED:d} THEN {State.DELETED:d} "
    f"ELSE {_RETURNED} {REFUSED} END END ELSE {case('state', _numbers(STATES))} END"
)
# The result of a family of rules.
_FOUND = (
    "kind string, shard int, queue bigint, sequence bigint, logical_times array<bigint>, events array<string>, "
    "detail string"
)
_STATE_NAMES = {**STATES, REFUSED: "delayed"}


def state_name(column: str) -> str:
    return named(column, _STATE_NAMES)


def reason_name(column: str) -> str:
    return named(column, REASONS)


def event_name(column: str) -> str:
    return named(column, OF_MESSAGES)


def state_number(name: str) -> int:
    """The number of a state, by its name in the lifecycle."""
    return REFUSED if name == "refused" else _numbers(STATES)[name]


def event_number(name: str) -> int:
    return _numbers(OF_MESSAGES)[name]


def reason_number(name: str | None) -> int:
    return _numbers(REASONS)[name] if name else 0


def place(logical_time: str) -> str:
    """A logical time as text: frame:row."""
    return f"concat(shiftright({logical_time}, 16), ':', {logical_time} & 65535)"


def told(event: str, logical_time: str, time: str, *more: tuple[str, str]) -> str:
    """One event as text. `more`: pairs of a word and a column, omitted if the column is null."""
    rest = "".join(f", coalesce(concat(', {word} ', {column}), '')" for word, column in more)
    return f"concat({event}, ' at ', {place(logical_time)}, ', ', {time}{rest})"


def query(text: str, **frames: DataFrame) -> DataFrame:
    """The data frame of an SQL query over other data frames, which it names in braces."""
    session = next(iter(frames.values())).sparkSession
    return session.sql(text, None, **frames)


def nothing(like: DataFrame) -> DataFrame:
    """An empty frame of violations."""
    return local.nothing(like.sparkSession, cast(StructType, StructType.fromDDL(_FOUND)))

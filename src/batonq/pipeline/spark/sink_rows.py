"""Rows to messages: the columns that the sink accepts, their types, and the conversion of rows."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from batonq.client import codec
from batonq.client.models import Outgoing
from batonq.errors import BatonError, InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ROWS_AT_ONCE = 10_000  # rows of an Arrow batch that are converted together
BYTES_AT_ONCE = 32 << 20


class SinkColumn(NamedTuple):
    """`types`: Spark's type names; empty: any."""

    name: str
    types: tuple[str, ...]
    doc: str


_TEXT = ("string", "varchar", "char")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBER = (*_WHOLE, "float", "double", "decimal")

COLUMNS = (
    SinkColumn(
        "body", (), "The body: string, bytes, or any other value, which is converted to JSON. `value` is the same."
    ),
    SinkColumn(
        "content", _TEXT, "Content of a string or binary body: `text`, `json` or `bytes`. Default: by its type."
    ),
    SinkColumn("queue", _TEXT, "The queue of this row; null: the option's queue."),
    SinkColumn("group", _TEXT, "Message group; required for a FIFO queue."),
    SinkColumn("dedup_key", _TEXT, "Deduplication key."),
    SinkColumn("priority", (*_WHOLE, *_TEXT), "0 to 255, or `lowest`, `low`, `normal`, `high`, `highest`."),
    SinkColumn("delay_seconds", _NUMBER, "Delay before the message becomes visible."),
    SinkColumn("ttl_seconds", _NUMBER, "How long the message is kept."),
    SinkColumn("max_receives", _WHOLE, "The message's own maximum number of receives."),
    SinkColumn("attributes", ("map",), "Message attributes: strings, numbers or bytes by name."),
    SinkColumn("trace", _TEXT, "W3C trace context: traceparent, and tracestate after a space."),
    SinkColumn("producer", _TEXT, "Producer of this row, instead of the option's producer and the partition."),
)
_BY_NAME = {column.name: column for column in COLUMNS}
_OTHER_NAMES = {"value": "body"}


def check_columns(schema: StructType, *, queue: str) -> None:
    """Raises InvalidInput for a table that cannot be converted to messages."""
    names = [_OTHER_NAMES.get(field.name, field.name) for field in schema.fields]
    if names.count("body") != 1:
        raise InvalidInput(
            f"A table of messages needs exactly one column body (or value); this one has {', '.join(names)}."
        )
    if not queue and "queue" not in names:
        raise InvalidInput("The queue is missing. Set the option queue, or add a column queue.")
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise InvalidInput(
            f"The column {unknown[0]} is not a field of a message; the fields are {', '.join(_BY_NAME)}. Drop "
            "it, or put it into the body or the attributes."
        )
    for field, name in zip(schema.fields, names, strict=True):
        kind = field.dataType.simpleString()
        types = _BY_NAME[name].types
        if types and kind.partition("(")[0].partition("<")[0] not in types:
            raise InvalidInput(f"The column {field.name} is {kind}; it must be one of {', '.join(types)}.")


class Row(NamedTuple):
    """The result of a row: a message for a queue (empty: the option's), or the reason why it is not valid."""

    queue: str
    producer: str
    message: Outgoing | BatonError


def rows(batch: pa.RecordBatch) -> Iterator[list[Row]]:
    """The rows of an Arrow batch, a bounded number at a time."""
    if not batch.num_rows:
        return
    step = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * batch.num_rows // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, step):
        yield _some(batch.slice(start, step))


def _some(batch: pa.RecordBatch) -> list[Row]:
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        known = _OTHER_NAMES.get(name, name)
        convert = {"body": converter, "attributes": _attributes}.get(known, _as_it_is)(column.type)
        values = column.to_pylist()
        columns[known] = values if convert is None else [None if one is None else convert(one) for one in values]
    bodies = columns.pop("body")
    if not columns:
        return [Row("", "", Outgoing(body) if body is not None else _NO_BODY) for body in bodies]
    names = list(columns)
    return [
        _row(body, dict(zip(names, values, strict=True)))
        for body, *values in zip(bodies, *columns.values(), strict=True)
    ]


_NO_BODY = InvalidInput("The row has no body: it is null.")


def _row(body: Any, given: dict[str, Any]) -> Row:
    message: Outgoing | BatonError
    try:
        message = _message(body, given)
    except BatonError as problem:
        message = problem
    return Row(given.get("queue") or "", given.get("producer") or "", message)


def _message(body: Any, given: dict[str, Any]) -> Outgoing:
    if body is None:
        raise _NO_BODY
    content = given.get("content")
    if content is not None:
        body = as_content(body, content)
    parent, _, state = (given.get("trace") or "").partition(" ")
    return Outgoing(
        body,
        given.get("dedup_key"),
        given.get("group"),
        _seconds(given.get("delay_seconds")),
        _seconds(given.get("ttl_seconds")),
        given.get("priority"),
        given.get("attributes") or None,
        given.get("max_receives"),
        parent or None,
        state or None,
    )


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)


def as_content(body: Any, content: str) -> Any:
    """A string or bytes as the given `content`."""
    if not isinstance(body, str | bytes):
        raise InvalidInput("The column content can be used only with string or binary bodies.")
    try:
        if content == "text":
            return body if isinstance(body, str) else body.decode()
        if content == "bytes":
            return body if isinstance(body, bytes) else body.encode()
        if content == "json":
            value = msgspec.json.decode(body)
            codec.encode(value)
            return value
    except (ValueError, msgspec.MsgspecError) as problem:
        raise InvalidInput(f"The body is not valid {content}: {problem}") from None
    raise InvalidInput(f"content must be text, json or bytes, not {content!r}.")


# --- values as JSON has them ----------------------------------------------------------------------


def converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """A function that converts a Python value of this Arrow type to a JSON value; None: not needed."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return _struct([(kind.field(at).name, converter(kind.field(at).type)) for at in range(kind.num_fields)])
    if types.is_map(kind):
        return _map(_inner_bytes(converter(kind.item_type)))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list(converter(kind.value_type))
    if types.is_timestamp(kind):
        return _time
    if types.is_date(kind):
        return date.isoformat
    if types.is_decimal(kind):
        return _decimal
    if types.is_floating(kind):
        return _finite
    if types.is_duration(kind):
        return timedelta.total_seconds
    return None


def _attributes(kind: pa.DataType) -> Callable[[Any], Any]:
    """Attribute values may be bytes, which stay bytes; null values are omitted."""
    one = converter(kind.item_type)

    def convert(value: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: member if one is None else one(member) for name, member in value if member is not None}

    return convert


def _as_it_is(kind: pa.DataType) -> None:
    return None


def _struct(members: Sequence[tuple[str, Callable[[Any], Any] | None]]) -> Callable[[Any], Any]:
    inner = [(name, _inner_bytes(convert)) for name, convert in members]

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {name: None if value[name] is None else one(value[name]) for name, one in inner}

    return convert


def _map(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: list[tuple[Any, Any]]) -> dict[str, Any]:
        return {str(key): None if member is None else of(member) for key, member in value}

    return convert


def _list(of: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    one = _inner_bytes(of)

    def convert(value: list[Any]) -> list[Any]:
        return [None if member is None else one(member) for member in value]

    return convert


def _inner_bytes(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """JSON has no bytes: inside another value they are base64."""
    return convert or _bytes_as_text


def _bytes_as_text(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _time(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _decimal(value: Decimal) -> int | float | str:
    """A number if a double can represent all its digits, otherwise a string, so that amounts are not rounded."""
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)

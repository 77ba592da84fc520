"""AWS JSON 1.0: bodies to inputs, outputs and errors to bodies.

msgspec decodes and checks types in one pass, but takes the last of two equal keys without a word. So what was decoded
is compared with the text, which has exactly two quotes for each key and each string. Only when the numbers differ (two
equal keys, an unknown one, or a null), or cannot be told because of escaped backslashes, a strict and slow parser has
the last word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from batonq.api.document_weight import WeightLimit
from batonq.api.sqs.errors import SERIALIZATION, SqsError
from batonq.api.sqs.shapes import SendMessageBatchInput, SendMessageInput

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = b"AmazonSQS."
EMPTY = b"{}"
WEIGHT = WeightLimit(brackets_max=20_000, separators_max=40_000)

Input = TypeVar("Input", bound=Struct)

encode = msgspec.json.Encoder().encode


def error_body(type_name: str, message: str) -> bytes:
    return encode({"__type": type_name, "message": message})


# --- decoding ---------------------------------------------------------------------------------


def decoder(shape: type[Input]) -> Callable[[bytes], Input]:
    """A function from a request's body to an input; it raises SqsError for anything that is not one."""
    typed = msgspec.json.Decoder(shape)
    # What is sent most is counted by functions of its own, which take a third of the time.
    quotes = {SendMessageInput: _message_quotes, SendMessageBatchInput: _batch_quotes}.get(shape, _quotes)
    sends = shape in (SendMessageInput, SendMessageBatchInput)

    def decode(body: bytes) -> Input:
        if not WEIGHT.allows(body):
            raise SqsError(SERIALIZATION, "The request has more members than any valid request has.")
        value: Any = _decode(typed, body)
        escapes = b"\\" in body
        if sends:
            # Control characters need an escape in JSON, and the others that no message may have are not ASCII.
            value.clean = not escapes and body.isascii()
        found = _unescaped_quotes(body) if escapes else body.count(b'"')
        if found != quotes(value):
            _check_strictly(body)
        return cast(Input, value)

    return decode


def _decode(typed: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return typed.decode(body or EMPTY)
    except msgspec.ValidationError as error:
        raise SqsError(SERIALIZATION, _type_error(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SqsError(SERIALIZATION, "The request is not valid JSON.") from None


def _quotes(value: Any) -> int:
    """How many quotes a text has, but for escaped ones, when it says just this."""
    if isinstance(value, Struct):
        members = [member for member in astuple(value) if member is not None]
        count = 2 * len(members)
    elif isinstance(value, dict):
        members = list(value.values())
        count = 2 * len(members)
    elif isinstance(value, list):
        members = value
        count = 0
    else:
        return 0
    for member in members:
        count += 2 if isinstance(member, (str, bytes)) else _quotes(member)
    return count


def _batch_quotes(value: SendMessageBatchInput) -> int:
    count = 0 if value.QueueUrl is None else 4
    if value.Entries is None:
        return count
    count += 2
    for entry in value.Entries:
        count += _message_quotes(entry) if entry.Id is None else 4 + _message_quotes(entry)
    return count


def _message_quotes(value: Any) -> int:
    count = 0 if value.MessageBody is None else 4
    if value.DelaySeconds is not None:
        count += 2
    if value.MessageGroupId is not None:
        count += 4
    if value.MessageDeduplicationId is not None:
        count += 4
    if value.MessageAttributes is not None:
        count += 2 + _quotes(value.MessageAttributes)
    if value.MessageSystemAttributes is not None:
        count += 2 + _quotes(value.MessageSystemAttributes)
    return count if not isinstance(value, SendMessageInput) or value.QueueUrl is None else count + 4


def _unescaped_quotes(text: bytes) -> int:
    """-1 when it cannot be told at a glance: a quote behind two backslashes is not an escaped one."""
    return -1 if b"\\\\" in text else text.count(b'"') - text.count(b'\\"')


# --- the slow and strict ways -----------------------------------------------------------------


def _check_strictly(body: bytes) -> None:
    """Raise SqsError unless the text is JSON in UTF-8 without two equal keys in one object."""
    try:
        json.loads((body or EMPTY).decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except RecursionError:
        raise SqsError(SERIALIZATION, "The request is nested too deeply.") from None
    except ValueError as error:
        message = str(error) if isinstance(error, _DuplicateKey) else "The request is not valid JSON."
        raise SqsError(SERIALIZATION, message) from None


class _DuplicateKey(ValueError):
    pass


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise _DuplicateKey(f"The key {key[:100]} is given twice.")
        seen.add(key)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_TYPES = re.compile(r"Expected `([a-z]+)[^`]*`, got `([a-z]+)`")
_FOUND = {"int": "NUMBER_VALUE", "float": "DECIMAL_VALUE", "str": "STRING_VALUE", "bool": "TRUE_VALUE"}
_WANTED = {"str": "a String", "int": "an Integer", "bytes": "a Blob"}


def _type_error(message: str) -> str:
    """What SQS says of a value of the wrong type, made of what msgspec says."""
    match = _TYPES.match(message)
    if match is None:
        return "A value of the request cannot be read."
    wanted, found = match.groups()
    if found == "object":
        return "Start of structure or map found where not expected."
    if found == "array":
        return "Start of list found where not expected"
    if wanted in ("object", "array"):
        return "Unexpected field type"
    return f"{_FOUND.get(found, 'NULL_VALUE')} can not be converted to {_WANTED.get(wanted, 'a String')}"

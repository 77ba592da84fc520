"""AWS JSON 1.0: bodies to inputs, outputs and errors to bodies.

msgspec decodes and checks types in one pass, but takes the last of two equal keys without a word. The number of keys
that were decoded is therefore compared with the number of keys in the text; only when they differ (two equal keys, an
unknown one, a null, or a space before a colon) a strict and slow parser has the last word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from batonq.api.sqs.errors import SERIALIZATION, SqsError
from batonq.api.sqs.shapes import AttributeValue, SendMessageBatchInput, SendMessageInput

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = b"AmazonSQS."
EMPTY = b"{}"
ENTRIES_WALKED_MAX = 16

Input = TypeVar("Input", bound=Struct)

encode = msgspec.json.Encoder().encode


def error_body(type_name: str, message: str) -> bytes:
    return encode({"__type": type_name, "message": message})


# --- decoding ---------------------------------------------------------------------------------


def decoder(shape: type[Input]) -> Callable[[bytes], Input]:
    """A function from a request's body to an input; it raises SqsError for anything that is not one."""
    typed = msgspec.json.Decoder(shape)
    if shape is SendMessageBatchInput:
        return _send_batch_decoder(typed)
    if shape is SendMessageInput:
        return _send_decoder(typed)

    def decode(body: bytes) -> Input:
        value: Input = _decode(typed, body)
        if _keys_in_text(body) != _keys(value):
            _check_strictly(body)
        return value

    return decode


def _send_decoder(typed: msgspec.json.Decoder[Any]) -> Callable[[bytes], Any]:
    def decode(body: bytes) -> SendMessageInput:
        value: SendMessageInput = _decode(typed, body)
        clean = value.clean = b"\\" not in body and body.isascii()
        keys = _message_keys(value) + (value.QueueUrl is not None)
        if _keys_in_text(_without_bodies(body, [value]) if clean else body) != keys:
            _check_strictly(body)
        return value

    return decode


def _send_batch_decoder(typed: msgspec.json.Decoder[Any]) -> Callable[[bytes], Any]:
    def decode(body: bytes) -> SendMessageBatchInput:
        value: SendMessageBatchInput = _decode(typed, body)
        clean = value.clean = b"\\" not in body and body.isascii()
        entries = value.Entries
        if entries is None or len(entries) > ENTRIES_WALKED_MAX:
            _check_strictly(body)
            return value
        keys = 1 if value.QueueUrl is None else 2
        for entry in entries:
            keys += _message_keys(entry) + (entry.Id is not None)
        if _keys_in_text(_without_bodies(body, entries) if clean else body) != keys:
            _check_strictly(body)
        return value

    return decode


def _decode(typed: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return typed.decode(body or EMPTY)
    except msgspec.ValidationError as error:
        raise SqsError(SERIALIZATION, _type_error(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SqsError(SERIALIZATION, "The request is not valid JSON.") from None


def _without_bodies(body: bytes, entries: list[Any]) -> bytes:
    """The text without the message bodies: what is left is short, and is where the keys are.

    Only for a text without escapes, in which a body stands as it is. A body that is not found where it should be ends
    the search, and the keys that are left over then show that something is wrong.
    """
    parts = []
    at = 0
    for entry in entries:
        text = entry.MessageBody
        if not text:
            continue
        key = body.find(b'"MessageBody"', at)
        start = body.find(b'"', key + 13) + 1
        raw = text.encode()
        if key < 0 or not body.startswith(raw, start):
            return body
        parts.append(body[at:start])
        at = start + len(raw)
    parts.append(body[at:])
    return b"".join(parts)


def _keys_in_text(text: bytes) -> int:
    """How many keys a JSON text has: a quote and a colon that are not inside a string. -1 when that is not sure."""
    if b" :" in text or b"\n:" in text or b"\t:" in text or b"\r:" in text:
        return -1
    escaped = text.count(b'\\":') if b"\\" in text else 0
    return text.count(b'":') - escaped


def _message_keys(message: Any) -> int:
    keys: int = (
        (message.MessageBody is not None)
        + (message.DelaySeconds is not None)
        + (message.MessageDeduplicationId is not None)
        + (message.MessageGroupId is not None)
    )
    if message.MessageAttributes is not None:
        keys += 1 + _attribute_keys(message.MessageAttributes)
    if message.MessageSystemAttributes is not None:
        keys += 1 + _attribute_keys(message.MessageSystemAttributes)
    return keys


def _attribute_keys(attributes: dict[str, AttributeValue]) -> int:
    keys = len(attributes)
    for value in attributes.values():
        keys += (
            (value.DataType is not None)
            + (value.StringValue is not None)
            + (value.BinaryValue is not None)
            + (value.StringListValues is not None)
            + (value.BinaryListValues is not None)
        )
    return keys


def _keys(value: Any) -> int:
    if isinstance(value, Struct):
        members = [getattr(value, name) for name in value.__struct_fields__]
        return sum(1 + _keys(member) for member in members if member is not None)
    if isinstance(value, dict):
        return sum(1 + _keys(member) for member in value.values())
    if isinstance(value, list):
        return sum(_keys(member) for member in value)
    return 0


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

"""AWS JSON 1.0: bodies to inputs, outputs and errors to bodies. Of two equal keys the last one counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from batonq.api.document_weight import WeightLimit
from batonq.api.sqs.errors import SERIALIZATION, SqsError
from batonq.api.sqs.shapes import SendMessageBatchEntry, SendMessageBatchInput, SendMessageInput
from batonq.api.sqs.validate import NOT_CHARACTERS

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = b"AmazonSQS."
EMPTY = b"{}"
WEIGHT = WeightLimit(brackets_max=20_000, separators_max=40_000)

Input = TypeVar("Input", bound=Struct)

encode = msgspec.json.Encoder().encode


def error_body(type_name: str, message: str) -> bytes:
    return encode({"__type": type_name, "message": message})


# --- decoding ---------------------------------------------------------------------------------


class _SendMessage(SendMessageInput):
    MessageBody: Raw = Raw()


class _Entry(SendMessageBatchEntry):
    MessageBody: Raw = Raw()


class _SendMessageBatch(SendMessageBatchInput):
    Entries: list[_Entry] | None = None  # type: ignore[assignment]


_SENDS: dict[type[Struct], type[Struct]] = {SendMessageInput: _SendMessage, SendMessageBatchInput: _SendMessageBatch}


def decoder(shape: type[Input]) -> Callable[[bytes], Input]:
    """A function from a request's body to an input; it raises SqsError for anything that is not one."""
    typed = msgspec.json.Decoder(_SENDS.get(shape, shape))
    sends = shape in _SENDS

    def decode(body: bytes) -> Input:
        if not WEIGHT.allows(body):
            raise SqsError(SERIALIZATION, "The request has more members than any valid request has.")
        ascii_only = body.isascii()
        try:
            if not ascii_only:
                body.decode()  # what is not an input's is not looked into below, and neither are messages' bodies
            value: Any = typed.decode(body or EMPTY)
            if sends:
                _read_bodies(value)
        except msgspec.ValidationError as error:
            raise SqsError(SERIALIZATION, _type_error(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SqsError(SERIALIZATION, "The request is not valid JSON.") from None
        if sends:
            value.as_is = b"\\" not in body
            if not ascii_only:
                value.clean = value.as_is and not any(character in body for character in NOT_CHARACTERS)
            else:
                value.clean = value.as_is or _FORBIDDEN.search(body) is None
        return cast(Input, value)

    return decode


def _read_bodies(value: Any) -> None:
    """Put the JSON texts of messages' bodies, as bytes, where the bodies are. Raises ValidationError."""
    entries: Any = value.Entries or () if isinstance(value, SendMessageBatchInput) else (value,)
    for entry in entries:
        text = bytes(entry.MessageBody)
        if text[:1] == b'"':
            entry.MessageBody = text
        else:
            entry.MessageBody = None
            if text and text != b"null":
                text_of(text)


text_of: Callable[[bytes], str] = msgspec.json.Decoder(str).decode

# Control characters need one of these escapes in JSON, and the other characters that no message may have are not ASCII.
_FORBIDDEN = re.compile(rb"\\[ubf]")
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

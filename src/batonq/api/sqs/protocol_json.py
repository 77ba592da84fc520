"""The AWS JSON 1.0 protocol: decodes inputs, encodes outputs and errors. The last of duplicate keys wins."""

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


# The body of a message is decoded when it is known whether its JSON text can be taken as it is.
class _SendMessage(SendMessageInput):
    MessageBody: Raw = Raw()


class _Entry(SendMessageBatchEntry):
    MessageBody: Raw = Raw()


class _SendMessageBatch(SendMessageBatchInput):
    Entries: list[_Entry] | None = None  # type: ignore[assignment]


_SENDS: dict[type[Struct], type[Struct]] = {SendMessageInput: _SendMessage, SendMessageBatchInput: _SendMessageBatch}


def decoder(shape: type[Input]) -> Callable[[bytes], Input]:
    """Returns a function that decodes a request's body into an input and raises SqsError for an invalid body."""
    typed = msgspec.json.Decoder(_SENDS.get(shape, shape))
    sends = shape in _SENDS

    def decode(body: bytes) -> Input:
        if not WEIGHT.allows(body):
            raise SqsError(SERIALIZATION, "The request has more members than any valid request has.")
        ascii_only = body.isascii()
        try:
            if not ascii_only:
                body.decode()  # checks UTF-8 here, since unknown fields and message bodies are not decoded below
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
    """Replace each message body by its JSON text, as bytes. Raises ValidationError."""
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

# In JSON, a control character can only be written with one of these escapes. The other characters that no message may
# have are not ASCII.
_FORBIDDEN = re.compile(rb"\\[ubf]")
_TYPES = re.compile(r"Expected `([a-z]+)[^`]*`, got `([a-z]+)`")
_FOUND = {"int": "NUMBER_VALUE", "float": "DECIMAL_VALUE", "str": "STRING_VALUE", "bool": "TRUE_VALUE"}
_WANTED = {"str": "a String", "int": "an Integer", "bytes": "a Blob"}


def _type_error(message: str) -> str:
    """The SQS message for a value of the wrong type, derived from msgspec's message."""
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

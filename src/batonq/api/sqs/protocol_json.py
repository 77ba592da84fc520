"""AWS JSON 1.0: bodies to inputs, outputs and errors to bodies. Of two equal keys the last one counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

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
    sends = shape in (SendMessageInput, SendMessageBatchInput)

    def decode(body: bytes) -> Input:
        if not WEIGHT.allows(body):
            raise SqsError(SERIALIZATION, "The request has more members than any valid request has.")
        ascii_only = body.isascii()
        try:
            if not ascii_only:
                body.decode()  # what is not an input's is not looked into below
            value: Any = typed.decode(body or EMPTY)
        except msgspec.ValidationError as error:
            raise SqsError(SERIALIZATION, _type_error(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SqsError(SERIALIZATION, "The request is not valid JSON.") from None
        if sends:
            value.as_is = ascii_only and b"\\" not in body
            value.clean = value.as_is or (ascii_only and _FORBIDDEN.search(body) is None)
        return cast(Input, value)

    return decode


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

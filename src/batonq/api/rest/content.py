"""Conversion of message contents between REST, the log and SQS: bodies, attributes and traces.

A body is stored as text, as the text of a JSON value, or as bytes. A JSON string is stored as text, so a body sent over
SQS is a string in REST, and the reverse. Every other JSON value is stored as it was written. docs/reference/rest-api.md
has the whole table, and tests/rest/test_mapping.py has a test for each row.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from batonq.api.rest.shapes import Base64
from batonq.api.sqs.validate import allowed
from batonq.core import json_text
from batonq.core.payload import Attribute, Content, decode_attributes
from batonq.errors import InvalidInput
from batonq.queue_attributes import PREFIX

NAME_BYTES_MAX = 256
NUMBER_LENGTH_MAX = 256

_TEXT, _JSON, _BYTES = int(Content.TEXT), int(Content.JSON), int(Content.BYTES)
_decode_text = msgspec.json.Decoder(str).decode
_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.encode
LONG_NUMBER_DIGITS = 19  # an integer with fewer digits fits into 64 bits
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % LONG_NUMBER_DIGITS)
_JSON_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_NOT_FINITE = "The body contains a number that is not finite, which JSON cannot represent."
_SIMPLE = frozenset((str, int, bool, type(None)))


# --- bodies in --------------------------------------------------------------------------------


def body_from_json(raw: bytes) -> tuple[bytes, int]:
    """The bytes to store for a JSON value, and their content type."""
    if raw[:1] == b'"':
        return _text(raw), _TEXT
    problem = json_text.problem_of(raw)
    if problem:
        raise InvalidInput(problem)
    return raw, _JSON


def _text(raw: bytes) -> bytes:
    try:
        return _decode_text(raw).encode()
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise InvalidInput("The body is not valid Unicode: it contains an unpaired surrogate.") from None


def body_from_value(value: Any) -> tuple[bytes, int]:
    """Like `body_from_json`, for a value decoded from MessagePack."""
    kind = type(value)
    if kind is bytes:
        return value, _BYTES
    if kind is str:
        return value.encode(), _TEXT
    _check_value(value, json_text.DEPTH_MAX)
    return _encode_json(value), _JSON


def _check_value(value: Any, depth: int) -> None:
    """Check that a value can be represented in JSON. MessagePack has more types, and those would come back as something
    else.
    """
    kind = type(value)
    if kind in _SIMPLE:
        return
    members: Iterable[Any]
    if kind is float:
        if not math.isfinite(value):
            raise InvalidInput(_NOT_FINITE)
        return
    if kind is dict:
        if {*map(type, value)} - {str}:
            raise InvalidInput(
                "The body contains an object with a key that is not a string, which JSON cannot represent."
            )
        members = value.values()
    elif kind is list:
        members = value
    else:
        what = "bytes" if kind is bytes else "an extension type"
        raise InvalidInput(
            f"The body contains {what} inside another value, which JSON cannot represent. Send the whole body as "
            "bytes, or encode the bytes as a base64 string."
        )
    if not depth:
        raise InvalidInput(json_text.TOO_DEEP)
    kinds = {*map(type, members)} - _SIMPLE
    if kinds == {float}:
        if not all(math.isfinite(member) for member in members if type(member) is float):
            raise InvalidInput(_NOT_FINITE)
    elif kinds:
        for member in members:
            _check_value(member, depth - 1)


def body_from_base64(text: str) -> tuple[bytes, int]:
    return _bytes_of(text, "bodyBase64"), _BYTES


def _bytes_of(text: str, field: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise InvalidInput(
            f"{field} is not valid base64. Use the standard alphabet (with + and /) and padding."
        ) from None


# --- bodies out -------------------------------------------------------------------------------


def value_of(body: bytes, content: int) -> Any:
    """The body as a value for MessagePack."""
    if content == _BYTES:
        return body
    if content == _TEXT:
        return body.decode()
    if not _LONG_NUMBER.search(body):
        try:
            return _decode_json(body)
        except ValueError:  # a number beyond the range of a double, which JSON allows
            pass
    return json.loads(body, parse_int=_fitting)


def _fitting(text: str) -> int | float:
    """MessagePack has integers of 64 bits. A larger integer becomes the nearest double, as in most JSON parsers."""
    if len(text) < LONG_NUMBER_DIGITS:
        return int(text)
    value = int(text) if len(text) <= LONG_NUMBER_DIGITS + 2 else 1 << 64
    return value if -(1 << 63) <= value < 1 << 64 else float(text)


def base64_of(body: bytes) -> str:
    return b64encode(body).decode("ascii")


# --- attributes -------------------------------------------------------------------------------


def attributes_from(values: Mapping[str, Any]) -> list[Attribute]:
    """Attributes as they are stored: text has the SQS type String, a number Number, and bytes Binary."""
    return [_attribute(name, value) for name, value in values.items()]


def _attribute(name: str, value: Any) -> Attribute:
    if len(name.encode()) > NAME_BYTES_MAX or not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
        raise InvalidInput(
            f"{name[:NAME_BYTES_MAX]!r} is not a valid attribute name. Use letters, digits, hyphens, underscores "
            f"and single periods between them, at most {NAME_BYTES_MAX} bytes. The prefixes AWS. and Amazon. are "
            "reserved."
        )
    if name.startswith(PREFIX):
        raise InvalidInput(
            f"The prefix {PREFIX} is reserved. Use the message's own field instead of the attribute "
            f"{name[:NAME_BYTES_MAX]}."
        )
    kind = type(value)
    if kind is str:
        data = value.encode()
        if not allowed(data):
            raise InvalidInput(
                f"The attribute {name} contains control characters, which some protocols cannot carry. Send it as "
                "bytes."
            )
        return Attribute(name, "String", data, False)
    if (kind is int and value.bit_length() < NUMBER_LENGTH_MAX * 3) or (kind is float and math.isfinite(value)):
        return Attribute(name, "Number", repr(value).encode(), False)
    if kind is bytes:
        return Attribute(name, "Binary", value, True)
    if kind is Base64:
        return Attribute(name, "Binary", _bytes_of(value.base64, f"The attribute {name}"), True)
    if kind is dict and value.keys() == {"base64"} and type(value["base64"]) is str:
        return Attribute(name, "Binary", _bytes_of(value["base64"], f"The attribute {name}"), True)
    raise InvalidInput(f"The attribute {name} must be a string, a number, or bytes.")


def attributes_of(encoded: bytes, *, binary: bool) -> dict[str, Any]:
    """Attributes for REST. Baton's own attributes are left out, since fields of the message hold their values."""
    return {
        row.name: _value(row, binary=binary) for row in decode_attributes(encoded) if not row.name.startswith(PREFIX)
    }


def _value(row: Attribute, *, binary: bool) -> Any:
    if row.binary:
        return row.value if binary else {"base64": base64_of(row.value)}
    if row.data_type.partition(".")[0] == "Number":
        if not binary and _JSON_NUMBER.fullmatch(row.value):
            return Raw(row.value)  # keeps all digits
        return _number(row.value.decode())
    return row.value.decode()


def _number(text: str) -> Any:
    try:
        number: int | float = int(text)
    except ValueError:
        number = float(text)
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 64:
        number = float(number)
    return number if isinstance(number, int) or math.isfinite(number) else text


def legible(text: str) -> str:
    """Replace the characters that a protocol cannot carry: reasons are often output of other programs, with terminal
    colours.
    """
    if text.isprintable() or allowed(text.encode()):
        return text
    return "".join(letter if allowed(letter.encode()) else "\ufffd" for letter in text)


# --- traces -----------------------------------------------------------------------------------

_TRACE = re.compile(r"([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})(?: (.*))?")
_XRAY_ROOT = re.compile(r"(?:^|;)Root=1-([0-9a-f]{8})-([0-9a-f]{24})(?:;|$)")
_XRAY_PARENT = re.compile(r"(?:^|;)Parent=([0-9a-f]{16})(?:;|$)")


def trace_from(traceparent: str | None, tracestate: str | None) -> str:
    """Both headers as one text, which SQS clients receive as AWSTraceHeader."""
    if not traceparent:
        return ""
    return f"{traceparent} {tracestate}" if tracestate else traceparent


def trace_of(trace: str) -> tuple[str, str]:
    """The traceparent and tracestate of a message. An X-Ray header sent over SQS is converted to the W3C form."""
    found = _TRACE.fullmatch(trace)
    if found is not None:
        return found[1], found[2] or ""
    root, parent = _XRAY_ROOT.search(trace), _XRAY_PARENT.search(trace)
    if root is None or parent is None:
        return "", ""
    return f"00-{root[1]}{root[2]}-{parent[1]}-{'01' if 'Sampled=1' in trace else '00'}", ""

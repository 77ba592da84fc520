"""Conversion of message contents between REST, the log and SQS: bodies, attributes and traces.

A body is stored as text, as the text of a JSON value, or as bytes. A JSON string is stored as text, so a body sent over
SQS is a string in REST, and the reverse. Every other JSON value is stored as it was written. docs/reference/rest-api.md
has the whole table, and tests/rest/test_mapping.py has a test for each row.
"""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.shapes import Base64, OnlyAttributes, PackedAttributes
from batonq.api.sqs.validate import allowed
from batonq.core import json_text
from batonq.core.payload import Attribute, Content, decode_attributes
from batonq.errors import BatonError, InvalidInput
from batonq.node.bounded_cache import BoundedCache
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
_ATTRIBUTE_TYPES = {
    str: b"String",
    int: b"Number",
    float: b"Number",
    bytes: b"Binary",
    Base64: b"Binary",
}
HEADS_MAX = 1_024  # attribute names that are remembered with their types, because clients use the same again and again
HEAD_LENGTH_MAX = 128  # longer names are not remembered
_LENGTH = struct.Struct(">I")
_heads: BoundedCache[tuple[str, type], bytes] = BoundedCache(HEADS_MAX, HEAD_LENGTH_MAX)
_decode_attributes = msgspec.msgpack.Decoder(PackedAttributes).decode
_decode_packed = msgspec.msgpack.Decoder().decode
_decode_packed_text = msgspec.msgpack.Decoder(str).decode
_decode_packed_scalar = msgspec.msgpack.Decoder(str | int | float).decode
_decode_packed_base64 = msgspec.msgpack.Decoder(Base64).decode
_STRING_CODES = frozenset((*range(0xA0, 0xC0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))  # of text and bytes in MessagePack
Refuse = Callable[[int, BatonError], None]  # is called with the place of a message that cannot be sent, and why
_SIMPLE = frozenset((str, int, bool, type(None)))


# --- bodies in --------------------------------------------------------------------------------


def bodies_from_json(texts: list[bytes], refuse: Refuse) -> tuple[list[bytes], list[int]]:
    """The bytes to store for JSON values, and their content types."""
    contents = [_TEXT if text[:1] == b'"' else _JSON for text in texts]
    if _JSON in contents:
        for at, text in enumerate(texts):
            if contents[at] == _JSON and (problem := json_text.problem_of(text)):
                refuse(at, InvalidInput(problem))
        if _TEXT not in contents:
            return texts, contents
    try:
        return [
            _decode_text(text).encode() if content == _TEXT else text
            for text, content in zip(texts, contents, strict=True)
        ], contents
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return [_text(at, text, refuse) if contents[at] == _TEXT else text for at, text in enumerate(texts)], contents


def _text(at: int, text: bytes, refuse: Refuse) -> bytes:
    try:
        return _decode_text(text).encode()
    except (msgspec.MsgspecError, UnicodeEncodeError):
        refuse(at, InvalidInput("The body is not valid Unicode: it contains an unpaired surrogate."))
        return b""


def bodies_from_packed(raws: Sequence[Raw], refuse: Refuse) -> tuple[list[bytes], list[int]]:
    """Like `bodies_from_json`, for values in MessagePack. Raises TooLarge if decoding them would take too long."""
    try:
        return [*map(str.encode, map(_decode_packed_text, raws))], [_TEXT] * len(raws)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass  # not all are valid texts
    documents = [*map(bytes, raws)]
    MSGPACK.check_weight(b"".join([document for document in documents if document[0] not in _STRING_CODES]))
    values = _decoded(documents, refuse)
    if {*map(type, values)} == {bytes}:
        return values, [_BYTES] * len(values)
    bodies: list[bytes] = []
    contents: list[int] = []
    for at, value in enumerate(values):
        try:
            body, content = body_from_value(value)
        except InvalidInput as problem:
            refuse(at, problem)
            body, content = b"", _TEXT
        bodies.append(body)
        contents.append(content)
    return bodies, contents


def _decoded(documents: Sequence[bytes], refuse: Refuse) -> list[Any]:
    """Values in MessagePack. None replaces a value that is not valid."""
    try:
        return [*map(_decode_packed, documents)]
    except Exception:
        pass  # one of them is not valid
    values: list[Any] = []
    for at, document in enumerate(documents):
        try:
            values.append(MSGPACK.decode(document, Any))
        except BatonError as problem:
            refuse(at, problem)
            values.append(None)
    return values


def body_from_value(value: Any) -> tuple[bytes, int]:
    """The bytes to store for a value decoded from MessagePack, and their content type."""
    kind = type(value)
    if kind is bytes:
        return value, _BYTES
    if kind is str:
        return value.encode(), _TEXT
    try:
        text = _encode_json(value)
        if not json_text.too_deep(text) and _decode_json(text) == value:
            return text, _JSON
    except (TypeError, ValueError, RecursionError):  # also the decoder's errors
        pass
    _check_value(value, json_text.DEPTH_MAX)
    return _encode_json(value), _JSON


def _check_value(value: Any, depth: int) -> None:
    """Check that a value can be represented in JSON. MessagePack has more types, and those would come back as something
    else. Comparing what comes back is much faster than this; this finds the reason.
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


def bytes_of(text: str, field: str) -> bytes:
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


def packed_text(body: bytes) -> str | Raw:
    """A text for MessagePack. A text that is not ASCII is copied, because decoding and encoding it is slow."""
    if body.isascii():
        return body.decode()
    size = len(body)
    if size < 1 << 8:
        return Raw(bytes((0xD9, size)) + body)
    return Raw((b"\xda" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdb" + size.to_bytes(4, "big")) + body)


def _fitting(text: str) -> int | float:
    """MessagePack has integers of 64 bits. A larger integer becomes the nearest double, as in most JSON parsers."""
    if len(text) < LONG_NUMBER_DIGITS:
        return int(text)
    value = int(text) if len(text) <= LONG_NUMBER_DIGITS + 2 else 1 << 64
    return value if -(1 << 63) <= value < 1 << 64 else float(text)


def base64_of(body: bytes) -> str:
    return b64encode(body).decode("ascii")


# --- attributes -------------------------------------------------------------------------------


def attributes_from(values: Mapping[str, Any]) -> bytes:
    """Attributes as they are stored: text has the SQS type String, a number Number, and bytes Binary."""
    parts: list[tuple[str, bytes]] = []
    for name, value in values.items():
        head = _heads.get((name, type(value)))
        if head is None:
            head = _checked_head(name, value)
        kind = type(value)
        if kind is str:
            data = value.encode()
            if not (value.isprintable() or allowed(data)):
                raise InvalidInput(
                    f"The attribute {name} contains control characters, which some protocols cannot carry. Send it as "
                    "bytes."
                )
        elif kind is bytes:
            data = value
        elif kind is Base64:
            data = bytes_of(value.base64, f"The attribute {name}")
        elif (kind is int and value.bit_length() < NUMBER_LENGTH_MAX * 3) or (kind is float and math.isfinite(value)):
            data = repr(value).encode()
        else:
            raise _no_attribute(name)
        parts.append((name, head + _LENGTH.pack(len(data)) + data))
    parts.sort()
    return b"".join([part for _, part in parts])


def attributes_from_packed(raw: Raw) -> Mapping[str, Any]:
    """The attributes of a message in MessagePack, decoded. Raises InvalidInput or TooLarge."""
    try:
        raws = _decode_attributes(raw) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # With its name, so that the error tells which field is not valid.
        MSGPACK.decode(b"\x81" + MSGPACK.encode("attributes") + bytes(raw), OnlyAttributes)
        raise
    return {name: _packed_value(name, value) for name, value in raws.items()}


def _packed_value(name: str, raw: Raw) -> Any:
    try:
        return _decode_packed_scalar(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        document = bytes(raw)
    if document[0] in _STRING_CODES:
        return MSGPACK.decode(document, Any)  # bytes, or text that is not valid
    try:
        return _decode_packed_base64(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _no_attribute(name) from None


def _checked_head(name: str, value: Any) -> bytes:
    """The encoded name and type of an attribute, and the byte that tells text from bytes. See core/payload.py."""
    raw_name = name.encode()
    if len(raw_name) > NAME_BYTES_MAX or not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.")):
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
    data_type = _ATTRIBUTE_TYPES.get(type(value))
    if data_type is None:
        raise _no_attribute(name)
    flag = b"\x02" if data_type == b"Binary" else b"\x01"
    head = b"".join((_LENGTH.pack(len(raw_name)), raw_name, _LENGTH.pack(len(data_type)), data_type, flag))
    _heads.put((name, type(value)), head, len(name))
    return head


def _no_attribute(name: str) -> InvalidInput:
    return InvalidInput(f"The attribute {name} must be a string, a number, or bytes.")


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

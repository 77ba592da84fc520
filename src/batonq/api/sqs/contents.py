"""Bodies that are not text, over SQS, which supports only text.

A JSON body is returned as its text. Bytes, and text with characters that SQS forbids, are returned in base64. Two
message attributes describe the body: `Baton.ContentType` and `Baton.ContentEncoding`. When a client sends these
attributes with a body, the body is decoded and stored accordingly. docs/reference/rest-api.md has the table for both
directions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from itertools import repeat, starmap
from typing import Any

import msgspec
from msgspec import Raw

from batonq.api.send_builder import SendBuilder
from batonq.api.sqs.digests import digest
from batonq.api.sqs.errors import INVALID_MESSAGE_CONTENTS, SqsError, invalid
from batonq.api.sqs.extensions import CONTENT_ENCODING, CONTENT_TYPE
from batonq.api.sqs.validate import allowed
from batonq.core import json_text
from batonq.core.payload import (
    AS_IS,
    NO_DIGEST,
    TEXTS,
    Attribute,
    Content,
    decode_attributes,
    encode_attributes,
)
from batonq.node.broker import Received
from batonq.node.messages.received import CONTENT_BITS

JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"
TEXT_TYPE = "text/plain; charset=utf-8"
BASE64 = "base64"

_TEXT, _JSON, _BYTES = int(Content.TEXT), int(Content.JSON), int(Content.BYTES)
_TYPES = {_TEXT: TEXT_TYPE, _JSON: JSON_TYPE, _BYTES: BYTES_TYPE}
_ENCODING_NAME = CONTENT_ENCODING.encode()
# These two characters can occur unescaped only inside a JSON string, where the escapes are equivalent.
_ESCAPES = ((b"\xef\xbf\xbe", rb"\ufffe"), (b"\xef\xbf\xbf", rb"\uffff"))
_check_json = msgspec.json.Decoder(Raw).decode


# --- out --------------------------------------------------------------------------------------


def shown_all(received: Received, as_json: bool) -> tuple[Iterable[Any], Iterable[str], Sequence[bytes]]:
    """The bodies as texts, their MD5s in hexadecimal, and the attributes, of all messages. In JSON, a body that needs
    no escapes is copied as it is.
    """
    bodies, types, digests, attributes = received.bodies, received.contents, received.digests, received.attributes
    # SQS checks the text of each body, and stores its digest. REST stores digests for deduplication only.
    checked = not (attributes or received.dedup_ids) and TEXTS.issuperset(types)
    if checked or types.count(AS_IS) == len(types):
        texts: Iterable[Any] = map(bytes.decode, bodies)
        if as_json:
            texts = [
                Raw(b'"%b"' % body) if content & AS_IS else body.decode()
                for content, body in zip(types, bodies, strict=True)
            ]
        return texts, map(bytes.hex, digests), attributes
    rows = zip(
        bodies,
        [b"" if content & NO_DIGEST else one for content, one in zip(types, digests, strict=True)],
        [content & CONTENT_BITS for content in types],
        attributes or repeat(b""),
        strict=False,
    )
    texts, hexes, attributes = zip(*starmap(shown, rows), strict=True)
    return texts, hexes, attributes


def shown(body: bytes, body_md5: bytes, content: int, attributes: bytes) -> tuple[str, str, bytes]:
    """The body as text, its MD5 in hexadecimal, and the attributes extended by those that describe the body."""
    encoded = content == _BYTES or (_ENCODING_NAME in attributes and _says_base64(attributes))
    if content == _JSON and not encoded:
        return _shown_json(body, body_md5, attributes)
    if not encoded and allowed(body):
        return body.decode(), (body_md5 or digest(body)).hex(), attributes
    text = b64encode(body)
    return text.decode("ascii"), digest(text).hex(), _told(attributes, _TYPES[content], BASE64)


def _shown_json(body: bytes, body_md5: bytes, attributes: bytes) -> tuple[str, str, bytes]:
    if not allowed(body):
        for character, escape in _ESCAPES:
            body = body.replace(character, escape)
        body_md5 = b""
    return body.decode(), (body_md5 or digest(body)).hex(), _told(attributes, JSON_TYPE, "")


def _says_base64(attributes: bytes) -> bool:
    return any(row.name == CONTENT_ENCODING for row in decode_attributes(attributes))


def _told(attributes: bytes, content_type: str, encoding: str) -> bytes:
    """The attributes with content type and encoding added, unless the sender set them."""
    rows = decode_attributes(attributes)
    names = {row.name for row in rows}
    for name, value in ((CONTENT_TYPE, content_type), (CONTENT_ENCODING, encoding)):
        if value and name not in names:
            rows.append(Attribute(name, "String", value.encode(), False))
    return encode_attributes(rows)


# --- in ---------------------------------------------------------------------------------------


def take(builder: SendBuilder, content_type: str, encoding: str) -> None:
    """Convert the body of the builder's current message to what its attributes declare. Raises SqsError when the body
    does not match them.
    """
    body = builder.bodies[builder.at]
    if encoding:
        if encoding != BASE64:
            raise invalid(encoding, CONTENT_ENCODING, f"The only encoding is {BASE64}.")
        try:
            body = builder.bodies[builder.at] = b64decode(body, validate=True)
        except Base64Error:
            raise SqsError(INVALID_MESSAGE_CONTENTS, "The body is not valid base64.") from None
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON_TYPE:
        _check(body)
        builder.put("contents", _JSON)
    elif encoding:
        builder.put("contents", _TEXT if kind.startswith("text/") and _is_text(body) else _BYTES)
    if encoding:
        builder.digests[builder.at] = digest(body)


def _check(body: bytes) -> None:
    try:
        _check_json(body)
        body.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise SqsError(INVALID_MESSAGE_CONTENTS, "The body is not valid JSON.") from None
    problem = json_text.problem_of(body)
    if problem:
        raise SqsError(INVALID_MESSAGE_CONTENTS, problem)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True

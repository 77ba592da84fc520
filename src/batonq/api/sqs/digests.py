"""The digests that clients check, and the encoding of message attributes that they are made over."""

from __future__ import annotations

from hashlib import md5
from typing import TYPE_CHECKING

from batonq.core.payload import Attribute, decode_attributes, encode_attribute, encode_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable

TRACE_HEADER = "AWSTraceHeader"


def hex_digest(encoded: bytes) -> str:
    """MD5 of a body, or of attributes in their encoding."""
    return md5(encoded, usedforsecurity=False).hexdigest()


def digest(body: bytes) -> bytes:
    return md5(body, usedforsecurity=False).digest()


def trace_digest(trace: str) -> str:
    """MD5OfMessageSystemAttributes: a sender can set one system attribute only."""
    return hex_digest(encode_attribute(TRACE_HEADER, "String", trace.encode(), False))


def selected(encoded: bytes, wanted: Iterable[str]) -> tuple[list[Attribute], bytes]:
    """The attributes whose names are wanted (exactly, or by a prefix that ends in `.*`), and their encoding."""
    attributes = decode_attributes(encoded)
    names = set(wanted)
    if names & {"All", ".*", "*"}:
        return attributes, encoded
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    kept = [row for row in attributes if row.name in names or (prefixes and row.name.startswith(prefixes))]
    return kept, encoded if len(kept) == len(attributes) else encode_attributes(kept)

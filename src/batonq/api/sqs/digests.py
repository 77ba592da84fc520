"""The MD5 digests that clients verify, and the encoding of message attributes that they are computed over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, cast

from batonq.core.payload import Attribute, decode_attributes, encode_attribute, encode_attributes

TRACE_HEADER = "AWSTraceHeader"


def _md5() -> Callable[[bytes], Any]:
    """Python's built-in MD5 where available: for 1 KiB it takes a quarter less time than OpenSSL's."""
    try:
        return cast("Callable[[bytes], Any]", import_module("_md5").md5)
    except ImportError:
        return partial(hashlib.md5, usedforsecurity=False)


md5 = _md5()


def hex_digest(encoded: bytes) -> str:
    """MD5 of a body, or of encoded attributes, in hexadecimal."""
    return str(md5(encoded).hexdigest())


def digest(body: bytes) -> bytes:
    return bytes(md5(body).digest())


def trace_digest(trace: str) -> str:
    """MD5OfMessageSystemAttributes. A sender can set only one system attribute, the trace header."""
    return hex_digest(encode_attribute(TRACE_HEADER, "String", trace.encode(), False))


def selected(encoded: bytes, wanted: Iterable[str]) -> tuple[list[Attribute], bytes]:
    """The attributes whose names are wanted (by exact name, or by a prefix that ends in `.*`), and their encoding."""
    attributes = decode_attributes(encoded)
    names = set(wanted)
    if names & {"All", ".*", "*"}:
        return attributes, encoded
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    kept = [row for row in attributes if row.name in names or (prefixes and row.name.startswith(prefixes))]
    return kept, encoded if len(kept) == len(attributes) else encode_attributes(kept)

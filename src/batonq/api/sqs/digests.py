"""The MD5 digests that clients verify."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

from batonq.core.payload import encode_attribute

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

"""The shape of a body: its structure without its values, so that bodies of one kind look the same.

JSON becomes its sorted keys with the types of their values, an array the type of its elements: `object<id: number,
tags: array<string>>`. Other text loses its numbers, ids and hexadecimal digits. The data pipeline computes the same
shapes with Spark's functions (pipeline/tables/shapes.py).
"""

from __future__ import annotations

import json
import re
from typing import Any

from batonq.core.payload import REFERS, STORED, Content

SHAPE_MAX = 400  # characters
DEPTH_MAX = 4  # nested objects and arrays
TEXT_MAX = 120  # characters of the shape of a text that is not JSON
TEXT_READ_MAX = 2_000  # characters of such a text that are examined
BODY_BYTES_MAX = 256 << 10  # larger bodies are not examined
ELEMENTS_MAX = 1_000  # of an array
CUT = "…"
LARGE = "large"
# Variable parts of a text, and their placeholders. In this order: an id is more than its digits.
VARYING = (
    (r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "<id>"),
    (r"\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
    (r"\s+", " "),
)
_VARYING = [(re.compile(pattern), stands) for pattern, stands in VARYING]
_QUOTED = re.compile(r"'[^']{0,500}'|\"[^\"]{0,500}\"|`[^`]{0,500}`")

# A type while it is being merged: its name, an object's fields, or an array's element.
_Shape = str | dict[str, Any] | tuple[Any]


def body_shape(body: bytes, content: int) -> str:
    if content & STORED:
        return LARGE
    content &= ~REFERS  # the body is a pointer, and has a shape as such
    if content == Content.BYTES:
        return "bytes"
    if not body:
        return "empty"
    if len(body) > BODY_BYTES_MAX:
        return LARGE
    if content == Content.JSON or body.lstrip()[:1] in (b"{", b"["):
        try:
            return _shortened(_text_of(_shape_of(json.loads(body), 0), 0), SHAPE_MAX)
        except (ValueError, RecursionError):
            pass
    return text_shape(body[: 4 * TEXT_READ_MAX].decode(errors="replace")[:TEXT_READ_MAX])


def text_shape(text: str) -> str:
    """A text without the parts that vary."""
    for pattern, stands in _VARYING:
        text = pattern.sub(stands, text)
    return _shortened(text.strip(), TEXT_MAX)


def reason_shape(reason: str) -> str:
    """The reason of a failure without the parts that vary: quoted texts too."""
    return text_shape(_QUOTED.sub("<text>", reason))


def _shape_of(value: Any, depth: int) -> _Shape:
    if isinstance(value, dict):
        return {name: _shape_of(member, depth + 1) for name, member in value.items()} if depth < DEPTH_MAX else {}
    if isinstance(value, list):
        element: _Shape = "null"
        for member in value[:ELEMENTS_MAX] if depth < DEPTH_MAX else ():
            element = _merged(element, _shape_of(member, depth + 1))
        return (element,)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _merged(one: _Shape, other: _Shape) -> _Shape:
    """The type of both. It may be `one`, changed: copying it for every element of an array would cost too much."""
    if one == "null" or one == other:
        return other
    if other == "null":
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        for name, member in other.items():
            one[name] = _merged(one.get(name, "null"), member)
        return one
    if isinstance(one, tuple) and isinstance(other, tuple):
        return (_merged(one[0], other[0]),)
    return "any"


def _text_of(shape: _Shape, depth: int) -> str:
    if isinstance(shape, str):
        return shape
    name = "object" if isinstance(shape, dict) else "array"
    if depth == DEPTH_MAX:
        return f"{name}<{CUT}>"
    if isinstance(shape, dict):
        members, length = [], 0
        for key in sorted(shape):
            members.append(f"{key}: {_text_of(shape[key], depth + 1)}")
            length += len(members[-1])
            if length > SHAPE_MAX:  # the rest is cut off anyway
                break
    else:
        members = [_text_of(shape[0], depth + 1)]
    return f"{name}<{', '.join(members)}>"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + CUT

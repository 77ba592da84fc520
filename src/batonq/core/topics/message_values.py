"""What a filter sees of a message: the values of an attribute, or the values at a path of a JSON body.

A value is a text, a number, true, false or null. An attribute of type `String.Array` has several values, and so has a
list in a body. Numbers are compared with five digits after the decimal point, as SNS does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from enum import Enum
from itertools import islice
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn, TypeAlias

from batonq.core.payload import Attribute

VALUES_MAX = 1_000  # of one attribute or one path of a body that filters look at; the first ones count
DECIMALS = 5
FAST_BYTES_MAX = 16 * 1024  # of a body that a thread reads without letting others run


class Truth(Enum):
    """The values true and false. In Python `True == 1`, but a filter for 1 does not match true."""

    TRUE = True
    FALSE = False


Scalar: TypeAlias = str | int | float | Truth | None

_TRUTHS = {True: Truth.TRUE, False: Truth.FALSE}
_NOTHING: tuple[Scalar, ...] = ()
_SIMPLE = {str, int, float}


def scalar(value: Any) -> Scalar:
    """The value of a JSON text, number, boolean or null, in the form in which filters compare values."""
    if isinstance(value, bool):
        return _TRUTHS[value]
    if isinstance(value, float):
        return round(value, DECIMALS) if math.isfinite(value) else value
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"not a scalar: {type(value).__name__}")


def read_json(text: str | bytes) -> Any:
    """A parsed JSON text, or None if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_yielding = json.JSONDecoder(parse_constant=_refuse_constant)
_yielding.scan_once = py_make_scanner(_yielding)  # type: ignore[attr-defined]


def read_json_yielding(text: bytes) -> Any:
    """The same for a thread beside the event loop: it is slower, but other threads can run in between. The decoder in C
    keeps the interpreter until it has read the whole text.
    """
    try:
        return _yielding.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError):
        return None


class AttributeValues:
    """The attributes of a message as filters see them. Binary attributes do not exist for filters."""

    __slots__ = ("_attributes", "_values")

    def __init__(self, attributes: Mapping[str, Attribute]) -> None:
        self._attributes = {name: one for name, one in attributes.items() if not one.binary}
        self._values: dict[str, Sequence[Scalar]] = {}

    def __bool__(self) -> bool:
        return bool(self._attributes)

    def names(self) -> Sequence[str]:
        return [*self._attributes]

    def at(self, name: str) -> Sequence[Scalar]:
        """The values of the attribute with this name; none if the message does not have it."""
        values = self._values.get(name)
        if values is None:
            attribute = self._attributes.get(name)
            values = self._values[name] = _NOTHING if attribute is None else attribute_values(attribute)
        return values


def attribute_values(attribute: Attribute) -> Sequence[Scalar]:
    """The values of a text or number attribute. A `.Array` that is not a JSON list has none."""
    text = attribute.value.decode("utf-8", "replace")
    base, _, label = attribute.data_type.partition(".")
    if label == "Array":
        parsed = read_json(text)
        return _scalars(parsed) if isinstance(parsed, list) else _NOTHING
    if base == "Number":
        number = read_json(text)
        if number is None:
            number = _float(text)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return (scalar(number),)
    return (text,)


def _float(text: str) -> float | None:
    """A number that is written in a form which JSON does not have, such as `+1` or `.5`."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class Paths(NamedTuple):
    """What filters look at in a body."""

    named: Container[str]  # the keys that filters name, joined with dots
    parents: Container[str]  # the paths above those


class BodyValues:
    """The values of a JSON body at the paths that filters name. A path is the keys joined with dots."""

    __slots__ = ("_found", "is_object")

    def __init__(self, body: Any, paths: Paths) -> None:
        self._found: dict[str, Sequence[Scalar]] = {}
        self.is_object = isinstance(body, dict)
        if self.is_object:
            self._collect(body, *paths)

    def names(self) -> Sequence[str]:
        return [*self._found]

    def at(self, path: str) -> Sequence[Scalar]:
        """The values at this path; none if the body has none there."""
        return self._found.get(path, _NOTHING)

    def _collect(self, body: dict[str, Any], named: Container[str], parents: Container[str]) -> None:
        """Walk only along paths that some filter names: the work is bounded by the size of the body."""
        found: dict[str, list[Scalar]] = {}
        level = [("", body)]
        while level:
            below: list[tuple[str, dict[str, Any]]] = []
            for prefix, node in level:
                for key, child in node.items():
                    path = prefix + key
                    if path in named:
                        found.setdefault(path, []).extend(_scalars(child))
                    if path in parents:
                        below.extend((path + ".", inner) for inner in _leaves(child) if isinstance(inner, dict))
            level = below
        for path, values in found.items():
            if values:
                self._found[path] = values if len(values) <= VALUES_MAX else _distinct(values)


def parents_of(path: str) -> Sequence[str]:
    """The paths above this one, from the outermost."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


class ReadBody(bytes):
    """A large body whose values were read before, on a thread. They count as long as the filters name the same
    paths.
    """

    paths: Paths
    values: BodyValues


def read_body(body: bytes, paths: Paths) -> ReadBody:
    """Called on a thread. Of many small bodies, each is read fast, and other threads can run between two of them."""
    read = ReadBody(body)
    parsed = read_json(body) if len(body) <= FAST_BYTES_MAX else read_json_yielding(body)
    read.paths, read.values = paths, BodyValues(parsed, paths)
    return read


def body_values(body: bytes, paths: Paths) -> BodyValues:
    if isinstance(body, ReadBody) and body.paths is paths:
        return body.values
    return BodyValues(read_json(body), paths)


def _scalars(value: Any) -> Sequence[Scalar]:
    if type(value) is list and len(value) > VALUES_MAX and len(types := {*map(type, value)}) == 1 and types <= _SIMPLE:
        value = [*dict.fromkeys(value)]  # long lists often repeat a few values
    values = [scalar(leaf) for leaf in _leaves(value) if not isinstance(leaf, dict)]
    return values if len(values) <= VALUES_MAX else _distinct(values)


def _distinct(values: Sequence[Scalar]) -> Sequence[Scalar]:
    return [*islice(dict.fromkeys(values), VALUES_MAX)]


def _leaves(value: Any) -> Sequence[Any]:
    """The items of a list and of the lists in it, in their order; any other value by itself."""
    if not isinstance(value, list):
        return (value,)
    leaves: list[Any] = []
    waiting = [iter(value)]
    while waiting:
        for item in waiting[-1]:
            if isinstance(item, list):
                waiting.append(iter(item))
                break
            leaves.append(item)
        else:
            waiting.pop()
    return leaves

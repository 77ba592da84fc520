"""Errors about a request's body, in terms of JSON: which field is wrong, what it must be, and what it means.

The decoder reports its own types ("Expected `float` >= 0.0 - at `$.delaySeconds`"). Clients send JSON.
"""

from __future__ import annotations

import re

from batonq.api.rest.field_docs import MEANINGS, meaning

LENGTH_MAX = 500
_WHERE = re.compile(r" - at `(?:key in )?\$?(.*)`$", re.DOTALL)
_FIELD = re.compile(r"^Object (missing required|contains unknown) field `(.*)`$", re.DOTALL)
_VALUE = re.compile(r"^Invalid (?:enum )?value (.*)$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `([a-z |]+)`(.*)$", re.DOTALL)
_NUMBER = re.compile(r"^ ([<>]=?) (-?[\d.]+)$")
_LENGTH = re.compile(r"^ of length ([<>]=?) (\d+)$")
_INDEX = re.compile(r"\[(?:\.\.\.|\d+)\]")
_BOUNDS = {">=": "{0} or more", "<=": "{0} or less", ">": "more than {0}", "<": "less than {0}"}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "bytes": "bytes",
    "object": "an object",
    "array": "an array",
    "null": "null",
    "datetime": "a time in RFC 3339",
}


def explain(problem: str, shape: str) -> str:
    """Reword the decoder's error about a body of type `shape`: one or two sentences without the final full stop."""
    where = _WHERE.search(problem)
    path = where.group(1).lstrip(".") if where else ""
    what = problem[: where.start()] if where else problem
    if field := _FIELD.match(what):
        name = f"{path}.{field.group(2)}".lstrip(".")
        if field.group(1) == "contains unknown":
            return f"unknown field {name}"[:LENGTH_MAX]
        return _with_meaning(f"{name} is missing", name, shape)
    if what.startswith("Invalid RFC3339"):
        return _with_meaning(f"{path or 'it'} is not a time in RFC 3339, such as 2027-01-31T09:00:00Z", path, shape)
    if value := _VALUE.match(what):
        return _with_meaning(f"{path or 'it'} cannot be {value.group(1)}", path, shape)
    if expected := _EXPECTED.match(what):
        return _with_meaning(f"{path or 'it'} {_must(expected.group(1), expected.group(2))}", path, shape)
    return _with_meaning(f"{path}: {what}" if path else what, path, shape)


def _must(types: str, rest: str) -> str:
    kinds = " or ".join(_TYPES.get(kind, kind) for kind in types.split(" | "))
    if number := _NUMBER.match(rest):
        return f"must be {kinds}, {_BOUNDS[number.group(1)].format(f'{float(number.group(2)):,.15g}')}"
    if length := _LENGTH.match(rest):
        unit = "entries" if "array" in kinds else "characters"
        return f"must be {kinds} of {_BOUNDS[length.group(1)].format(length.group(2))} {unit}"
    if types == "datetime" and "timezone" in rest:
        return "must be a time with a time zone, such as 2027-01-31T09:00:00Z or 2027-01-31T09:00:00+01:00"
    if rest.startswith(", got `"):
        got = rest[len(", got `") :].rstrip("`")
        return f"must be {kinds}, not {_TYPES.get(got, got)}"
    if rest.startswith(" matching regex"):
        return "does not have the required format"  # the field's description is clearer than the regular expression
    return f"must be {kinds}{rest}"


def _with_meaning(text: str, path: str, shape: str) -> str:
    path = _INDEX.sub("", path)
    field = path.rpartition(".")[2]
    owner = shape if path == field else ""
    if field in MEANINGS or f"{owner}.{field}" in MEANINGS:
        text += f". {field}: {meaning(owner, field).rstrip('.')}"
    return text[:LENGTH_MAX]

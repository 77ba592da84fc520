"""The limits of a JSON text: nesting and digits, found without a loop over its characters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.json_text import DEPTH_MAX, DIGITS_MAX, has_long_number, problem_of, too_deep

leaves = st.one_of(st.text('a"\\[]{}é', max_size=6), st.integers(), st.none())
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\]{', max_size=3), inner, max_size=3),
)
wrappers = st.lists(
    st.sampled_from(["list", "map", "with siblings", "with brackets in a text", "in a key"]), min_size=190, max_size=206
)


def wrapped(value: Any, kinds: list[str]) -> Any:
    for kind in kinds:
        value = {
            "list": [value],
            "map": {"a": value},
            "with siblings": [[], value, {}, [[]]],
            "with brackets in a text": ['[[["\\', value, "]]]"],
            "in a key": {'{"[': value},
        }[kind]
    return value


def depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@given(values, wrappers, st.booleans(), st.booleans())
def test_nesting(value: Any, kinds: list[str], ascii_only: bool, blanks: bool) -> None:
    whole = wrapped(value, kinds)
    text = json.dumps(whole, ensure_ascii=ascii_only, indent=1 if blanks else None).encode()
    assert too_deep(text) == (depth(whole) > DEPTH_MAX)


@pytest.mark.parametrize(
    "repeated", [b"[]", b'{"a":[]}', b'"[["', b'"\\""', b"[" * 19 + b"]" * 19, b"[" * 199 + b"]" * 199]
)
def test_large_texts(repeated: bytes) -> None:
    text = b"[" + b",".join([repeated] * (1_000_000 // len(repeated))) + b"]"
    assert problem_of(text) == ""
    assert "200 levels" in problem_of(b"[" + text + b"," + b"[" * 200 + b"]" * 200 + b"]")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"1" * DIGITS_MAX, False),
        (b"1" * (DIGITS_MAX + 1), True),
        (b'"' + b"1" * 5_000 + b'"', False),
        (b'["\\"' + b"1" * 5_000 + b'\\\\"]', False),
        (b'["\\\\",' + b"1" * 5_000 + b"]", True),
        (b'{"a":"1","b":-' + b"9" * 5_000 + b"}", True),
        (b"[" + b",".join([b"1" * DIGITS_MAX] * 240) + b"]", False),
        (b"0." + b"1" * 5_000, True),
    ],
)
def test_digits(text: bytes, found: bool) -> None:
    assert has_long_number(text) is found

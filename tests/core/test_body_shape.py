"""Shapes of bodies and of reasons. tests/pipeline/test_dead_letters.py compares them with Spark's."""

from __future__ import annotations

import json
import time

import pytest

from batonq.core.body_shape import BODY_BYTES_MAX, CUT, LARGE, body_shape, reason_shape
from batonq.core.payload import Content


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b'{"b": 1, "a": "x", "c": null, "d": [1, 2.5], "e": true}', "object<a: string, b: number, c: null, "),
        (b'[{"a": 1}, {"b": "x"}, null]', "array<object<a: number, b: string>>"),
        (b'[1, "x"]', "array<any>"),
        (b"[]", "array<null>"),
        (b"{}", "object<>"),
        (b'{"a":{"b":{"c":{"d":{"e":1}}}}}', "object<a: object<b: object<c: object<d: object<" + CUT),
        (b"12", "number"),
        (b"[" * 10_000, CUT),
        (b"{not json 17", "{not json <n>"),
    ],
)
def test_json(body: bytes, shape: str) -> None:
    found = body_shape(body, Content.JSON)
    assert found.startswith(shape) or (shape == CUT and found.endswith(CUT))


def test_an_array_of_objects_that_have_nothing_in_common_costs_no_more_than_its_size() -> None:
    """The event loop waits for it. Merging by copying took seconds."""
    body = json.dumps([{f"{20 * number + name:x}": 1 for name in range(20)} for number in range(1_000)]).encode()
    assert len(body) < BODY_BYTES_MAX
    began_s = time.process_time()
    assert body_shape(body, Content.JSON).startswith("array<object<0: number, 1: number")
    assert time.process_time() - began_s < 0.5


def test_other_bodies() -> None:
    assert body_shape(b"\x00", Content.BYTES) == "bytes"
    assert body_shape(b"", Content.TEXT) == "empty"
    assert body_shape(b'{"a":1}', Content.TEXT) == "object<a: number>"
    assert body_shape(b"x" * (BODY_BYTES_MAX + 1), Content.TEXT) == LARGE
    assert body_shape(b"\xff order 7", Content.TEXT) == "\ufffd order <n>"


def test_reasons_without_what_varies() -> None:
    one = "KeyError: 'tax' in order 1017 (3f2504e0-4f89-11d3-9a0c-0305e82c3301), \"a b\" `x` deadbeef01"
    other = "KeyError: 'name' in order 9 (3f2504e0-4f89-11d3-9a0c-0305e82c3302), \"c\" `yy` deadbeef02"
    assert reason_shape(one) == reason_shape(other) == "KeyError: <text> in order <n> (<id>), <text> <text> <hex>"

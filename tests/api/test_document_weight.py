"""Documents of many small values are refused before they are decoded; large texts are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.api.document_weight import CONTAINER_WEIGHT, SMALL_BYTES, PackedWeightLimit, WeightLimit, packed_fields

LIMIT = WeightLimit(brackets_max=100, separators_max=200)
FILLER = b'"' + b"x" * SMALL_BYTES + b'"'


@pytest.mark.parametrize(
    ("document", "allowed"),
    [
        (b"[" + b"{}," * 99 + FILLER + b"]", True),
        (b"[" + b"{}," * 100 + FILLER + b"]", False),
        (b"[" + b"1," * 200 + FILLER + b"]", True),
        (b"[" + b"1," * 201 + FILLER + b"]", False),
        (b'["' + b"{},[]:" * 20_000 + b'"]', True),
        (b'["' + b'\\"{},\\\\' * 20_000 + b'"]', True),
        (b'["' + b"\\\\" * SMALL_BYTES + b'",' + b"{}," * 100 + b"1]", False),
        (b"{}," * 1_000, True),  # small, whatever it is
    ],
)
def test_brackets_and_separators_outside_of_strings_count(document: bytes, allowed: bool) -> None:
    assert LIMIT.allows(document) is allowed


PACKED_LIMIT = PackedWeightLimit(values_max=1_000)


def _list(count: int, members: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + members


@pytest.mark.parametrize(
    ("document", "allowed"),
    [
        (_list(995, b"\xc0" * 995), True),
        (_list(996, b"\xc0" * 996), False),
        (_list(199, b"\x80" * 199), True),
        (_list(200, b"\x80" * 200), False),
        (_list(200, b"\xdc\0\0" * 200), False),
        (msgspec.msgpack.encode(["\u0080" * 1_000, b"\x80" * 70_000, "x" * 70_000]), True),
        (msgspec.msgpack.encode([msgspec.msgpack.Ext(5, b"\x80" * size) for size in (1, 3, 300, 70_000)]), True),
        (msgspec.msgpack.encode([1.5, -1, 1 << 40, True, None, {"a": [1]}, "x" * 5_000] * 55), True),
        (msgspec.msgpack.encode([1.5, -1, 1 << 40, True, None, {"a": [1]}, "x" * 5_000] * 56), False),
        (b"\xc6\xff\xff\xff\xff" + bytes(1_000), True),  # not whole: the decoder says so
        (b"\xc1" * 1_001, False),  # not MessagePack
    ],
)
def test_values_of_packed_documents_count(document: bytes, allowed: bool) -> None:
    assert PACKED_LIMIT.allows(document) is allowed


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats()
        | st.text()
        | st.binary(max_size=300),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_the_walk_sees_every_value_once(value: Any) -> None:
    weight = _weight(value)
    document = msgspec.msgpack.encode(value)
    assert PackedWeightLimit(weight).allows(document)
    short = len(document) * CONTAINER_WEIGHT <= weight - 1  # too small to be walked
    assert short or not PackedWeightLimit(weight - 1).allows(document)


def _weight(value: Any) -> int:
    if isinstance(value, dict):
        return CONTAINER_WEIGHT + len(value) + sum(map(_weight, value.values()))
    return CONTAINER_WEIGHT + sum(map(_weight, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        (b"\x80", 0),
        (b"\x8f", 15),
        (msgspec.msgpack.encode({str(number): 0 for number in range(300)}), 300),
        (b"\xdf\x00\x01\x00\x00", 65_536),
        (b"\x93\x01\x02\x03", 0),
    ],
)
def test_the_outermost_fields_are_counted(document: bytes, fields: int) -> None:
    assert packed_fields(document) == fields

"""CBOR: the examples of RFC 8949 that the protocol can contain, what must be refused, and round trips."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.api.cloudwatch.cbor import DEPTH_MAX, VALUES_MAX, CborError, Timestamp, decode, encode

EXAMPLES: list[tuple[str, Any]] = [
    ("00", 0),
    ("17", 23),
    ("1818", 24),
    ("1903e8", 1000),
    ("1bffffffffffffffff", 18446744073709551615),
    ("20", -1),
    ("3903e7", -1000),
    ("f93c00", 1.0),
    ("fa47c35000", 100000.0),
    ("fb3ff199999999999a", 1.1),
    ("f97c00", math.inf),
    ("f4", False),
    ("f5", True),
    ("f6", None),
    ("f7", None),
    ("c11a514b67b0", Timestamp(1363896240.0)),
    ("c1fb41d452d9ec200000", Timestamp(1363896240.5)),
    ("4401020304", b"\x01\x02\x03\x04"),
    ("6449455446", "IETF"),
    ("62c3bc", "\u00fc"),
    ("80", []),
    ("8301820203820405", [1, [2, 3], [4, 5]]),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
    ("7f657374726561646d696e67ff", "streaming"),
    ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
    ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
    ("d74401020304", b"\x01\x02\x03\x04"),  # a tag that means nothing here
]

REFUSED = [
    "",  # nothing
    "0000",  # two values
    "ff",  # a break alone
    "1c",  # a reserved length
    "f8ff",  # an unknown simple value
    "5f0100ff",  # a byte string with a part that is none
    "62c3",  # ends too early
    "62c328",  # not UTF-8
    "9bffffffffffffffff",  # more entries than bytes
    "bbffffffffffffffff",
    "a10102",  # a key that is not text
    "bf0102ff",
    "bf6161ff",  # a key without a value
    "c16161",  # a timestamp that is no number
    "9f",  # never ends
    "81" * (DEPTH_MAX + 2) + "00",
    "9f" * (DEPTH_MAX + 2),
]


@pytest.mark.parametrize(("hexed", "value"), EXAMPLES)
def test_examples(hexed: str, value: Any) -> None:
    found = decode(bytes.fromhex(hexed))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("hexed", REFUSED)
def test_what_is_not_valid_is_refused(hexed: str) -> None:
    with pytest.raises(CborError):
        decode(bytes.fromhex(hexed))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.floats(allow_nan=False).map(Timestamp),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=DEPTH_MAX // 2,
)


@given(VALUES)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except CborError:
        pass


def test_a_large_request_is_decided_soon() -> None:
    began = time.monotonic()
    with pytest.raises(CborError):
        decode(b"\x9b" + (1 << 20).to_bytes(8, "big") + b"\x80" * (1 << 20))
    assert time.monotonic() - began < 10


def test_more_values_than_any_request_needs_are_refused() -> None:
    with pytest.raises(CborError, match="too many values"):
        decode(b"\x9a" + VALUES_MAX.to_bytes(4, "big") + b"\x00" * VALUES_MAX)
    assert VALUES_MAX <= 20_000  # the most that is decoded within about 50 ms

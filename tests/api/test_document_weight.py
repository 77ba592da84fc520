"""Documents of many small values are refused before they are decoded; large texts are not."""

from __future__ import annotations

import pytest

from batonq.api.document_weight import SMALL_BYTES, WeightLimit

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

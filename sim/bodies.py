"""Bodies that say which message they are, so that a message is known wherever it turns up."""

from __future__ import annotations

from random import Random

_MARK = b"message "


def make_body(number: int, random: Random) -> bytes:
    """Some short, some of several sectors, so that a torn write can cut through one."""
    length = random.choice((0, 10, 100, 600, 2_000, 5_000))
    return _MARK + b"%d " % number + random.randbytes(length // 2).hex().encode()


def number_of(body: bytes) -> int:
    """The number in a body; -1 when nobody here made it."""
    if not body.startswith(_MARK):
        return -1
    digits = body[len(_MARK) :].partition(b" ")[0]
    return int(digits) if digits.isdigit() else -1

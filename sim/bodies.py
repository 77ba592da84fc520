"""Bodies that contain the number of their message, so that a message can be identified anywhere."""

from __future__ import annotations

from random import Random

_MARK = b"message "

KEPT_MARK = b"kept "  # begins the bodies of messages that are replayed, see replaying.py


def make_body(number: int, random: Random) -> bytes:
    """A body for a message. Some are short; some have several sectors, so that a torn write can cut through them."""
    length = random.choice((0, 10, 100, 600, 2_000, 5_000))
    return _MARK + b"%d " % number + random.randbytes(length // 2).hex().encode()


def number_of(body: bytes) -> int:
    """The number in a body; -1 when the simulator did not make it."""
    if not body.startswith(_MARK):
        return -1
    digits = body[len(_MARK) :].partition(b" ")[0]
    return int(digits) if digits.isdigit() else -1

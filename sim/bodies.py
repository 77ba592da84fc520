"""Bodies that contain the number of their message, so that a message can be identified anywhere."""

from __future__ import annotations

from random import Random

_MARK = b"message "
_PUBLISHED_MARK = b"publish "  # begins the bodies of messages that are published to a topic, see topics.py
_LENGTHS = (0, 10, 100, 600, 2_000, 5_000)

KEPT_MARK = b"kept "  # begins the bodies of messages that are replayed, see replaying.py


def make_body(number: int, random: Random) -> bytes:
    """A body for a message. Some are short; some have several sectors, so that a torn write can cut through them."""
    return _make(_MARK, number, random)


def make_published_body(number: int, random: Random) -> bytes:
    """The same for a message that is published."""
    return _make(_PUBLISHED_MARK, number, random)


def number_of(body: bytes) -> int:
    """The number in a body; -1 when the simulator did not make it."""
    return _number(_MARK, body)


def published_number_of(body: bytes) -> int:
    """The number in the body of a published message; -1 for any other body."""
    return _number(_PUBLISHED_MARK, body)


def _make(mark: bytes, number: int, random: Random) -> bytes:
    return mark + b"%d " % number + random.randbytes(random.choice(_LENGTHS) // 2).hex().encode()


def _number(mark: bytes, body: bytes) -> int:
    if not body.startswith(mark):
        return -1
    digits = body[len(mark) :].partition(b" ")[0]
    return int(digits) if digits.isdigit() else -1

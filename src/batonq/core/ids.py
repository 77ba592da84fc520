"""Message ids and hashes: pure functions of what they identify.

A MessageId is a UUID (version 8): a prefix that identifies the shard, then the sequence in the last twelve digits,
mixed so that adjacent ids do not look alike. No table of ids is needed, and foreign ids can be told from Baton's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b

_MASK48 = (1 << 48) - 1
_MIX = 0x9E3779B97F4B  # odd, so multiplication by it modulo 2**48 is invertible
_UNMIX = pow(_MIX, -1, 1 << 48)


@cache
def _prefix(shard: int) -> str:
    digits = blake2b(b"baton shard %d" % shard, digest_size=8).hexdigest()
    return f"{digits[:4]}{shard:04x}-{digits[4:8]}-8{digits[8:11]}-8{digits[11:14]}-"


def message_id(shard: int, sequence: int) -> str:
    return _prefix(shard) + "%012x" % (sequence * _MIX & _MASK48)


def message_ids(shard: int, sequences: Iterable[int]) -> list[str]:
    """The ids of several messages of one shard."""
    prefix = _prefix(shard)
    return [prefix + "%012x" % (sequence * _MIX & _MASK48) for sequence in sequences]


def parse_message_id(text: str) -> tuple[int, int] | None:
    """(shard, sequence) of an id made by `message_id`; None for any other text."""
    if len(text) != 36:
        return None
    try:
        shard = int(text[4:8], 16)
        mixed = int(text[24:], 16)
    except ValueError:
        return None
    sequence = mixed * _UNMIX & _MASK48
    return (shard, sequence) if message_id(shard, sequence) == text else None


AWAY = 1 << 63  # bit in a request's hash: the shard that gets the request is not its home shard


def request_hash(queue: int, name: str) -> int:
    """The hash of an SDK's request name, below AWAY; 0 for no name."""
    return key_hash(queue, name) % AWAY if name else 0


def key_hash(*parts: str | int) -> int:
    """A 64-bit hash of a key, the same in every process; never 0, which means "none"."""
    (hashed,) = key_hashes(["\x00".join(map(str, parts))])
    return hashed


def key_hashes(texts: Iterable[str]) -> list[int]:
    """The hashes of several keys, whose parts are already joined."""
    from_bytes = int.from_bytes
    return [from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") or 1 for text in texts]

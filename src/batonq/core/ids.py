"""Message ids and hashes: pure functions of what they name.

A MessageId is a UUID (version 8) that holds the sequence (mixed, 64 bits), the shard (16 bits) and a check (40 bits)
that tells an id of ours from any other UUID, so that no table of ids is needed.
"""

from __future__ import annotations

from hashlib import blake2b

_MASK64 = (1 << 64) - 1
_MASK40 = (1 << 40) - 1
_MIX = 0x9E3779B97F4A7C15  # odd, so multiplying by it modulo 2**64 can be undone
_UNMIX = pow(_MIX, -1, 1 << 64)
_SALT = 0xD6E8FEB86659FD93


def message_id(shard: int, sequence: int) -> str:
    mixed = (sequence * _MIX + shard) & _MASK64
    check = ((mixed ^ _SALT) * _MIX >> 24) & _MASK40
    digits = f"{mixed << 56 | shard << 40 | check:030x}"
    return f"{digits[:8]}-{digits[8:12]}-8{digits[12:15]}-8{digits[15:18]}-{digits[18:]}"


def parse_message_id(text: str) -> tuple[int, int] | None:
    """(shard, sequence) of an id made by `message_id`, else None."""
    digits = text.replace("-", "")
    if len(text) != 36 or len(digits) != 32:
        return None
    try:
        value = int(digits[:12] + digits[13:16] + digits[17:], 16)
    except ValueError:
        return None
    shard = value >> 40 & 0xFFFF
    sequence = ((value >> 56) - shard) * _UNMIX & _MASK64
    return (shard, sequence) if message_id(shard, sequence) == text else None


def key_hash(*parts: str | int) -> int:
    """A 64-bit hash of a key, the same in every process; never 0, which stands for "none"."""
    text = "\x00".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") or 1

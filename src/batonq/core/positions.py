"""Positions in retained history as users see them: `SHARD:NUMBER`, an opaque text."""

from __future__ import annotations

from batonq.errors import PositionInvalid

SHARD_MAX = 0xFFFF
NUMBER_MAX = (1 << 63) - 1


def position_text(shard: int, number: int) -> str:
    return f"{shard}:{number}"


def parse_position(text: str) -> tuple[int, int]:
    """The shard and the number of a position. Raises PositionInvalid."""
    shard, colon, number = text.partition(":")
    well_formed = colon and all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (shard, number))
    if not well_formed or int(shard) > SHARD_MAX or int(number) > NUMBER_MAX:
        raise PositionInvalid(
            f"{text[:60]!r} is not a position. Positions are texts such as 0:4295032832, as the messages of a fetch "
            "have them."
        )
    return int(shard), int(number)

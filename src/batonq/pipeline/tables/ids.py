"""Message ids in SQL: made from shard and sequence, as core/ids.py makes them, so that no table has to carry them."""

from __future__ import annotations

from functools import cache

from batonq.core.ids import message_id

SHARDS_MAX = 256  # node/settings.py has the same limit
_HALF = 1 << 24
_FACTOR = int(message_id(0, 1)[24:], 16)  # what core/ids.py mixes sequences with, in two halves that do not overflow
_LOW, _HIGH = _FACTOR & (_HALF - 1), _FACTOR >> 24


def id_of(shard: str, sequence: str) -> str:
    """The expression of a message's id; 48 bits of the sequence are mixed, 24 at a time."""
    low, high = f"({sequence} & {_HALF - 1})", f"shiftright({sequence}, 24)"
    crossed = f"(({high} * {_LOW} + {low} * {_HIGH}) & {_HALF - 1})"
    mixed = f"(({crossed} * {_HALF} + {low} * {_LOW}) & {(1 << 48) - 1})"
    digits = f"lpad(lower(hex({mixed})), 12, '0')"
    return f"concat(try_element_at(array({_prefixes()}), {shard} + 1), {digits})"


@cache
def _prefixes() -> str:
    return ", ".join(f"'{message_id(shard, 1)[:24]}'" for shard in range(SHARDS_MAX))

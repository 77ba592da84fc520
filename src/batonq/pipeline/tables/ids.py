"""Message ids in SQL: computed from shard and sequence, as in core/ids.py, so that tables need not store them."""

from __future__ import annotations

from functools import cache

from batonq.core.ids import message_id

SHARDS_MAX = 256  # node/settings.py has the same limit
_HALF = 1 << 24
_FACTOR = int(message_id(0, 1)[24:], 16)  # the factor of core/ids.py, in two halves that do not overflow
_PREFIX_BYTES = 24
_LOW, _HIGH = _FACTOR & (_HALF - 1), _FACTOR >> 24


def id_of(shard: str, sequence: str) -> str:
    """The SQL expression of a message's id; 48 bits of the sequence are mixed, 24 at a time."""
    low, high = f"({sequence} & {_HALF - 1})", f"shiftright({sequence}, 24)"
    crossed = f"(({high} * {_LOW} + {low} * {_HIGH}) & {_HALF - 1})"
    mixed = f"(({crossed} * {_HALF} + {low} * {_LOW}) & {(1 << 48) - 1})"
    digits = f"lpad(lower(hex({mixed})), 12, '0')"
    prefix = f"string(substring({_prefixes()}, {shard} * {_PREFIX_BYTES} + 1, {_PREFIX_BYTES}))"
    return f"concat(nullif({prefix}, ''), {digits})"


@cache
def _prefixes() -> str:
    """The prefixes of the ids of all shards, as one literal: an array of them takes a hundred times longer to plan."""
    told = "".join(message_id(shard, 1)[:_PREFIX_BYTES] for shard in range(SHARDS_MAX))
    return f"X'{told.encode().hex()}'"

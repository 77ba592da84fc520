"""Message ids given to a job: checks them, converts them to sequences, and packs them for the job's record.

A job's record is rewritten with its progress, so ten thousand ids must not take 36 bytes each. The list is stored as
the differences between neighbouring sequences, most of them one byte, compressed.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batonq.core.ids import parse_message_id
from batonq.errors import InvalidInput

LISTED_MAX = 10_000


class Listed(NamedTuple):
    sequences: dict[int, array[int]]  # per requested shard: sequences in ascending order, without duplicates
    elsewhere: int  # ids that these shards cannot have: of other shards, or not assigned to a message yet


def listed_ids(filter_: Mapping[str, Any] | None, next_sequences: Mapping[int, int]) -> Listed | None:
    """The messages that a filter names, by shard; None when it names none. Raises InvalidInput."""
    ids = (filter_ or {}).get("messageIds")
    if ids is None:
        return None
    if not isinstance(ids, list | tuple) or not 0 < len(ids) <= LISTED_MAX:
        raise InvalidInput(
            f"messageIds must be a list of 1 to {LISTED_MAX:,} message ids. Start several jobs for more messages."
        )
    here: dict[int, set[int]] = {shard: set() for shard in next_sequences}
    elsewhere: set[str] = set()
    for text in ids:
        place = parse_message_id(text) if isinstance(text, str) else None
        if place is None:
            raise InvalidInput(f"messageIds: {str(text)[:80]!r} is not a message id of this server.")
        if place[1] < next_sequences.get(place[0], 0):
            here[place[0]].add(place[1])
        else:
            elsewhere.add(text)
    return Listed({shard: array("Q", sorted(sequences)) for shard, sequences in here.items()}, len(elsewhere))


def pack(sequences: Iterable[int]) -> str:
    """Encode ascending sequences as text."""
    packed = bytearray()
    before = 0
    for sequence in sequences:
        distance, before = sequence - before, sequence
        while distance > 0x7F:
            packed.append(distance & 0x7F | 0x80)
            distance >>= 7
        packed.append(distance)
    return b64encode(zlib.compress(bytes(packed))).decode()


def unpack(text: str) -> array[int]:
    sequences = array("Q")
    distance = shift = before = 0
    for byte in zlib.decompress(b64decode(text)):
        distance |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            before += distance
            sequences.append(before)
            distance = shift = 0
    return sequences

"""What batches are bounded by."""

from __future__ import annotations

from msgspec import Struct


class BatchLimits(Struct, frozen=True, kw_only=True):
    """Bounds of automatic batching.

    A batch leaves at once when nothing of its kind is under way. While something is, what comes gathers: until that is
    answered, until the batch is full, or for `linger` seconds if another lane is free.
    """

    count: int = 500  # messages of one request; the server takes up to 1,000
    bytes: int = 1 << 20  # of one request; the server takes up to 4 MiB
    linger: float = 0.005
    lanes: int = 4  # requests under way at a time, of one kind and queue
    waiting_count: int = 10_000  # beyond this, and beyond `waiting_bytes`, callers wait until there is room
    waiting_bytes: int = 64 << 20


REQUEST_BYTES_MAX = 3 << 20  # of the messages in one request of `send_many`
REQUEST_COUNT_MAX = 1_000


def split(sizes: list[int]) -> list[slice]:
    """How to cut a list of messages of these sizes into requests."""
    parts: list[slice] = []
    start = held = 0
    for at, size in enumerate(sizes):
        if at > start and (held + size > REQUEST_BYTES_MAX or at - start >= REQUEST_COUNT_MAX):
            parts.append(slice(start, at))
            start, held = at, 0
        held += size
    if start < len(sizes):
        parts.append(slice(start, len(sizes)))
    return parts

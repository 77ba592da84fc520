"""Limits of batches."""

from __future__ import annotations

from msgspec import Struct


class BatchLimits(Struct, frozen=True, kw_only=True):
    """Limits of automatic batching.

    A batch is sent at once if no request of its kind is in progress. Otherwise calls accumulate until that request is
    answered, until the batch is full, or for `linger` seconds if another lane is free.
    """

    count: int = 500  # messages per request; the server accepts up to 1,000
    bytes: int = 1 << 20  # bytes per request; the server accepts up to 4 MiB
    linger: float = 0.005
    lanes: int = 4  # concurrent requests per kind and queue
    waiting_count: int = 10_000  # beyond this or `waiting_bytes`, callers wait
    waiting_bytes: int = 64 << 20


REQUEST_BYTES_MAX = 3 << 20  # messages per request of `send_many`
REQUEST_COUNT_MAX = 1_000


def split(sizes: list[int]) -> list[slice]:
    """How to split messages of these sizes into requests."""
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

"""Limits per request, per connection, per address and in total.

They are enforced in request_reader.py (one request), connection.py (one connection), memory_limits.py (memory, and one
address) and server.py (all connections).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(slots=True, frozen=True, kw_only=True)
class HttpLimits:
    """Times are in whole seconds. Held bytes are counted as they are in memory, not as they were sent."""

    # --- of one request
    head_bytes_max: int = 64 * KIB
    headers_max: int = 128
    trailer_bytes_max: int = 8 * KIB
    # A message of 1 MiB grows at most threefold on the wire: percent-encoded in a form, or with JSON escapes.
    body_bytes_max: int = 4 * MIB
    # For a request without credentials, as judged by the gate.
    anonymous_body_bytes_max: int = 64 * KIB
    # `chunks_max` chunks are free. Beyond them, chunks must have `chunk_bytes_min` bytes on average.
    chunks_max: int = 1 * KIB
    chunk_bytes_min: int = 32

    # --- of one connection
    pipelined_max: int = 16
    idle_s: int = 75
    request_s: int = 30  # from a request's first byte to its last
    body_window_s: int = 5  # in each window a body must average `body_rate_bytes_min` per second
    body_rate_bytes_min: int = 8 * KIB
    write_s: int = 30  # for a client that does not read its response
    linger_s: int = 2  # lets a refused client read the reason

    # --- of one address and of all together
    connections_max: int = 20_000
    # For all requests, while they are received and in progress.
    requests_bytes_max: int = 512 * MIB
    # The share of the connections and of the bytes that one address may use.
    address_share: float = 1.0

    @property
    def address_connections_max(self) -> int:
        return max(1, int(self.connections_max * self.address_share))

    @property
    def address_bytes_max(self) -> int:
        return int(self.requests_bytes_max * self.address_share)

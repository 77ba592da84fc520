"""What one client, one address and all clients together may take of a server."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(slots=True, frozen=True, kw_only=True)
class HttpLimits:
    """Times are in whole seconds. Bytes that are held are counted as they lie in memory, not as they were sent."""

    # --- of one request
    head_bytes_max: int = 64 * KIB
    headers_max: int = 128
    trailer_bytes_max: int = 8 * KIB
    # A message of 1 MiB grows at most threefold on the wire: percent-encoded in a form, or as JSON escapes.
    body_bytes_max: int = 4 * MIB
    # Of a request without credentials, where the gate says that there are none.
    anonymous_body_bytes_max: int = 64 * KIB
    # So many chunks are free. Beyond them a chunk has to have this many bytes on average.
    chunks_max: int = 1 * KIB
    chunk_bytes_min: int = 32

    # --- of one connection
    pipelined_max: int = 16
    idle_s: int = 75
    request_s: int = 30  # from a request's first byte to its last
    body_window_s: int = 5  # a body must bring `body_rate_bytes_min` per second in each of these windows
    body_rate_bytes_min: int = 8 * KIB
    write_s: int = 30  # a client that does not read its answer
    linger_s: int = 2  # to let a refused client read why

    # --- of one address and of all together
    connections_max: int = 20_000
    # All requests, while they are received and worked on.
    requests_bytes_max: int = 512 * MIB
    # The part of both that one address may have.
    address_share: float = 1.0

    @property
    def address_connections_max(self) -> int:
        return max(1, int(self.connections_max * self.address_share))

    @property
    def address_bytes_max(self) -> int:
        return int(self.requests_bytes_max * self.address_share)

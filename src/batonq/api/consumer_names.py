"""The name of the consumer that sends a request, for the list of consumers and as the holder of leases."""

from __future__ import annotations

from batonq.api.http import Request

CONSUMER_HEADER = b"baton-consumer"
CONSUMER_LENGTH_MAX = 256
AGENT_LENGTH_MAX = 256


def consumer_named(request: Request) -> str:
    """The name in the request's header; empty if it has none."""
    named = request.headers.get(CONSUMER_HEADER)
    return named.decode("utf-8", "replace")[:CONSUMER_LENGTH_MAX] if named else ""


def agent_of(request: Request) -> bytes:
    return request.headers.get(b"user-agent", b"")[:AGENT_LENGTH_MAX]

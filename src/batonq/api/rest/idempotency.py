"""`Idempotency-Key`: a repeated request gets the first answer again and stores no second message.

The key identifies the request and is chosen by the client. `deduplicationKey` identifies the message, whoever sends it.
The queue's shard stores the keys in its log, so they survive restarts (core/shard/commands/remembered_requests.py).
"""

from __future__ import annotations

from hashlib import blake2b

from batonq.api.http import Request
from batonq.api.rest.service import Call
from batonq.core.commands import Once, Sent
from batonq.errors import IdempotencyConflict, InvalidInput

HEADER = b"idempotency-key"
KEY_LENGTH_MAX = 255
REPLAYED = ("Idempotency-Replayed", "true")


def once_of(call: Call, operation: str) -> Once | None:
    """The request's idempotency key and a hash of its content; None when the request has no key."""
    name = key_of(call.request)
    if not name:
        return None
    # Hash the bytes of the request and not its decoded value: a retry is identical to the byte.
    content = blake2b(call.request.body, digest_size=16, person=operation.encode()[:16]).hexdigest()
    return call.broker.once(name, content)


def headers_of(sent: Sent) -> tuple[tuple[str, str], ...]:
    """The headers of the answer."""
    return (REPLAYED,) if sent.replayed else ()


def conflict_of(sent: Sent) -> IdempotencyConflict | None:
    """The error for the whole request when its key was used before for a different request."""
    return next((result for result in sent.each if isinstance(result, IdempotencyConflict)), None)


def key_of(request: Request) -> str:
    """The request's idempotency key; empty when it has none. Raises InvalidInput."""
    value = request.headers.get(HEADER)
    if value is None:
        return ""
    name = value.decode("latin-1").strip()
    if not 0 < len(name) <= KEY_LENGTH_MAX or not name.isascii() or not name.isprintable():
        raise InvalidInput(f"The Idempotency-Key must be 1 to {KEY_LENGTH_MAX} ASCII characters long.")
    return name

"""`Idempotency-Key`: the same request again is answered as the first time, and makes no second message.

It is about the request, and the key is the client's; `deduplicationKey` is about the message, whoever sends it. The
keys are kept by the queue's shard, in its log, so that they hold across restarts (core/shard/once.py).
"""

from __future__ import annotations

from hashlib import blake2b

from batonq.api.http import Request
from batonq.api.rest.service import Call
from batonq.core.commands import Send
from batonq.errors import BatonError, IdempotencyConflict, InvalidInput
from batonq.node.broker import Queue, Sent

HEADER = b"idempotency-key"
KEY_LENGTH_MAX = 255
REPLAYED = ("Idempotency-Replayed", "true")


async def send(
    call: Call, queue: Queue, sends: list[Send], operation: str
) -> tuple[list[Sent | BatonError], tuple[tuple[str, str], ...]]:
    """Send messages, once if the request is named; and the headers that the answer has for it."""
    name = key_of(call.request)
    if not name:
        return await call.broker.send(queue, sends), ()
    # Not what was read of the request but its bytes: a retry is the same request, to the byte.
    content = blake2b(call.request.body, digest_size=16, person=operation.encode()[:16]).hexdigest()
    results, known = await call.broker.send_once(queue, sends, name, content)
    conflict = next((result for result in results if isinstance(result, IdempotencyConflict)), None)
    if conflict is not None:
        raise conflict
    return results, (REPLAYED,) if known else ()


def key_of(request: Request) -> str:
    """The request's name; empty when it has none. Raises InvalidInput."""
    value = request.headers.get(HEADER)
    if value is None:
        return ""
    name = value.decode("latin-1").strip()
    if not 0 < len(name) <= KEY_LENGTH_MAX or not name.isascii() or not name.isprintable():
        raise InvalidInput(f"The Idempotency-Key must be 1 to {KEY_LENGTH_MAX} ASCII characters long.")
    return name

"""MessagePack encoding, and exceptions from error codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from batonq.client.models import Outgoing, Peeked
from batonq.client.queue_settings import QueueInfo
from batonq.client.transport import Answer
from batonq.errors import BY_CODE, BatonError, InvalidInput, Unavailable

CONTENT_TYPE = "application/msgpack"
TEXT_SHOWN = 200

T = TypeVar("T")


class Problem(Struct):
    """An error from the server (RFC 9457), for a request or for one item of a batch."""

    code: str = ""
    detail: str = ""
    title: str = ""
    status: int = 0
    retryable: bool = False


class SendResult(Struct, rename="camel"):
    message_id: str | None = None
    sequence: int | None = None
    duplicate: bool = False
    error: Problem | None = None


class LeaseResult(Struct, rename="camel"):
    deadline_ms: int | None = None
    error: Problem | None = None


class SendResults(Struct):
    results: list[SendResult]


class LeaseResults(Struct):
    results: list[LeaseResult]


class QueuePage(Struct, rename="camel"):
    queues: list[QueueInfo]
    next_cursor: str | None = None


class PeekedPage(Struct):
    messages: list[Peeked]


_encoder = msgspec.msgpack.Encoder()
# Created on first use: inspecting the types takes longer than most programs need to start.
_decoders: dict[type[Any], Callable[[bytes], Any]] = {}


def encode(value: Any) -> bytes:
    """Raises InvalidInput for values that cannot be encoded."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(f"The value cannot be sent: {problem}. A body must be a JSON value or bytes.") from None


def encode_message(message: Outgoing) -> Raw:
    """An encoded message, so that its size is known and a batch only copies it."""
    return Raw(encode(message))


def has_key(message: Raw) -> bool:
    """Whether an encoded message has a deduplication key."""
    return "deduplicationKey" in msgspec.msgpack.decode(message)


def decode(shape: type[T], answer: Answer) -> T:
    """The decoded value of a response. Raises BatonError if it has another type."""
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.msgpack.Decoder(shape).decode
    try:
        value: T = decoder(answer.body)
    except msgspec.MsgspecError as problem:
        raise BatonError(
            f"The server's response has an unknown format ({problem}). Is the server's release newer than this client?"
        ) from None
    return value


# --- errors -------------------------------------------------------------------------------------


def as_error(problem: Problem) -> BatonError:
    """The exception for this code. An unknown code becomes Unavailable if a retry can succeed."""
    from batonq.client.error_words import in_client_words  # imported late: few programs see an error

    known = BY_CODE.get(problem.code)
    text = in_client_words(problem.detail or problem.title)
    if known is not None:
        return known(text or None)
    kind = Unavailable if problem.retryable else (InvalidInput if 400 <= problem.status < 500 else BatonError)
    return kind(f"{text} ({problem.code})" if problem.code else text or None)


def read_problem(answer: Answer) -> tuple[BatonError, float]:
    """The error in a response, and its Retry-After in seconds (0: none)."""
    kind = answer.headers.get("content-type", "")
    problem = Problem(status=answer.status)
    try:
        if "json" in kind:
            problem = msgspec.json.decode(answer.body, type=Problem)
        elif "msgpack" in kind:
            problem = msgspec.msgpack.decode(answer.body, type=Problem)
    except msgspec.MsgspecError:
        pass  # use the status alone
    if not problem.code:
        problem = _by_status(answer)
    return as_error(problem), _seconds(answer.headers.get("retry-after", ""))


def _by_status(answer: Answer) -> Problem:
    """The response is from a proxy in between, or the server is not Baton."""
    text = answer.body[:TEXT_SHOWN].decode("utf-8", "replace").strip()
    detail = f"The server returned status {answer.status}" + (f": {text}" if text else ".")
    code = {401: "access_denied", 403: "access_denied", 429: "over_limit", 507: "disk_full"}.get(answer.status, "")
    if answer.status in (502, 503, 504):
        code = "unavailable"
    return Problem(code=code, detail=detail, status=answer.status)


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0

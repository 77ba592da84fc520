"""Errors as the client sees them: problem details (RFC 9457) with stable codes."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import Struct

from batonq.api.http import Response
from batonq.api.rest.codec import Codec
from batonq.errors import BatonError
from batonq.queue_attributes import in_words_of_rest

RETRY_AFTER_S = {429: 1, 503: 1, 507: 5}
TYPE_PREFIX = "/problems/"


class Problem(Struct, kw_only=True):
    """An error: `code` is for programs, `detail` for people; `retryable` says whether a retry can succeed."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool


class ItemError(Struct):
    """The error of one entry of a batch; the other entries are not affected."""

    code: str
    detail: str
    status: int
    retryable: bool


def problem_of(error: BatonError) -> Problem:
    status = error.status
    return Problem(
        type=TYPE_PREFIX + error.code,
        title=title(type(error)),
        status=status,
        detail=in_words_of_rest(error.message),
        code=error.code,
        retryable=error.retryable,
    )


def title(kind: type[BatonError]) -> str:
    """A one-line title, the same for every problem with this code."""
    for cls in kind.__mro__:
        if cls.__module__ == BatonError.__module__ and cls.__doc__:
            return " ".join(cls.__doc__.split())
    return HTTPStatus(kind.status).phrase


def kinds() -> dict[str, type[BatonError]]:
    """All errors that have their own code, by code."""
    found: dict[str, type[BatonError]] = {}
    waiting: list[type[BatonError]] = [BatonError]
    while waiting:
        kind = waiting.pop(0)
        if kind.__module__ == BatonError.__module__:
            found.setdefault(kind.code, kind)
            waiting += kind.__subclasses__()
    return found


def item_error(error: BatonError) -> ItemError:
    return ItemError(error.code, in_words_of_rest(error.message), error.status, error.retryable)


def respond(error: BatonError, codec: Codec, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """The response for an error. For a temporary error it says when to retry."""
    problem = problem_of(error)
    retry_after_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S.get(problem.status)
    if retry_after_s is not None:
        headers = (*headers, ("Retry-After", str(retry_after_s)))
    return Response(problem.status, codec.encode(problem), codec.problem_type, headers)

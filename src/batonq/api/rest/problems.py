"""What goes wrong, as the client is told it: problem details (RFC 9457), with a code that never changes its meaning."""

from __future__ import annotations

from http import HTTPStatus

from msgspec import Struct

from batonq.api.http import Response
from batonq.api.rest.codec import Codec
from batonq.errors import BatonError

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
        detail=error.message,
        code=error.code,
        retryable=error.retryable,
    )


def title(kind: type[BatonError]) -> str:
    """One line that is the same for every problem of a code."""
    for cls in kind.__mro__:
        if cls.__module__ == BatonError.__module__ and cls.__doc__:
            return " ".join(cls.__doc__.split())
    return HTTPStatus(kind.status).phrase


def kinds() -> dict[str, type[BatonError]]:
    """Every error that has a code of its own, by its code."""
    found: dict[str, type[BatonError]] = {}
    waiting: list[type[BatonError]] = [BatonError]
    while waiting:
        kind = waiting.pop(0)
        if kind.__module__ == BatonError.__module__:
            found.setdefault(kind.code, kind)
            waiting += kind.__subclasses__()
    return found


def item_error(error: BatonError) -> ItemError:
    return ItemError(error.code, error.message, error.status, error.retryable)


def respond(error: BatonError, codec: Codec, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """The answer that tells of an error; one that passes by itself says when to try again."""
    problem = problem_of(error)
    retry_after_s = getattr(error, "retry_after_s", None) or RETRY_AFTER_S.get(problem.status)
    if retry_after_s is not None:
        headers = (*headers, ("Retry-After", str(retry_after_s)))
    return Response(problem.status, codec.encode(problem), codec.problem_type, headers)

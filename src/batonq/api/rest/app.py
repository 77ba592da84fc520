"""The REST application: a request to its operation, and the outcome back as an answer or a problem."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import time
from urllib.parse import unquote

from batonq.api.http import Request, Response
from batonq.api.rest import openapi, page, problems
from batonq.api.rest.codec import JSON, Codec, Negotiator
from batonq.api.rest.operations import OPERATIONS, Operation
from batonq.api.rest.rates import RateBook
from batonq.api.rest.service import Answer, Call
from batonq.api.sqs.access import Access, OpenAccess, SignedAccess
from batonq.api.sqs.errors import SqsError
from batonq.errors import (
    AccessDenied,
    BatonError,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    QueueDoesNotExist,
    TooLarge,
    Unavailable,
)
from batonq.node.broker import Broker

_HTML = "text/html; charset=utf-8"
_PAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    openapi.PATH: (JSON.content_type, lambda: JSON.encode(openapi.document())),
    openapi.PAGE_PATH: (_HTML, page.page),
}
REQUEST_BYTES_MAX = 4 * 1024 * 1024
PATH_LENGTH_MAX = 4_096  # a receipt has at most 1,024 characters, each of them may be escaped
PARTS_MAX = 6  # of a path, of those that there are

logger = logging.getLogger("batonq.rest")


class RestApp:
    """Handles requests (`handle`), from the HTTP server or from within the process. `calls` counts, for metrics."""

    def __init__(self, broker: Broker, *, wall: Callable[[], float] = time) -> None:
        self.broker = broker
        self.access: Access = OpenAccess(broker.account) if broker.dev else SignedAccess(broker, wall)
        self.calls = {operation.name: 0 for operation in OPERATIONS}
        self.errors: dict[str, int] = {}  # by code
        self._negotiator = Negotiator()
        self._rates = RateBook()
        self._routes: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS:
            self._routes.setdefault(operation.path, {})[operation.method] = operation

    async def handle(self, request: Request) -> Response:
        wanted = JSON
        try:
            if request.path in _PAGES or request.path.startswith(problems.TYPE_PREFIX):
                return self._page(request)
            given = self._negotiator.given(request)
            wanted = self._negotiator.wanted(request, given)
            operation, name, token = self._find(request)
            self.calls[operation.name] += 1
            if len(request.body) > REQUEST_BYTES_MAX:
                raise TooLarge(
                    f"The request is larger than {REQUEST_BYTES_MAX} bytes. Send fewer messages per request."
                )
            caller = request.caller or self.access.identify(request)
            call = Call(self.broker, self._rates, request, caller, given, wanted, name, token)
            return await self._answer(call, operation)
        except _WrongMethod as error:
            return self.refused(error, wanted, (("Allow", error.allow),))
        except BatonError as error:
            return self.refused(error, wanted)
        except SqsError as error:  # who signs requests is told apart as for SQS
            return self.refused(AccessDenied(error.message), wanted)
        except Exception:
            return self.refused(self.fault(request), wanted)

    async def _answer(self, call: Call, operation: Operation) -> Response:
        """Run an operation and encode its answer. If there is none, what was leased for it is the next one's."""
        try:
            try:
                answer = await operation.run(call)
            except QueueDoesNotExist:
                if not await self.broker.refresh():  # it is out of date in a cluster at most
                    raise
                answer = await operation.run(call)
            return _response(answer, call.wanted)
        except (Exception, asyncio.CancelledError):  # the latter when the client has gone
            if call.give_back is not None:
                await call.give_back()
            raise

    def fault(self, request: Request) -> BatonError:
        """The error for an exception that is being handled: the log says what it is, the client only that it was."""
        logger.exception("an operation failed: %s %s", request.method, request.path[:256])
        return BatonError("An internal error occurred; see the server's log.")

    def refused(self, error: BatonError, codec: Codec, headers: tuple[tuple[str, str], ...] = ()) -> Response:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        return problems.respond(error, codec, headers)

    def refusal(self, target: bytes, status: int, text: str) -> Response | None:
        """The answer to a request that the server took no further; None when it is not one of ours."""
        kind = {400: InvalidInput, 403: AccessDenied, 413: TooLarge, 503: Unavailable}.get(status)
        if kind is None or not target.startswith(b"/v1/"):
            return None
        response = problems.respond(kind(text), JSON)
        response.close = True
        return response

    def _page(self, request: Request) -> Response:
        """A document about the interface: anybody may read it, and it has one form."""
        if request.method not in ("GET", "HEAD"):
            raise _WrongMethod(request.method, ("GET",))
        if request.path in _PAGES:
            content_type, write = _PAGES[request.path]
            return Response(200, write(), content_type, page.HEADERS if content_type == _HTML else ())
        text = page.problem_page(request.path.removeprefix(problems.TYPE_PREFIX))
        if text is None:
            raise NotFound("There is no problem type with this name.")
        return Response(200, text, _HTML, page.HEADERS)

    # --- which operation

    def _find(self, request: Request) -> tuple[Operation, str, str]:
        """The operation, and what its address names: a queue or a job, and a receipt."""
        path, name, token = template(request.path)
        methods = self._routes.get(path)
        if methods is None:
            raise NotFound(f"{request.path[:200]} does not exist. GET /v1/docs lists all endpoints.")
        operation = methods.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            raise _WrongMethod(request.method, methods)
        return operation, name, token


class _WrongMethod(MethodNotAllowed):
    def __init__(self, method: str, methods: Iterable[str]) -> None:
        known = {*methods}
        self.allow = ", ".join(sorted(known | {"HEAD"} if "GET" in known else known))
        super().__init__(f"{method} is not supported here. Supported methods: {self.allow}.")


def template(path: str) -> tuple[str, str, str]:
    """The address with its names taken out, as operations have it: `/v1/queues/{queue}:purge`, `orders`, and so on."""
    parts = path.split("/", PARTS_MAX)
    count = len(parts)
    if count < 4 or parts[1] != "v1":
        return path, "", ""
    if len(path) > PATH_LENGTH_MAX:
        return "", "", ""
    kind = parts[2]
    name = unquote(parts[3])
    if kind == "queues":
        if count == 4:
            name, colon, verb = name.partition(":")
            return f"/v1/queues/{{queue}}{colon}{verb}" if name else "", name, ""
        if count == 5:
            return f"/v1/queues/{{queue}}/{unquote(parts[4])}" if name else "", name, ""
        if count == 6 and parts[4] == "messages":
            token, colon, verb = unquote(parts[5]).partition(":")
            return f"/v1/queues/{{queue}}/messages/{{receipt}}{colon}{verb}" if name and token else "", name, token
    elif kind == "jobs" and count == 4:
        name, colon, verb = name.partition(":")
        return f"/v1/jobs/{{job}}{colon}{verb}" if name else "", name, ""
    elif kind == "history" and count == 4 and name:
        return "/v1/history/{shard}", name, ""
    return "", "", ""


def _response(answer: Answer, codec: Codec) -> Response:
    if isinstance(answer.value, Response):
        return answer.value
    if answer.value is None:
        return Response(answer.status, b"", codec.content_type, answer.headers)
    return Response(answer.status, codec.encode(answer.value), codec.content_type, answer.headers)

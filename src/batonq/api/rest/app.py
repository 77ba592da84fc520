"""The REST application: finds the operation of a request, runs it, and returns its answer or a problem."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import time
from urllib.parse import unquote

from batonq.api.http import Reply, Request, Response
from batonq.api.http.messages import Heads
from batonq.api.rest import openapi, page, problems
from batonq.api.rest.codec import JSON, Codec, Negotiator
from batonq.api.rest.operations import OPERATIONS, Operation, Start
from batonq.api.rest.rates import RateBook
from batonq.api.rest.service import Answer, Call, Finish, fault
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
from batonq.node.bounded_cache import BoundedCache
from batonq.node.broker import Broker
from batonq.node.tasks import Tasks

_HTML = "text/html; charset=utf-8"
_PAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    openapi.PATH: (JSON.content_type, lambda: JSON.encode(openapi.document())),
    openapi.PAGE_PATH: (_HTML, page.page),
}
REQUEST_BYTES_MAX = 4 * 1024 * 1024
ADDRESSES_MAX = 10_000
ADDRESS_LENGTH_MAX = 320  # longer paths are not cached; a queue name has 80 characters, each of which may be escaped
PATH_LENGTH_MAX = 4_096  # a receipt has at most 1,024 characters, each of which may be escaped
PARTS_MAX = 6  # no operation's path has more parts

Undo = Callable[[], None] | None


class RestApp:
    """Handles requests. `begin` starts operations on messages for the HTTP server; they need no asyncio task of their
    own. `handle` runs any request, including requests from within the process. `calls` counts requests by operation,
    for metrics.
    """

    def __init__(self, broker: Broker, *, wall: Callable[[], float] = time) -> None:
        self.broker = broker
        self.access: Access = OpenAccess(broker.account) if broker.dev else SignedAccess(broker, wall)
        self.calls = {operation.name: 0 for operation in OPERATIONS}
        self.errors: dict[str, int] = {}  # number of errors by code
        self._negotiator = Negotiator()
        self._heads = Heads()
        self._tasks = Tasks()
        # path → an operation on messages, and the names in the path
        self._addresses: BoundedCache[str, tuple[Operation, str, str]] = BoundedCache(ADDRESSES_MAX, ADDRESS_LENGTH_MAX)
        self._rates = RateBook()
        self._routes: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS:
            self._routes.setdefault(operation.path, {})[operation.method] = operation

    def begin(self, request: Request, reply: Reply) -> bool:
        """Start an operation on messages, which answers through `reply`. Returns False for any other request."""
        found = self._addresses.get(request.path) or self._address(request)
        if found is None or request.method != found[0].method or request.query:
            return False
        operation, name, token = found
        start = operation.start
        assert start is not None
        self.calls[operation.name] += 1
        wanted = JSON

        def answer(outcome: Answer | BatonError, undo: Undo) -> None:
            try:
                written = self._written(outcome, wanted)
            except Exception as problem:
                written = self._written(fault(request, problem), wanted)
                if undo is not None:
                    undo()
                undo = None
            if not reply(written) and undo is not None:
                undo()

        try:
            given, wanted = self._forms(request)
            call = self._call(request, given, wanted, name, token)
            if request.path not in self._addresses and not token:
                self._addresses.put(request.path, found, len(request.path))
            self._start(call, start, answer)
        except (BatonError, SqsError) as problem:
            answer(_told(problem), None)
        except Exception as problem:
            answer(fault(request, problem), None)
        return True

    def _address(self, request: Request) -> tuple[Operation, str, str] | None:
        path, name, token = template(request.path)
        operation = self._routes.get(path, {}).get(request.method)
        return None if operation is None or operation.start is None else (operation, name, token)

    def _start(self, call: Call, start: Start, answer: Callable[[Answer | BatonError, Undo], None]) -> None:
        """Start an operation. If its queue is not found, refresh the catalog and retry once."""

        def answered(outcome: Answer | BatonError, undo: Undo = None) -> None:
            if isinstance(outcome, QueueDoesNotExist):
                self._tasks.spawn(self._start_again(call, start, answer, outcome))
            else:
                answer(outcome, undo)

        self._try(call, start, answered)

    def _try(self, call: Call, start: Start, finish: Finish) -> None:
        try:
            start(call, finish)
        except BatonError as problem:
            finish(problem.with_traceback(None))  # a traceback would keep the request in memory
        except Exception as problem:
            finish(call.fault(problem))

    async def _start_again(
        self, call: Call, start: Start, answer: Callable[[Answer | BatonError, Undo], None], problem: BatonError
    ) -> None:
        try:
            is_newer = await self.broker.refresh()  # the catalog can be out of date only in a cluster
        except Exception as refused:
            answer(refused if isinstance(refused, BatonError) else call.fault(refused), None)
        else:
            if is_newer:
                self._try(call, start, lambda outcome, undo=None: answer(outcome, undo))
            else:
                answer(problem, None)

    def _forms(self, request: Request) -> tuple[Codec, Codec]:
        """The formats of the request and of its answer."""
        given = self._negotiator.given(request)
        return given, self._negotiator.wanted(request, given)

    def _call(self, request: Request, given: Codec, wanted: Codec, name: str, token: str) -> Call:
        if len(request.body) > REQUEST_BYTES_MAX:
            raise TooLarge(f"The request is larger than {REQUEST_BYTES_MAX} bytes. Send fewer messages per request.")
        caller = self.access.identify(request)
        return Call(self.broker, self._rates, request, caller, given, wanted, name, token, self._tasks.spawn)

    def _written(self, outcome: Answer | BatonError, wanted: Codec) -> bytes:
        response = self.refused(outcome, wanted) if isinstance(outcome, BatonError) else _response(outcome, wanted)
        return self._heads.head(response, close=False) + response.body

    async def handle(self, request: Request) -> Response:
        wanted = JSON
        try:
            if request.path in _PAGES or request.path.startswith(problems.TYPE_PREFIX):
                return self._page(request)
            given, wanted = self._forms(request)
            operation, name, token = self._find(request)
            self.calls[operation.name] += 1
            call = self._call(request, given, wanted, name, token)
            return await self._answer(call, operation)
        except _WrongMethod as error:
            return self.refused(error, wanted, (("Allow", error.allow),))
        except (BatonError, SqsError) as error:
            return self.refused(_told(error), wanted)
        except Exception as problem:
            return self.refused(fault(request, problem), wanted)

    async def _answer(self, call: Call, operation: Operation) -> Response:
        """Run an operation and encode its answer. If no answer can be sent, the messages leased for it are released."""
        if operation.start is not None:
            return await self._answer_started(call, operation.start)
        assert operation.run is not None
        try:
            try:
                answer = await operation.run(call)
            except QueueDoesNotExist:
                if not await self.broker.refresh():  # the catalog can be out of date only in a cluster
                    raise
                answer = await operation.run(call)
            return _response(answer, call.wanted)
        except (Exception, asyncio.CancelledError):  # CancelledError: the client has disconnected
            if call.give_back is not None:
                await call.give_back()
            raise

    async def _answer_started(self, call: Call, start: Start) -> Response:
        answer: asyncio.Future[tuple[Answer | BatonError, Undo]] = asyncio.get_running_loop().create_future()

        def answered(outcome: Answer | BatonError, undo: Undo) -> None:
            if not answer.done():
                answer.set_result((outcome, undo))
            elif undo is not None:
                undo()

        self._start(call, start, answered)
        try:
            outcome, undo = await answer
        except asyncio.CancelledError:  # the client has disconnected
            if call.request.abandon is not None:
                call.request.abandon()
            if answer.done() and not answer.cancelled():  # the outcome arrived at the same time
                answered(*answer.result())
            raise
        if isinstance(outcome, BatonError):
            try:
                raise outcome
            finally:
                del outcome, answer  # a cycle between the error and its traceback would keep the request in memory
        try:
            return _response(outcome, call.wanted)
        except Exception:
            if undo is not None:
                undo()
            raise

    def refused(self, error: BatonError, codec: Codec, headers: tuple[tuple[str, str], ...] = ()) -> Response:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        return problems.respond(error, codec, headers)

    def refusal(self, target: bytes, status: int, text: str) -> Response | None:
        """The answer to a request that the HTTP server refused; None when its target is not part of this API."""
        kind = {400: InvalidInput, 403: AccessDenied, 413: TooLarge, 503: Unavailable}.get(status)
        if kind is None or not target.startswith(b"/v1/"):
            return None
        response = problems.respond(kind(text), JSON)
        response.close = True
        return response

    def _page(self, request: Request) -> Response:
        """A page about the API. It needs no credentials and has only one format."""
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
        """The operation, and the names in its path: of a queue or a job, and a receipt."""
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


def _told(problem: BatonError | SqsError) -> BatonError:
    """A request that fails authentication raises an SqsError, as for SQS. REST reports it as AccessDenied."""
    return AccessDenied(problem.message) if isinstance(problem, SqsError) else problem


def template(path: str) -> tuple[str, str, str]:
    """The path as a template, such as `/v1/queues/{queue}:purge`, and the names taken out of it, such as `orders`."""
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

"""The REST application: finds the operation of a request, runs it, and returns its answer or a problem."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from time import perf_counter, time
from typing import Any
from urllib.parse import unquote

from batonq.api.http import Reply, Request, Response
from batonq.api.http.messages import Heads
from batonq.api.rest import openapi, page, problems
from batonq.api.rest.codec import JSON, Codec, Negotiator
from batonq.api.rest.operation import Operation
from batonq.api.rest.operations import OPERATIONS
from batonq.api.rest.rates import RateBook
from batonq.api.rest.service import Call, Finish, Outcome, fault
from batonq.api.sqs.access import Access, Caller, OpenAccess, SignedAccess, cannot_change
from batonq.api.sqs.errors import SqsError
from batonq.api.started_operation import StartedOperation, answer_to
from batonq.core.catalog.entries import READ
from batonq.errors import (
    AccessDenied,
    BatonError,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    QueueDoesNotExist,
    TooLarge,
    TopicDoesNotExist,
    Unavailable,
)
from batonq.node.bounded_cache import BoundedCache
from batonq.node.broker import Broker
from batonq.node.monitoring.histogram import Histogram
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
_Tree = dict[str, "_Tree"]
_VARIABLE = re.compile(r"\{\w+\}")


class RestApp:
    """Handles requests. `begin` starts operations on messages for the HTTP server; they need no asyncio task of their
    own. `handle` runs any request, including requests from within the process. `calls` counts requests by operation,
    for metrics.
    """

    def __init__(self, broker: Broker, *, wall: Callable[[], float] = time) -> None:
        self.broker = broker
        self.access: Access = OpenAccess(broker.account) if broker.dev else SignedAccess(broker, wall, tokens=True)
        self.calls = {operation.name: 0 for operation in OPERATIONS}
        self.timers = {operation.name: Histogram() for operation in OPERATIONS}  # from request to response
        self.errors: dict[str, int] = {}  # number of errors by code
        self._negotiator = Negotiator()
        self._heads = Heads()
        self._tasks = Tasks()
        # path → an operation on messages, and the names in the path
        self._addresses: BoundedCache[str, tuple[Operation, str, str]] = BoundedCache(ADDRESSES_MAX, ADDRESS_LENGTH_MAX)
        self._rates = RateBook()
        payloads = broker.payloads
        self._request_bytes_max = max(REQUEST_BYTES_MAX, 3 * payloads.bytes_max if payloads.enabled else 0)
        self._routes: dict[str, dict[str, Operation]] = {}
        for operation in OPERATIONS:
            self._routes.setdefault(_VARIABLE.sub("{}", operation.path), {})[operation.method] = operation

    def begin(self, request: Request, reply: Reply) -> bool:
        """Start an operation on messages, which answers through `reply`. Returns False for any other request."""
        found = self._addresses.get(request.path) or self._address(request)
        if found is None or request.method != found[0].method or request.query:
            return False
        self.calls[found[0].name] += 1
        try:
            given, wanted = self._forms(request)
        except Exception as problem:
            reply(self._written(self.error_of(problem, request), JSON))
            return True

        def start(finish: Finish) -> None:
            operation, name, token = found
            call = self._call(operation, request, given, wanted, name, token)
            if request.path not in self._addresses and not token:
                self._addresses.put(request.path, found, len(request.path))
            assert operation.start is not None
            operation.start(call, finish)

        timer = self.timers[found[0].name]
        StartedOperation(self, request, start, lambda outcome: self._written(outcome, wanted), reply, timer).begin()
        return True

    def _address(self, request: Request) -> tuple[Operation, str, str] | None:
        path, name, token = template(request.path)
        operation = self._routes.get(path, {}).get(request.method)
        return None if operation is None or operation.start is None else (operation, name, token)

    # --- for operations in progress

    def error_of(self, problem: BaseException, request: Request) -> Outcome:
        """A request that fails authentication raises an SqsError, as for SQS. REST reports it as AccessDenied."""
        if isinstance(problem, SqsError):
            return AccessDenied(problem.message)
        if isinstance(problem, BatonError):
            return problem.with_traceback(None)  # a traceback would keep the request in memory
        return fault(request, problem)

    def has_no_queue(self, outcome: Outcome) -> bool:
        return isinstance(outcome, QueueDoesNotExist | TopicDoesNotExist)

    async def refresh(self) -> bool:
        return await self.broker.refresh()  # the catalog can be out of date only in a cluster

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        return self._tasks.spawn(work)

    # --- a request

    def _forms(self, request: Request) -> tuple[Codec, Codec]:
        """The formats of the request and of its answer."""
        given = self._negotiator.given(request)
        return given, self._negotiator.wanted(request, given)

    def _call(
        self,
        operation: Operation,
        request: Request,
        given: Codec,
        wanted: Codec,
        name: str,
        token: str,
        caller: Caller | None = None,
    ) -> Call:
        if len(request.body) > REQUEST_BYTES_MAX and len(request.body) > self._request_bytes_max:
            raise TooLarge(
                f"The request is larger than {self._request_bytes_max} bytes. Send fewer messages per request."
            )
        if caller is None:
            caller = self.access.identify(request)
        if caller.role == READ and operation.changes:
            raise AccessDenied(cannot_change(caller, operation.name))
        return Call(self.broker, self._rates, request, caller, given, wanted, name, token, self._tasks.spawn)

    def _written(self, outcome: Outcome, wanted: Codec) -> bytes:
        response = self._response(outcome, wanted)
        return self._heads.head(response, close=False) + response.body

    def _response(self, outcome: Outcome, wanted: Codec) -> Response:
        if isinstance(outcome, BatonError):
            return self.refused(outcome, wanted)
        if isinstance(outcome.value, Response):
            return outcome.value
        body = b"" if outcome.value is None else wanted.encode(outcome.value)
        return Response(outcome.status, body, wanted.content_type, outcome.headers)

    async def handle(self, request: Request, caller: Caller | None = None) -> Response:
        """Run a request. `caller` is who sent it, if that is known already: the request is then not authenticated."""
        wanted = JSON
        try:
            if request.path in _PAGES or request.path.startswith(problems.TYPE_PREFIX):
                return self._page(request)
            given, wanted = self._forms(request)
            operation, name, token = self._find(request)
            self.calls[operation.name] += 1
            began_s = perf_counter()
            try:
                call = self._call(operation, request, given, wanted, name, token, caller)
                return await self._answer(call, operation)
            finally:
                self.timers[operation.name].observe(perf_counter() - began_s)
        except _WrongMethod as error:
            return self.refused(error, wanted, (("Allow", error.allow),))
        except Exception as problem:
            return self._response(self.error_of(problem, request), wanted)

    async def _answer(self, call: Call, operation: Operation) -> Response:
        """Run an operation and encode its answer. If no answer can be sent, the messages leased for it are released."""
        start = operation.start
        if start is not None:
            return await answer_to(
                self,
                call.request,
                lambda finish: start(call, finish),
                lambda outcome: self._response(outcome, call.wanted),
            )
        assert operation.run is not None
        try:
            try:
                answer = await operation.run(call)
            except (QueueDoesNotExist, TopicDoesNotExist):
                if not await self.refresh():
                    raise
                answer = await operation.run(call)
            return self._response(answer, call.wanted)
        except (Exception, asyncio.CancelledError):  # CancelledError: the client has disconnected
            if call.give_back is not None:
                await call.give_back()
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


def template(path: str) -> tuple[str, str, str]:
    """The path as a template, such as `/v1/queues/{}:purge`, and the names taken out of it, such as `orders`.

    A path that no operation can have is returned unchanged if it is short, otherwise as an empty text.
    """
    parts = path.split("/", PARTS_MAX)
    count = len(parts)
    if count < 4 or parts[1] != "v1":
        return path, "", ""
    if len(path) > PATH_LENGTH_MAX:
        return "", "", ""
    branch = _TREE
    shown: list[str] = []
    names: list[str] = []
    for place in range(2, count):
        text = unquote(parts[place])
        if text in branch:
            branch = branch[text]
            shown.append(text)
            continue
        name, colon, verb = text.partition(":") if place == count - 1 else (text, "", "")
        if "{}" not in branch or not name:
            return "", "", ""
        branch = branch["{}"]
        shown.append(f"{{}}{colon}{verb}")
        names.append(name)
    first, second, *_ = *names, "", ""
    return "/v1/" + "/".join(shown), first, second


def _tree() -> _Tree:
    """The parts of the paths of all operations, without verbs: queues → {} → messages → {}."""
    tree: _Tree = {}
    for operation in OPERATIONS:
        branch = tree
        for part in operation.path.split("/")[2:]:
            text = "{}" if part.startswith("{") else part
            branch = branch.setdefault(text, {})
    return tree


_TREE = _tree()

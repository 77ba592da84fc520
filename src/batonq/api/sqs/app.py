"""The SQS application: decodes a request in either protocol, runs its operation, and encodes the outcome."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from functools import partial
from itertools import count
from time import perf_counter, time
from typing import Any

from batonq.api.http import Reply, Request, Response
from batonq.api.http.messages import SERVER_NAME, Heads
from batonq.api.sqs import protocol_json, protocol_query, sts
from batonq.api.sqs.access import Access, Caller, OpenAccess, SignedAccess, cannot_change
from batonq.api.sqs.errors import (
    ACCESS_DENIED,
    INVALID_ACTION,
    MALFORMED_INPUT,
    METHOD_NOT_ALLOWED,
    QUEUE_DOES_NOT_EXIST,
    UNKNOWN_OPERATION,
    SqsError,
    shortened,
    translated,
)
from batonq.api.sqs.operations.table import OPERATIONS, Operation
from batonq.api.sqs.service import Call, Finish, Outcome, Service, SqsSettings
from batonq.api.started_operation import StartedOperation, answer_to
from batonq.core.catalog.entries import READ
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.broker import Broker
from batonq.node.monitoring.histogram import Histogram
from batonq.node.tasks import Tasks

# These operations do not concern a single queue, so they are not valid at a queue's own URL.
NOT_AT_A_QUEUE = ("CreateQueue", "ListQueues")
REQUEST_ID_HEADER = "x-amzn-RequestId"


class SqsApp:
    """Handles requests for the HTTP server. `begin` starts operations on messages, which need no asyncio task of their
    own; `handle` runs all others. `calls` counts requests by operation, for metrics.
    """

    def __init__(
        self, broker: Broker, settings: SqsSettings | None = None, *, wall: Callable[[], float] = time
    ) -> None:
        self.settings = settings or SqsSettings()
        self.service = Service(broker, self.settings)
        self.calls = dict.fromkeys(OPERATIONS, 0)
        self.timers = {name: Histogram() for name in OPERATIONS}  # from request to response
        self.errors: dict[str, int] = {}  # number of errors by query code
        self.access: Access = OpenAccess(self.settings.account) if broker.dev else SignedAccess(broker, wall)
        self._targets = {protocol_json.TARGET_PREFIX + name.encode(): row for name, row in OPERATIONS.items()}
        self._tasks = Tasks()
        self._heads = Heads()
        self._second = -1
        self._head_start = b""
        self._request_ids = count(1)
        one = secrets.token_hex(10)
        self._request_id_start = f"{one[:8]}-{one[8:12]}-4{one[12:15]}-8{one[15:18]}-".encode()

    def begin(self, request: Request, reply: Reply) -> bool:
        """Start an operation on messages that was requested in JSON, and answer it through `reply`. Returns False for
        any other request, which `handle` must then run.
        """
        operation = self._targets.get(request.headers.get(b"x-amz-target", b""))
        if operation is None or operation.start is None or request.method != "POST":
            return False
        self.calls[operation.name] += 1
        start = partial(self._start, request, operation)
        StartedOperation(self, request, start, self._json_answer, reply, self.timers[operation.name]).begin()
        return True

    def _start(self, request: Request, operation: Operation, finish: Finish) -> None:
        call = self._call(request, operation, self.access.identify(request), True)
        assert operation.start is not None
        operation.start(self.service, call, operation.decode(request.body), finish)

    @staticmethod
    def _call(request: Request, operation: Operation, caller: Caller, as_json: bool) -> Call:
        if caller.role == READ and operation.changes:
            raise SqsError(ACCESS_DENIED, cannot_change(caller, operation.name))
        return Call(request, caller, operation.name, as_json)

    async def handle(self, request: Request) -> Response:
        target = request.headers.get(b"x-amz-target")
        if target is not None and request.method == "POST":
            return await self._handle_json(request, target)
        return await self._handle_query(request)

    async def _run(
        self, operation: Operation, call: Call, given: Any, write: Callable[[Outcome], Response]
    ) -> Response:
        """Run an operation, and measure it."""
        began_s = perf_counter()
        try:
            return await self._run_once_or_twice(operation, call, given, write)
        finally:
            self.timers[operation.name].observe(perf_counter() - began_s)

    async def _run_once_or_twice(
        self, operation: Operation, call: Call, given: Any, write: Callable[[Outcome], Response]
    ) -> Response:
        """Run an operation. A missing queue is reported only after the node has refreshed its catalog."""
        start, run = operation.start, operation.run
        if start is not None:
            return await answer_to(self, call.request, lambda finish: start(self.service, call, given, finish), write)
        assert run is not None
        try:
            return write(await run(self.service, call, given))
        except (QueueDoesNotExist, SqsError) as problem:
            if not self.has_no_queue(problem) or not await self.refresh():
                raise
        return write(await run(self.service, call, given))

    # --- for operations in progress

    def error_of(self, problem: BaseException, request: Request) -> Outcome:
        if isinstance(problem, SqsError | BatonError):
            return problem.with_traceback(None)  # a traceback would keep the request in memory
        return self.service.fault(problem, f"{request.method} {request.header(b'x-amz-target') or request.path}")

    def has_no_queue(self, outcome: object) -> bool:
        return isinstance(outcome, QueueDoesNotExist) or (
            isinstance(outcome, SqsError) and outcome.kind is QUEUE_DOES_NOT_EXIST
        )

    async def refresh(self) -> bool:
        return await self.service.broker.refresh()

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        return self._tasks.spawn(work)

    # --- JSON

    async def _handle_json(self, request: Request, target: bytes) -> Response:
        try:
            operation = self._targets.get(target)
            if operation is None:
                raise SqsError(
                    UNKNOWN_OPERATION, f"The operation {shortened(target.decode('latin-1'), 200)} is unknown."
                )
            self.calls[operation.name] += 1
            call = self._call(request, operation, self.access.identify(request), True)
            return await self._run(operation, call, operation.decode(request.body), self._json_response)
        except Exception as problem:
            return self._json_response(self.error_of(problem, request))

    def _json_response(self, outcome: Outcome) -> Response:
        if isinstance(outcome, SqsError | BatonError):
            return self._json_error(outcome)
        body = protocol_json.encode(outcome)
        return Response(200, body, protocol_json.CONTENT_TYPE, ((REQUEST_ID_HEADER, self._request_id()),))

    def _json_answer(self, outcome: Outcome) -> bytes:
        """The whole HTTP response. Within one second, response heads differ only in request id and length, so the rest
        of the head is cached.
        """
        if isinstance(outcome, SqsError | BatonError):
            response = self._json_error(outcome)
            return self._heads.head(response, close=False) + response.body
        body = protocol_json.encode(outcome)
        second = int(time())
        if second != self._second:
            self._second = second
            self._head_start = (
                f"HTTP/1.1 200 OK\r\nServer: {SERVER_NAME}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
                f"Content-Type: {protocol_json.CONTENT_TYPE}\r\n{REQUEST_ID_HEADER}: "
            ).encode()
        return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (self._head_start, self._new_id(), len(body), body)

    def _json_error(self, problem: SqsError | BatonError) -> Response:
        error = self._counted(problem)
        kind = error.kind
        return Response(
            kind.status,
            protocol_json.error_body(f"{kind.namespace}#{kind.type}", error.message),
            protocol_json.CONTENT_TYPE,
            ((REQUEST_ID_HEADER, self._request_id()), ("x-amzn-query-error", f"{kind.code};{kind.fault}")),
        )

    # --- query

    async def _handle_query(self, request: Request) -> Response:
        request_id = self._request_id()
        as_json = protocol_query.JSON_CONTENT_TYPE in request.header(b"accept")
        try:
            caller = self.access.identify(request)
            fields = _fields(request)
            action = fields.get("Action")
            if action == sts.ACTION:
                return _xml(200, sts.caller_identity(caller, request_id), request_id)
            if not action:
                return Response(404, b"<UnknownOperationException/>\n", protocol_query.CONTENT_TYPE)
            return await self._run_query(request, caller, action, fields, request_id, as_json)
        except Exception as problem:
            return self._query_response(self.error_of(problem, request), "", request_id, as_json)

    async def _run_query(
        self, request: Request, caller: Caller, action: str, fields: dict[str, str], request_id: str, as_json: bool
    ) -> Response:
        at_queue = request.path.strip("/") != ""
        operation = OPERATIONS.get(action)
        if operation is None or (at_queue and action in NOT_AT_A_QUEUE):
            raise SqsError(INVALID_ACTION, f"The action {shortened(action, 200)} is not valid for this endpoint.")
        self.calls[action] += 1
        call = self._call(request, operation, caller, False)
        given = protocol_query.decode(operation.input, fields, action)
        return await self._run(
            operation, call, given, lambda outcome: self._query_response(outcome, action, request_id, as_json)
        )

    def _query_response(self, outcome: Outcome, action: str, request_id: str, as_json: bool) -> Response:
        if isinstance(outcome, SqsError | BatonError):
            return self._query_error(outcome, request_id, as_json)
        if as_json:
            return _json(200, protocol_query.encode_json(outcome, action, request_id), request_id)
        return _xml(200, protocol_query.encode(outcome, action, request_id), request_id)

    def _query_error(self, problem: SqsError | BatonError, request_id: str, as_json: bool) -> Response:
        error = self._counted(problem)
        kind, message = error.kind, error.message
        if kind is QUEUE_DOES_NOT_EXIST and message.endswith("does not exist."):
            message = message[:-1] + " for this wsdl version."
        if as_json:
            return _json(kind.status, protocol_query.json_error_body(kind, message, request_id), request_id)
        return _xml(kind.status, protocol_query.error_body(kind, message, request_id), request_id)

    # --- both

    def _counted(self, problem: SqsError | BatonError) -> SqsError:
        """The error in the words of SQS, counted for metrics."""
        error = problem if isinstance(problem, SqsError) else translated(problem)
        self.errors[error.kind.code] = self.errors.get(error.kind.code, 0) + 1
        return error

    def _new_id(self) -> bytes:
        """A unique id in the form of a UUID, much cheaper to make than a real UUID."""
        return b"%b%012x" % (self._request_id_start, next(self._request_ids))

    def _request_id(self) -> str:
        return self._new_id().decode("ascii")


def _fields(request: Request) -> dict[str, str]:
    """The parameters of a query request, from the URL and from the form in the body."""
    if request.method == "GET" or request.method == "HEAD":
        return protocol_query.parse_form(request.query)
    if request.method != "POST":
        raise SqsError(METHOD_NOT_ALLOWED, f"The method {request.method} is not allowed here; use GET or POST.")
    try:
        text = request.body.decode("ascii")
    except UnicodeDecodeError:
        raise SqsError(MALFORMED_INPUT, "The form is not percent-encoded.") from None
    fields = protocol_query.parse_form(text)
    return {**protocol_query.parse_form(request.query), **fields} if request.query else fields


def _json(status: int, body: bytes, request_id: str) -> Response:
    return Response(status, body, protocol_query.JSON_CONTENT_TYPE, ((REQUEST_ID_HEADER, request_id),))


def _xml(status: int, body: bytes, request_id: str) -> Response:
    return Response(status, body, protocol_query.CONTENT_TYPE, ((REQUEST_ID_HEADER, request_id),))

"""The SQS application: decodes a request in either protocol, runs its operation, and encodes the outcome."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from email.utils import formatdate
from itertools import count
from time import time
from typing import Any

from msgspec import Struct

from batonq.api.http import Reply, Request, Response
from batonq.api.http.messages import SERVER_NAME, Heads
from batonq.api.sqs import protocol_json, protocol_query, sts
from batonq.api.sqs.access import Access, Caller, OpenAccess, SignedAccess
from batonq.api.sqs.errors import (
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
from batonq.api.sqs.service import Call, Service, SqsSettings
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.broker import Broker
from batonq.node.tasks import Tasks

Outcome = Struct | SqsError | BatonError
Undo = Callable[[], None] | None

# These operations do not concern a single queue, so they are not valid at a queue's own URL.
NOT_AT_A_QUEUE = ("CreateQueue", "ListQueues")
REQUEST_ID_HEADER = "x-amzn-RequestId"


class _Started:
    """An operation on messages in progress. Calling it with the operation's outcome answers the request."""

    __slots__ = ("_app", "_reply", "is_last", "operation", "request")

    def __init__(self, app: SqsApp, request: Request, operation: Operation, reply: Reply) -> None:
        self._app = app
        self._reply = reply
        self.request = request
        self.operation = operation
        self.is_last = False  # when True, a missing queue is reported instead of retried

    def __call__(self, outcome: Outcome, undo: Undo = None) -> None:
        app = self._app
        if not self.is_last and _has_no_queue(outcome):
            app.start_again(self, outcome)
            return
        try:
            answer = app.json_answer(outcome)
        except Exception as problem:
            answer = app.json_answer(app.service.fault(problem, self.operation.name))
            if undo is not None:
                undo()
            undo = None
        if not self._reply(answer) and undo is not None:
            undo()


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
        self._start(_Started(self, request, operation, reply))
        return True

    def _start(self, started: _Started) -> None:
        try:
            call = Call(started.request, self.access.identify(started.request), started.operation.name, True)
            given = started.operation.decode(started.request.body)
            assert started.operation.start is not None
            started.operation.start(self.service, call, given, started)
        except (SqsError, BatonError) as problem:
            started(problem.with_traceback(None))  # a traceback would keep the request in memory
        except Exception as problem:
            started(self.service.fault(problem, started.operation.name))

    def start_again(self, started: _Started, outcome: Outcome) -> None:
        """Refresh the catalog and retry an operation whose queue was not found. It is retried once."""
        started.is_last = True

        async def again() -> None:
            try:
                is_newer = await self.service.broker.refresh()
            except BatonError as problem:
                started(problem)
            except Exception as problem:
                started(self.service.fault(problem, started.operation.name))
            else:
                if is_newer:
                    self._start(started)
                else:
                    started(outcome)

        self._tasks.spawn(again())

    async def handle(self, request: Request) -> Response:
        target = request.headers.get(b"x-amz-target")
        if target is not None and request.method == "POST":
            return await self._handle_json(request, target)
        return await self._handle_query(request)

    async def _run(self, operation: Operation, call: Call, given: Any, encode: Callable[[Any], bytes]) -> bytes:
        """Run an operation and encode its output. A missing queue is reported only after the node has refreshed its
        catalog. Raises the operation's error.
        """
        try:
            return await self._attempt(operation, call, given, encode)
        except (QueueDoesNotExist, SqsError) as problem:
            if not _has_no_queue(problem) or not await self.service.broker.refresh():
                raise
        return await self._attempt(operation, call, given, encode)

    async def _attempt(self, operation: Operation, call: Call, given: Any, encode: Callable[[Any], bytes]) -> bytes:
        if operation.run is not None:
            return encode(await operation.run(self.service, call, given))
        answer: asyncio.Future[tuple[Outcome, Undo]] = asyncio.get_running_loop().create_future()

        def finish(outcome: Outcome, undo: Undo = None) -> None:
            if not answer.done():
                answer.set_result((outcome, undo))
            elif undo is not None:
                undo()

        assert operation.start is not None
        operation.start(self.service, call, given, finish)
        try:
            outcome, undo = await answer
        except asyncio.CancelledError:  # the client has disconnected
            if call.request.abandon is not None:
                call.request.abandon()
            if answer.done() and not answer.cancelled():  # the outcome arrived at the same time
                finish(*answer.result())
            raise
        if isinstance(outcome, SqsError | BatonError):
            try:
                raise outcome
            finally:
                del outcome, answer  # a cycle between the error and its traceback would keep the request in memory
        try:
            return encode(outcome)
        except Exception:
            if undo is not None:
                undo()
            raise

    # --- JSON

    async def _handle_json(self, request: Request, target: bytes) -> Response:
        try:
            operation = self._targets.get(target)
            if operation is None:
                raise SqsError(
                    UNKNOWN_OPERATION, f"The operation {shortened(target.decode('latin-1'), 200)} is unknown."
                )
            name = operation.name
            self.calls[name] += 1
            call = Call(request, self.access.identify(request), name, True)
            body = await self._run(operation, call, operation.decode(request.body), protocol_json.encode)
        except SqsError as error:
            return self.json_error(error)
        except BatonError as error:
            return self.json_error(translated(error))
        except Exception as problem:
            return self.json_error(self.service.fault(problem, _what(request)))
        return Response(200, body, protocol_json.CONTENT_TYPE, ((REQUEST_ID_HEADER, self._request_id()),))

    def json_answer(self, outcome: Outcome) -> bytes:
        """The whole HTTP response. Within one second, response heads differ only in request id and length, so the rest
        of the head is cached.
        """
        if isinstance(outcome, SqsError | BatonError):
            error = outcome if isinstance(outcome, SqsError) else translated(outcome)
            response = self.json_error(error)
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

    def json_error(self, error: SqsError) -> Response:
        kind = error.kind
        self._count(kind.code)
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
            body = await self._run_query(request, caller, action, fields, request_id, as_json)
        except SqsError as error:
            return self._query_error(error, request_id, as_json)
        except BatonError as error:
            return self._query_error(translated(error), request_id, as_json)
        except Exception as problem:
            return self._query_error(self.service.fault(problem, _what(request)), request_id, as_json)
        return (_json if as_json else _xml)(200, body, request_id)

    async def _run_query(
        self, request: Request, caller: Caller, action: str, fields: dict[str, str], request_id: str, as_json: bool
    ) -> bytes:
        at_queue = request.path.strip("/") != ""
        operation = OPERATIONS.get(action)
        if operation is None or (at_queue and action in NOT_AT_A_QUEUE):
            raise SqsError(INVALID_ACTION, f"The action {shortened(action, 200)} is not valid for this endpoint.")
        self.calls[action] += 1
        given = protocol_query.decode(operation.input, fields, action)
        encode = protocol_query.encode_json if as_json else protocol_query.encode
        call = Call(request, caller, action, False)
        return await self._run(operation, call, given, lambda output: encode(output, action, request_id))

    def _query_error(self, error: SqsError, request_id: str, as_json: bool) -> Response:
        kind = error.kind
        self._count(kind.code)
        message = error.message
        if kind is QUEUE_DOES_NOT_EXIST and message.endswith("does not exist."):
            message = message[:-1] + " for this wsdl version."
        if as_json:
            return _json(kind.status, protocol_query.json_error_body(kind, message, request_id), request_id)
        return _xml(kind.status, protocol_query.error_body(kind, message, request_id), request_id)

    # --- both

    def _count(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def _new_id(self) -> bytes:
        """A unique id in the form of a UUID, much cheaper to make than a real UUID."""
        return b"%b%012x" % (self._request_id_start, next(self._request_ids))

    def _request_id(self) -> str:
        return self._new_id().decode("ascii")


def _has_no_queue(outcome: object) -> bool:
    return isinstance(outcome, QueueDoesNotExist) or (
        isinstance(outcome, SqsError) and outcome.kind is QUEUE_DOES_NOT_EXIST
    )


def _what(request: Request) -> str:
    return f"{request.method} {request.header(b'x-amz-target') or request.path}"


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

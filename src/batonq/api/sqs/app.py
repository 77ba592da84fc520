"""The SQS application: a request in either protocol to an operation, and its outcome back in the same protocol."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from time import time
from typing import TypeVar

from batonq.api.http import Request, Response
from batonq.api.sqs import protocol_json, protocol_query, sts
from batonq.api.sqs.access import Access, Caller, OpenAccess, SignedAccess
from batonq.api.sqs.errors import (
    INTERNAL,
    INVALID_ACTION,
    MALFORMED_INPUT,
    METHOD_NOT_ALLOWED,
    QUEUE_DOES_NOT_EXIST,
    UNKNOWN_OPERATION,
    SqsError,
    shortened,
    translated,
)
from batonq.api.sqs.operations.table import OPERATIONS
from batonq.api.sqs.service import Call, Service, SqsSettings
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.broker import Broker

T = TypeVar("T")
logger = logging.getLogger("batonq.sqs")

# At a queue's own address these, which are not about one queue, are not valid.
NOT_AT_A_QUEUE = ("CreateQueue", "ListQueues")
REQUEST_ID_HEADER = "x-amzn-RequestId"


class SqsApp:
    """Handles requests for the HTTP server (`handle`). `calls` counts them by operation, for metrics."""

    def __init__(
        self, broker: Broker, settings: SqsSettings | None = None, *, wall: Callable[[], float] = time
    ) -> None:
        self.settings = settings or SqsSettings()
        self.service = Service(broker, self.settings)
        self.calls = dict.fromkeys(OPERATIONS, 0)
        self.errors: dict[str, int] = {}  # by query code
        self.access: Access = OpenAccess(self.settings.account) if broker.dev else SignedAccess(broker, wall)
        self._targets = {protocol_json.TARGET_PREFIX + name.encode(): row for name, row in OPERATIONS.items()}
        self._request_ids = count(1)
        one = secrets.token_hex(10)
        self._request_id_start = f"{one[:8]}-{one[8:12]}-4{one[12:15]}-8{one[15:18]}-".encode()

    async def handle(self, request: Request) -> Response:
        target = request.headers.get(b"x-amz-target")
        if target is not None and request.method == "POST":
            return await self._handle_json(request, target)
        return await self._handle_query(request)

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
            call = Call(request, request.caller or self.access.identify(request), name)
            given = operation.decode(request.body)
            body = await self._answer(call, lambda: operation.run(self.service, call, given), protocol_json.encode)
        except SqsError as error:
            return self.json_error(error)
        except BatonError as error:
            return self.json_error(translated(error))
        except Exception:
            return self.json_error(self._unexpected(request))
        return Response(200, body, protocol_json.CONTENT_TYPE, ((REQUEST_ID_HEADER, self._request_id()),))

    async def _answer(self, call: Call, run: Callable[[], Awaitable[T]], encode: Callable[[T], bytes]) -> bytes:
        """Run an operation and encode its output. If there is none, what was leased for it is the next one's."""
        try:
            return encode(await self._run(run))
        except Exception:
            if call.leased:
                await self.service.broker.give_back_found(call.leased)
            raise

    async def _run(self, run: Callable[[], Awaitable[T]]) -> T:
        """Before a queue is said not to exist, the node makes sure that it is up to date."""
        try:
            return await run()
        except QueueDoesNotExist:
            if not await self.service.broker.refresh():
                raise
        except SqsError as error:
            if error.kind is not QUEUE_DOES_NOT_EXIST or not await self.service.broker.refresh():
                raise
        return await run()

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
            caller = request.caller or self.access.identify(request)
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
        except Exception:
            return self._query_error(self._unexpected(request), request_id, as_json)
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
        call = Call(request, caller, action)
        encode = protocol_query.encode_json if as_json else protocol_query.encode
        return await self._answer(
            call,
            lambda: operation.run(self.service, call, given),
            lambda output: encode(output, action, request_id),
        )

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

    def _unexpected(self, request: Request) -> SqsError:
        return self.fault(f"{request.method} {request.header(b'x-amz-target') or request.path}")

    def fault(self, what: str) -> SqsError:
        """The error for an exception that is being handled: the log says what it is, the client only that it was."""
        logger.exception("an operation failed: %s", shortened(what, 256))
        return SqsError(INTERNAL, "An internal error occurred; see the server's log.")

    def _count(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def request_id(self) -> bytes:
        """Unique, in the form of a UUID, and much cheaper than one."""
        return b"%b%012x" % (self._request_id_start, next(self._request_ids))

    def _request_id(self) -> str:
        return self.request_id().decode("ascii")


def _fields(request: Request) -> dict[str, str]:
    """The parameters of a query: of the address, and of the form in the body."""
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

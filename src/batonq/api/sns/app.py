"""The SNS application: identifies the caller, runs the operation, and answers in XML."""

from __future__ import annotations

import logging
import uuid
from time import perf_counter

from msgspec import Struct

from batonq.api.http import Handler, Request, Response
from batonq.api.sns import protocol, topics
from batonq.api.sns.errors import SnsError, denied, fault, of_baton, of_sqs
from batonq.api.sns.operations import OF_TAGS, OPERATIONS, Operation
from batonq.api.sns.service import Call, Service
from batonq.api.sqs.access import Access, cannot_change
from batonq.api.sqs.errors import SqsError, shortened
from batonq.core.catalog.entries import READ
from batonq.errors import FAULT, BatonError, QueueDoesNotExist, TopicDoesNotExist
from batonq.node.broker import Broker
from batonq.node.monitoring.histogram import Histogram

logger = logging.getLogger("batonq.sns")

_VERSION = f"Version={protocol.VERSION}"
_ACTIONS = tuple(f"Action={name}" for name in OPERATIONS)


def is_for_sns(request: Request) -> bool:
    """Whether a request to the SQS endpoint is for SNS: by its version, or, in a URL, by its action."""
    if request.method == "POST":
        # In a form, an equals sign within a value is percent-encoded.
        return b"x-amz-target" not in request.headers and (
            _VERSION.encode() in request.body or _VERSION in request.query
        )
    if request.method != "GET":
        return False
    return _VERSION in request.query or any(part in _ACTIONS for part in request.query.split("&", 20))


class SnsApp:
    """Handles requests for the HTTP server. `calls` counts requests by operation, `timers` measures them, and `errors`
    counts errors by code, for metrics.
    """

    def __init__(self, broker: Broker, access: Access) -> None:
        self._service = Service(broker)
        self._access = access
        self.calls = dict.fromkeys(OPERATIONS, 0)
        self.timers = {name: Histogram() for name in OPERATIONS}
        self.errors: dict[str, int] = {}

    def before(self, default: Handler) -> Handler:
        """A handler for requests to the address that SNS shares with SQS: others go to `default`."""

        async def handle(request: Request) -> Response:
            return await (self.handle(request) if is_for_sns(request) else default(request))

        return handle

    async def handle(self, request: Request) -> Response:
        request_id = str(uuid.uuid4())
        try:
            return await self._answer(request, request_id)
        except SnsError as problem:
            error = problem
        except SqsError as problem:
            error = of_sqs(problem)
        except BatonError as problem:
            error = of_baton(problem)
        except Exception as problem:
            logger.error("an operation failed: %s %s", request.method, request.path[:200], exc_info=problem)
            error = fault(FAULT)
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
        return protocol.error(error, request_id)

    async def _answer(self, request: Request, request_id: str) -> Response:
        caller = self._access.identify(request)
        action, fields = protocol.read(request)
        operation = OPERATIONS.get(action)
        if operation is None:
            raise SnsError(
                "InvalidAction",
                f"The action {shortened(action, 100)} is not supported. Supported are {', '.join(OPERATIONS)}.",
            )
        self.calls[action] += 1
        if caller.role == READ and operation.changes:
            raise denied(cannot_change(caller, action))
        given = protocol.decode(operation.input, fields)
        began_s = perf_counter()
        try:
            output = await self._run(operation, Call(request, caller, action), given)
        finally:
            self.timers[action].observe(perf_counter() - began_s)
        return protocol.answer(action, output, request_id)

    async def _run(self, operation: Operation, call: Call, given: Struct) -> Struct | None:
        """Run an operation. A missing topic is reported only after the node has refreshed its catalog."""
        try:
            try:
                return await operation.run(self._service, call, given)
            except (TopicDoesNotExist, QueueDoesNotExist, SnsError) as problem:
                if (
                    isinstance(problem, SnsError) and problem.status != 404
                ) or not await self._service.broker.refresh():
                    raise
            return await operation.run(self._service, call, given)
        except BatonError as problem:
            error = of_baton(problem)
            raise (topics.resource_not_found(error) if operation.name in OF_TAGS else error) from None

"""The CloudWatch application: identifies the caller, runs the operation, and answers in the caller's protocol."""

from __future__ import annotations

import asyncio
import logging
import uuid

from batonq.api.cloudwatch.errors import CloudWatchError, invalid, unknown_operation
from batonq.api.cloudwatch.metrics import QueueHistory
from batonq.api.cloudwatch.operations import OPERATIONS
from batonq.api.cloudwatch.protocols import BODY_BYTES_MAX, is_for_cloudwatch, protocol_of
from batonq.api.http import Handler, Request, Response
from batonq.api.sqs.access import Access
from batonq.api.sqs.errors import SqsError, translated
from batonq.errors import FAULT, BatonError

logger = logging.getLogger("batonq.cloudwatch")


class CloudWatchApp:
    """Handles requests for the HTTP server. `calls` counts requests by operation, for metrics.

    Requests are decoded and answers are encoded in threads: a hundred thousand datapoints would delay other requests.
    """

    def __init__(self, history: QueueHistory, access: Access) -> None:
        self._history = history
        self._access = access
        self.calls = dict.fromkeys(OPERATIONS, 0)

    def before(self, default: Handler) -> Handler:
        """A handler for requests to the address that CloudWatch shares with SQS: others go to `default`."""

        async def handle(request: Request) -> Response:
            return await (self.handle(request) if is_for_cloudwatch(request) else default(request))

        return handle

    async def handle(self, request: Request) -> Response:
        form = protocol_of(request)
        request_id = str(uuid.uuid4())
        try:
            caller = self._access.identify(request)
            if len(request.body) > BODY_BYTES_MAX:
                raise invalid(f"The request has more than {BODY_BYTES_MAX} bytes.")
            name, given = await asyncio.to_thread(form.read, request)
            operation = OPERATIONS.get(name)
            if operation is None:
                raise unknown_operation(name)
            self.calls[name] += 1
            result = await operation(self._history, caller.account, given)
            return await asyncio.to_thread(form.answer, name, result, request_id)
        except CloudWatchError as problem:
            return form.error(problem, request_id)
        except (SqsError, BatonError) as problem:
            error = problem if isinstance(problem, SqsError) else translated(problem)
            kind = error.kind
            return form.error(CloudWatchError(kind.code, kind.type, error.message, kind.status), request_id)
        except Exception as problem:
            logger.error("an operation failed: %s %s", request.method, request.path[:200], exc_info=problem)
            fault = CloudWatchError("InternalServiceError", "InternalServiceFault", FAULT, 500)
            return form.error(fault, request_id)

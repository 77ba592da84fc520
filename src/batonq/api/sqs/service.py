"""What all operations share: the broker, the URLs and ARNs of queues, and authorisation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from batonq.api import started_operation
from batonq.api.consumer_names import agent_of, consumer_named
from batonq.api.http import Request
from batonq.api.sqs.access import Caller
from batonq.api.sqs.errors import ACCESS_DENIED, INTERNAL, INVALID_ADDRESS, SqsError, missing, shortened
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.attribute_formats.permissions import allows
from batonq.errors import FAULT, BatonError
from batonq.node.bounded_cache import BoundedCache
from batonq.node.broker import Broker, Queue

logger = logging.getLogger("batonq.sqs")

ADDRESSES_MAX = 10_000
ADDRESS_LENGTH_MAX = 512  # longer addresses are not cached
URL_LENGTH_MAX = 2_048


@dataclass(slots=True, frozen=True, kw_only=True)
class SqsSettings:
    account: str = "000000000000"
    public_url: str = ""  # empty: use the host that the client connected to


class Call:
    """One request as an operation sees it: the caller, and what came with the input."""

    __slots__ = ("as_json", "caller", "operation", "request")

    def __init__(self, request: Request, caller: Caller, operation: str, as_json: bool) -> None:
        self.request = request
        self.caller = caller
        self.operation = operation
        self.as_json = as_json  # answers in JSON, so a body that equals its JSON text is copied as it is


Outcome = Struct | SqsError | BatonError
Finish = started_operation.Finish[Outcome]


class Service:
    def __init__(self, broker: Broker, settings: SqsSettings) -> None:
        self.broker = broker
        self.settings = settings
        self._open = broker.dev
        # queue URL → account and name
        self._addresses: BoundedCache[str, tuple[str, str]] = BoundedCache(ADDRESSES_MAX, ADDRESS_LENGTH_MAX)

    @staticmethod
    def fault(problem: BaseException, what: str) -> SqsError:
        """The error for an unexpected exception. The exception goes to the log; the client only learns that there was
        one.
        """
        logger.error("an operation failed: %s", shortened(what, 256), exc_info=problem)
        return SqsError(INTERNAL, FAULT)

    def settles(self, call: Call, *, acked: int = 0, failed: int = 0, extended: bool = False) -> None:
        """Count what the caller did with messages that it held."""
        request = call.request
        self.broker.consumers.settles(
            call.caller.account,
            consumer_named(request),
            request.peer,
            agent_of(request),
            acked=acked,
            failed=failed,
            extended=extended,
        )

    # --- from an address to a queue

    def queue(self, call: Call, url: str | None) -> Queue:
        """The queue of a call. Raises an error unless the caller may run the call's operation on it."""
        if not url:
            if call.request.path.count("/") != 2:  # the PHP SDK posts to the queue's own URL
                raise missing("QueueUrl")
            url = call.request.path
        address = self._addresses.get(url) or self._address(call, url)
        queue = self.broker.queue(*address)
        if not self._open and queue.account != call.caller.account:
            self._authorize(call, queue)
        return queue

    def _address(self, call: Call, url: str) -> tuple[str, str]:
        """The account and the name in a queue URL. A bare name means the caller's own queue."""
        if "/" not in url:
            return call.caller.account, url
        try:
            # urlsplit caches its results whatever their length.
            parts = urlsplit(url).path.strip("/").split("/") if len(url) <= URL_LENGTH_MAX else []
        except ValueError:
            parts = []
        if len(parts) != 2:
            raise SqsError(INVALID_ADDRESS, f"The address {url[:256]} is not valid for this endpoint.")
        address = unquote(parts[0]), unquote(parts[1])
        self._addresses.put(url, address, len(url))
        return address

    def _authorize(self, call: Call, queue: Queue) -> None:
        # A batch needs the same permission as the single operation.
        action = call.operation.removesuffix("Batch")
        name = QueueName(queue.account, queue.name)
        if not allows(queue.attributes.get("Policy", ""), call.caller.account, action, name):
            raise SqsError(ACCESS_DENIED, f"Access to the resource {self.url(call, queue)} is denied.")

    # --- from a queue to its names

    def url(self, call: Call, queue: Queue) -> str:
        return f"{self.base_url(call.request)}/{queue.account}/{queue.name}"

    def base_url(self, request: Request) -> str:
        if self.settings.public_url:
            return self.settings.public_url.rstrip("/")
        return f"{request.scheme}://{request.header(b'host', 'localhost')}"

    @staticmethod
    def arn(queue: Queue) -> str:
        return queue_arn(queue.account, queue.name)

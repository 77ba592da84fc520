"""Baton: a self-hosted message queue of the SQS class.

Names are imported on first use, so that a program which only sends does not load the server.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers set it to True; this avoids importing `typing`

if TYPE_CHECKING:
    from batonq import client as client
    from batonq import errors as errors
    from batonq import sync as sync
    from batonq import testing as testing
    from batonq.client import BatchLimits as BatchLimits
    from batonq.client import Baton as Baton
    from batonq.client import Deduplication as Deduplication
    from batonq.client import Explanation as Explanation
    from batonq.client import Exponential as Exponential
    from batonq.client import Job as Job
    from batonq.client import Message as Message
    from batonq.client import Nack as Nack
    from batonq.client import NoRetryDelay as NoRetryDelay
    from batonq.client import Outgoing as Outgoing
    from batonq.client import Queue as Queue
    from batonq.client import Reader as Reader
    from batonq.client import RedriveEdit as RedriveEdit
    from batonq.client import RedriveFilter as RedriveFilter
    from batonq.client import Retries as Retries
    from batonq.client import Schedule as Schedule
    from batonq.client import ScheduleInfo as ScheduleInfo
    from batonq.client import Sent as Sent
    from batonq.client import Stats as Stats
    from batonq.client import Subscription as Subscription
    from batonq.client import Topic as Topic
    from batonq.client import connect as connect
    from batonq.client import telemetry as telemetry
    from batonq.client.breaker import Breaker as Breaker
    from batonq.client.breaker import BreakerOpen as BreakerOpen
    from batonq.client.buffer import BlockingSendBuffer as BlockingSendBuffer
    from batonq.client.buffer import Buffered as Buffered
    from batonq.client.buffer import BufferFull as BufferFull
    from batonq.client.buffer import SendBuffer as SendBuffer
    from batonq.client.buffer import Unsent as Unsent
    from batonq.embedded import open as open  # noqa: A004
    from batonq.embedded import open_async as open_async
    from batonq.errors import BatonError as BatonError
    from batonq.idempotency import idempotent as idempotent
    from batonq.worker import Lane as Lane
    from batonq.worker import Middleware as Middleware
    from batonq.worker import Poison as Poison
    from batonq.worker import Rate as Rate
    from batonq.worker import Retry as Retry
    from batonq.worker import RetryLater as RetryLater
    from batonq.worker import Router as Router
    from batonq.worker import SqsSource as SqsSource
    from batonq.worker import Worker as Worker

# The module of each name. To add a name after the client's, add one line here and one above.
_PLACES = {
    "client": "batonq.client",
    "errors": "batonq.errors",
    "sync": "batonq.sync",
    "testing": "batonq.testing",
    "telemetry": "batonq.client.telemetry",
    "BatonError": "batonq.errors",
    "BatchLimits": "batonq.client",
    "Baton": "batonq.client",
    "Deduplication": "batonq.client",
    "Explanation": "batonq.client",
    "Exponential": "batonq.client",
    "Job": "batonq.client",
    "Message": "batonq.client",
    "Nack": "batonq.client",
    "NoRetryDelay": "batonq.client",
    "Outgoing": "batonq.client",
    "Queue": "batonq.client",
    "Reader": "batonq.client",
    "RedriveEdit": "batonq.client",
    "RedriveFilter": "batonq.client",
    "Retries": "batonq.client",
    "Schedule": "batonq.client",
    "ScheduleInfo": "batonq.client",
    "Sent": "batonq.client",
    "Stats": "batonq.client",
    "Subscription": "batonq.client",
    "Topic": "batonq.client",
    "connect": "batonq.client",
    "Breaker": "batonq.client.breaker",
    "BreakerOpen": "batonq.client.breaker",
    "SendBuffer": "batonq.client.buffer",
    "BlockingSendBuffer": "batonq.client.buffer",
    "Buffered": "batonq.client.buffer",
    "BufferFull": "batonq.client.buffer",
    "Unsent": "batonq.client.buffer",
    "open": "batonq.embedded",
    "open_async": "batonq.embedded",
    "idempotent": "batonq.idempotency",
    "Lane": "batonq.worker",
    "Middleware": "batonq.worker",
    "Poison": "batonq.worker",
    "Rate": "batonq.worker",
    "Retry": "batonq.worker",
    "RetryLater": "batonq.worker",
    "Router": "batonq.worker",
    "SqsSource": "batonq.worker",
    "Worker": "batonq.worker",
}


if not TYPE_CHECKING:

    def __getattr__(name):
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module 'batonq' has no attribute {name!r}")
        from importlib import import_module

        module = import_module(place)
        value = module if place.endswith(f".{name}") else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})

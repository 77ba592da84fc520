"""Workers: functions that handle messages. The worker extends leases, reports failures, and loses no message.

The package uses the client and nothing of the server.
"""

from batonq.worker.app import Worker
from batonq.worker.baton_source import BatonSource
from batonq.worker.errors import DeadlineExceeded, Failure, HandlerCrashed, Poison, RetryLater, Rules
from batonq.worker.lanes import Lane, Lanes
from batonq.worker.limits import Rate
from batonq.worker.middleware import Logging, Middleware, TimeLimit, Tracing
from batonq.worker.retry import Retry
from batonq.worker.router import LEVELS, Router, level
from batonq.worker.source import Keeper, Message, Source
from batonq.worker.sqs_source import SqsSource

__all__ = [
    "LEVELS",
    "BatonSource",
    "DeadlineExceeded",
    "Failure",
    "HandlerCrashed",
    "Keeper",
    "Lane",
    "Lanes",
    "Logging",
    "Message",
    "Middleware",
    "Poison",
    "Rate",
    "Retry",
    "RetryLater",
    "Router",
    "Rules",
    "Source",
    "SqsSource",
    "TimeLimit",
    "Tracing",
    "Worker",
    "level",
]

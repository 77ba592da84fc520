"""The client: `Baton` for asyncio, `batonq.sync.Baton` for threads. It needs only msgspec and httptools."""

from batonq.client.aio.baton import Baton, connect
from batonq.client.aio.jobs import Job
from batonq.client.aio.message import Message
from batonq.client.aio.queue import Queue
from batonq.client.batches import BatchLimits
from batonq.client.models import (
    DeadLetter,
    Exponential,
    Failure,
    Nack,
    Outgoing,
    Peeked,
    RedriveEdit,
    RedriveFilter,
    Schedule,
    Sent,
    Stats,
)
from batonq.client.queue_settings import Deduplication, QueueInfo
from batonq.client.retry import Retries
from batonq.client.tracing import TraceContext

__all__ = [
    "BatchLimits",
    "Baton",
    "DeadLetter",
    "Deduplication",
    "Exponential",
    "Failure",
    "Job",
    "Message",
    "Nack",
    "Outgoing",
    "Peeked",
    "Queue",
    "QueueInfo",
    "RedriveEdit",
    "RedriveFilter",
    "Retries",
    "Schedule",
    "Sent",
    "Stats",
    "TraceContext",
    "connect",
]

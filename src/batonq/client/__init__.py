"""The client: `Baton` for asyncio, `batonq.sync.Baton` for threads. It needs only msgspec and httptools."""

from batonq.client.aio.baton import Baton, connect
from batonq.client.aio.jobs import Job
from batonq.client.aio.message import Message
from batonq.client.aio.queue import Queue
from batonq.client.aio.reader import Reader, RetainedMessage
from batonq.client.aio.schedules import AllSchedules, QueueSchedules
from batonq.client.aio.topic import Topic
from batonq.client.batches import BatchLimits
from batonq.client.models import (
    BusyGroup,
    Counters,
    DeadLetter,
    Explanation,
    Exponential,
    Failure,
    Finding,
    Flow,
    Nack,
    NoRetryDelay,
    Outgoing,
    Peeked,
    QueueCounters,
    ReaderInfo,
    RedriveEdit,
    RedriveFilter,
    Schedule,
    Sent,
    ShardCounters,
    Stats,
)
from batonq.client.queue_settings import Deduplication, QueueInfo
from batonq.client.retry import Retries
from batonq.client.schedule_models import ScheduleInfo
from batonq.client.topic_models import Match, Subscription, TopicInfo
from batonq.client.tracing import TraceContext

__all__ = [
    "AllSchedules",
    "BatchLimits",
    "Baton",
    "BusyGroup",
    "Counters",
    "DeadLetter",
    "Deduplication",
    "Explanation",
    "Exponential",
    "Failure",
    "Finding",
    "Flow",
    "Job",
    "Match",
    "Message",
    "Nack",
    "NoRetryDelay",
    "Outgoing",
    "Peeked",
    "Queue",
    "QueueCounters",
    "QueueInfo",
    "QueueSchedules",
    "Reader",
    "ReaderInfo",
    "RedriveEdit",
    "RedriveFilter",
    "RetainedMessage",
    "Retries",
    "Schedule",
    "ScheduleInfo",
    "Sent",
    "ShardCounters",
    "Stats",
    "Subscription",
    "Topic",
    "TopicInfo",
    "TraceContext",
    "connect",
]

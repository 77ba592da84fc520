"""Sources of readings: the queue statistics of a Baton client, or the attributes of any SQS endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batonq.errors import QueueDoesNotExist
from batonq.scaling.readings import Reading, combined

if TYPE_CHECKING:
    from batonq.client.models import ReaderInfo, Stats

Readings = Callable[[], Awaitable[Reading]]
_OF_BATON = ("Baton.AgeOfOldestMessage", "Baton.MessagesSent", "Baton.MessagesDeleted", "Baton.Paused")
_PAUSES_DELIVERY = ("delivery", "both")


def reading_of(stats: Stats) -> Reading:
    """A queue whose delivery is paused has nothing that more workers could take."""
    paused = stats.paused in _PAUSES_DELIVERY
    return Reading(
        visible=0 if paused else stats.visible,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        oldest_age_s=None if paused else stats.oldest_age_seconds,
        sent=stats.sent + stats.arrived,
        deleted=stats.deleted,
    )


def stats_readings(baton: Any, queues: Sequence[str]) -> Readings:
    """Readings through an async client (`batonq.Baton`), with the queues that the same workers serve as one. A queue
    that does not exist yet counts as empty, unless none of them exists.
    """

    async def read() -> Reading:
        found = await asyncio.gather(*(baton.queue(name).stats() for name in queues), return_exceptions=True)
        problems = [each for each in found if isinstance(each, BaseException)]
        missing = [problem for problem in problems if isinstance(problem, QueueDoesNotExist)]
        if problems and (len(missing) < len(problems) or len(missing) == len(queues)):
            raise problems[0]
        return combined(reading_of(each) for each in found if not isinstance(each, BaseException))

    return read


def group_readings(baton: Any, queues: Sequence[str], group: str) -> Readings:
    """Readings of a reader group through an async client: the depth is the group's lag."""

    async def read() -> Reading:
        found = await asyncio.gather(*(baton.queue(name).reader(group).info() for name in queues))
        return combined(reading_of_group(each) for each in found)

    return read


def reading_of_group(info: ReaderInfo) -> Reading:
    return Reading(
        visible=info.lag_messages,
        oldest_age_s=info.lag_seconds if info.lag_messages else None,
        lag=info.lag_messages,
        shards=len(info.shards),
    )


def sqs_readings(client: Any, queue_urls: Sequence[str]) -> Readings:
    """Readings through a boto3 SQS client, for any SQS endpoint. Baton is also asked for the age of the oldest message
    and for its totals; an endpoint that does not know these attributes is not asked again.
    """
    names = ["All", *_OF_BATON]

    def attributes(url: str) -> Mapping[str, str]:
        try:
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        except Exception as problem:
            if names == ["All"] or _code(problem) != "InvalidAttributeName":
                raise
            del names[1:]
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        found: Mapping[str, str] = answer["Attributes"]
        return found

    def read_all() -> Reading:
        return combined(from_attributes(attributes(url)) for url in queue_urls)

    async def read() -> Reading:
        return await asyncio.to_thread(read_all)  # boto3 blocks

    return read


def from_attributes(attributes: Mapping[str, str]) -> Reading:
    """A reading from the attributes of GetQueueAttributes."""
    paused = attributes.get("Baton.Paused") in _PAUSES_DELIVERY
    age = None if paused else attributes.get("Baton.AgeOfOldestMessage")
    return Reading(
        visible=0 if paused else int(attributes.get("ApproximateNumberOfMessages", 0)),
        in_flight=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
        delayed=int(attributes.get("ApproximateNumberOfMessagesDelayed", 0)),
        oldest_age_s=None if age is None else float(age),
        sent=_total(attributes.get("Baton.MessagesSent")),
        deleted=_total(attributes.get("Baton.MessagesDeleted")),
    )


def _code(problem: Exception) -> str:
    """The code of an error response that boto3 raises; empty for any other error."""
    response = getattr(problem, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _total(text: str | None) -> int | None:
    return None if text is None else int(text)

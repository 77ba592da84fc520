"""A topic of the client: publish, and manage its subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from msgspec import UNSET, UnsetType

from batonq.client import codec
from batonq.client.aio.queue import Queue
from batonq.client.models import AttributeValue, Outgoing, Peeked, Priority, Sent
from batonq.client.topic_models import (
    FilterPolicy,
    FilterScope,
    Match,
    Matches,
    Subscription,
    SubscriptionPage,
    TopicInfo,
)
from batonq.errors import BatonError, NotFound, TopicDoesNotExist

if TYPE_CHECKING:
    from batonq.client.aio.baton import Baton


class Topic:
    """One topic of a Baton. `baton.topic(name)` creates it without a request."""

    def __init__(self, baton: Baton, name: str) -> None:
        self.name = name
        self._calls = baton._calls
        self._path = f"/v1/topics/{quote(name, safe='')}"
        self._outlet = Queue(baton, name, self._path)  # messages are published as they are sent to a queue

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    # --- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        body: Any,
        *,
        dedup_key: str | None = None,
        group: str | None = None,
        priority: Priority | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        max_receives: int | None = None,
        subject: str | None = None,
        batch: bool = True,
    ) -> Sent:
        """Publish a message: any JSON value, or bytes. Every subscribed queue whose filter matches gets a copy.

        When this returns, every copy is stored durably. Publishes of many tasks at once share one request, unless
        `batch` is False. A retry does not publish a second message. Subscriptions without raw delivery show the
        `subject` in the envelope.
        """
        outgoing = Outgoing(body, dedup_key, group, None, None, priority, attributes, max_receives)
        outgoing.subject = subject
        return await self._outlet._send_one(outgoing, batch)

    async def publish_many(
        self, messages: Iterable[Outgoing | Any], *, producer: tuple[str, int] | None = None
    ) -> list[Sent | BatonError]:
        """Publish any number of messages, bodies or `Outgoing`s, in order. Returns one result per message, as
        `Queue.send_many` does.
        """
        return await self._outlet.send_many(messages, producer=producer)

    # --- subscriptions --------------------------------------------------------------------------

    async def subscribe(
        self,
        queue: str,
        *,
        filter: FilterPolicy | None = None,
        scope: FilterScope = "MessageAttributes",
        raw: bool = True,
        dead_letter_queue: str | None = None,
    ) -> Subscription:
        """Subscribe a queue. If it is subscribed already in the same way, that is not an error.

        `filter` is a filter policy of SNS; it compares the message attributes, or with the scope `MessageBody` the keys
        of the JSON body. With `raw` the queue gets messages as they are published; without, in the envelope of SNS.
        Copies that the queue refuses go to `dead_letter_queue`.
        """
        spec: dict[str, Any] = {"queue": queue, "rawDelivery": raw}
        if filter is not None:
            spec |= {"filterPolicy": filter, "filterPolicyScope": scope}
        if dead_letter_queue is not None:
            spec["deadLetterQueue"] = dead_letter_queue
        reply = await self._calls.request("POST", f"{self._path}/subscriptions", spec)
        return codec.decode(Subscription, reply.answer)

    async def subscriptions(self) -> AsyncIterator[Subscription]:
        """The subscriptions of the topic, oldest first."""
        cursor: str | None = ""
        while cursor is not None:
            query = f"?{urlencode({'cursor': cursor})}" if cursor else ""
            reply = await self._calls.request("GET", f"{self._path}/subscriptions{query}")
            page = codec.decode(SubscriptionPage, reply.answer)
            for found in page.subscriptions:
                yield found
            cursor = page.next_cursor or None

    async def subscription(self, subscription_id: str) -> Subscription:
        """The subscription with this id."""
        reply = await self._calls.request("GET", self._address(subscription_id))
        return codec.decode(Subscription, reply.answer)

    async def update_subscription(
        self,
        subscription_id: str,
        *,
        filter: FilterPolicy | UnsetType | None = UNSET,
        scope: FilterScope | UnsetType = UNSET,
        raw: bool | UnsetType = UNSET,
        dead_letter_queue: str | UnsetType | None = UNSET,
    ) -> Subscription:
        """Change some settings of a subscription; None removes the filter or the dead-letter queue."""
        given = {
            "filterPolicy": filter,
            "filterPolicyScope": scope,
            "rawDelivery": raw,
            "deadLetterQueue": dead_letter_queue,
        }
        changes = {name: value for name, value in given.items() if value is not UNSET}
        reply = await self._calls.request("PATCH", self._address(subscription_id), changes)
        return codec.decode(Subscription, reply.answer)

    async def unsubscribe(self, subscription_id: str) -> None:
        """Remove a subscription. Copies that are in the queue already stay there."""
        await self._calls.request("DELETE", self._address(subscription_id), done_before=(NotFound, TopicDoesNotExist))

    def _address(self, subscription_id: str) -> str:
        return f"{self._path}/subscriptions/{quote(subscription_id, safe='')}"

    async def match(self, body: Any = None, attributes: Mapping[str, AttributeValue] | None = None) -> list[Match]:
        """Which subscriptions would get a message, and why the others would not. Nothing is published."""
        reply = await self._calls.request("POST", f"{self._path}:match", {"body": body, "attributes": attributes or {}})
        return codec.decode(Matches, reply.answer).subscriptions

    # --- the topic itself -----------------------------------------------------------------------

    async def waiting(self, *, after: int = 0, limit: int = 10) -> list[Peeked]:
        """The copies that wait in the topic because their queue is full, paused or out of reach, in order of arrival.
        `why` of each says for what. `after` is a sequence number.
        """
        return await self._outlet.peek(after=after, limit=limit)

    async def info(self) -> TopicInfo:
        """The topic's settings."""
        reply = await self._calls.request("GET", self._path)
        return codec.decode(TopicInfo, reply.answer)

    async def update(
        self,
        *,
        display_name: str | UnsetType | None = UNSET,
        retention: int | UnsetType | None = UNSET,
        content_based_deduplication: bool | UnsetType = UNSET,
        tags: Mapping[str, str] | UnsetType = UNSET,
    ) -> TopicInfo:
        """Change some of the topic's settings; the others do not change. None restores the default."""
        given = {
            "displayName": display_name,
            "retentionSeconds": retention,
            "contentBasedDeduplication": content_based_deduplication,
            "tags": tags,
        }
        changes = {name: value for name, value in given.items() if value is not UNSET}
        reply = await self._calls.request("PATCH", self._path, changes)
        return codec.decode(TopicInfo, reply.answer)

    async def delete(self) -> None:
        """Delete the topic and its subscriptions. Messages that are in the queues already stay there."""
        await self._calls.request("DELETE", self._path, done_before=(TopicDoesNotExist,))

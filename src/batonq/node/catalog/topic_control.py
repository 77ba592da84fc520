"""Topics and subscriptions, which the catalog holds: finds them, and changes them.

To publish, call `Broker.send` with the topic in place of the queue. A change is committed in the catalog, then told to
the topic's shard and committed there, and then answered, like a change of a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from batonq.attribute_formats.arns import QueueName
from batonq.core.catalog.machine import Catalog
from batonq.core.catalog.topic_entries import SubscriptionEntry, TopicEntry
from batonq.core.records import TOPICS_VERSION
from batonq.errors import InvalidInput
from batonq.node.catalog.queue_control import Control

Topic = TopicEntry


class TopicControl(Control):
    # --- finding -------------------------------------------------------------------------------

    def topic(self, account: str, name: str) -> Topic:
        """Raises TopicDoesNotExist."""
        return self._catalog.current().topic_by_name(account, name)

    def topic_by_number(self, number: int) -> Topic | None:
        """The topic of this number, if it still exists."""
        return self._catalog.current().tables.topics.get(number)

    def topics(self, account: str, prefix: str = "") -> list[Topic]:
        """An account's topics, sorted by name."""
        return self._catalog.current().list_topics(account, prefix)

    def subscription(self, arn: str) -> SubscriptionEntry:
        """Raises NotFound."""
        return self._catalog.current().find_subscription(arn)

    def subscriptions(self, account: str, topic: Topic | None = None) -> list[SubscriptionEntry]:
        """The subscriptions of a topic, or of all topics of an account."""
        catalog = self._catalog.current()
        return catalog.account_subscriptions(account) if topic is None else catalog.list_subscriptions(topic.number)

    def subscription_of(self, topic: int, queue: int) -> SubscriptionEntry | None:
        """The subscription of a queue to a topic, by their numbers; None if there is none."""
        entry = self._catalog.current().queues.get(queue)
        return self.subscription_to(topic, entry.key) if entry is not None else None

    def subscription_to(self, topic: int, queue: QueueName) -> SubscriptionEntry | None:
        """The subscription of a queue, which may have been deleted, to a topic; None if there is none."""
        tables = self._catalog.current().tables
        number = tables.by_endpoint.get((topic, queue))
        return tables.subscriptions[number] if number is not None else None

    def subscriptions_of_queue(self, queue: QueueName) -> list[SubscriptionEntry]:
        """The subscriptions that deliver to a queue, oldest first."""
        tables = self._catalog.current().tables
        entries = (tables.subscriptions[number] for number in sorted(tables.of_queue.get(queue, ())))
        return [entry for entry in entries if entry.queue == queue]

    # --- changing ------------------------------------------------------------------------------

    async def create_topic(
        self, account: str, name: str, attributes: Mapping[str, str], tags: Mapping[str, str], rest: bool = False
    ) -> Topic:
        """Create a topic, or return the existing one. `rest`: a FIFO topic may have any name."""
        older = await self._catalog.too_old(TOPICS_VERSION)
        if older:
            raise InvalidInput(f"Topics cannot be created yet. {older}")

        async def create() -> Topic:
            changed = await self._change(Catalog.create_topic, account, name, attributes, tags, any_name=rest)
            await self._reach_all(changed.result, changed.version)
            return changed.result

        return await self._uncancelled(create())

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its subscriptions. Copies that wait for a queue are removed gradually afterwards."""

        async def delete() -> None:
            await self._change(Catalog.delete_topic, topic.number)

        await self._uncancelled(delete())

    async def set_topic_attributes(self, topic: Topic, changes: Mapping[str, str]) -> None:
        """Change attributes; an empty value removes one."""

        async def change() -> None:
            changed = await self._change(Catalog.set_topic_attributes, topic.number, changes)
            await self._reach_all(changed.result, changed.version)

        await self._uncancelled(change())

    async def tag_topic(self, topic: Topic, add: Mapping[str, str], remove: Sequence[str] = ()) -> None:
        """Add or change tags, then remove some."""
        await self._catalog.change(Catalog.tag_topic, topic.number, add, list(remove))

    async def subscribe(
        self, topic: Topic, queue_arn: str, attributes: Mapping[str, str], arn_uuid: str
    ) -> SubscriptionEntry:
        """Subscribe a queue, or return the existing subscription. `arn_uuid` becomes the last part of its ARN.

        Attributes have SNS's names: RawMessageDelivery, FilterPolicy, FilterPolicyScope, RedrivePolicy.
        """

        async def change() -> SubscriptionEntry:
            changed = await self._change(Catalog.subscribe, topic.number, queue_arn, attributes, arn_uuid)
            await self._reach_all(topic, changed.version)
            return changed.result

        return await self._uncancelled(change())

    async def unsubscribe(self, subscription: SubscriptionEntry) -> None:
        """Remove a subscription. Copies that wait for its queue are removed gradually afterwards."""
        await self._change_subscription(subscription, Catalog.unsubscribe)

    async def set_subscription_attributes(self, subscription: SubscriptionEntry, changes: Mapping[str, str]) -> None:
        """Change attributes; an empty value removes one."""
        await self._change_subscription(subscription, Catalog.set_subscription_attributes, changes)

    async def _change_subscription(
        self, subscription: SubscriptionEntry, command: Callable[..., SubscriptionEntry], *arguments: object
    ) -> None:
        async def change() -> None:
            changed = await self._change(command, subscription.number, *arguments)
            topic = self.topic_by_number(subscription.topic)
            if topic is not None:
                await self._reach_all(topic, changed.version)

        await self._uncancelled(change())

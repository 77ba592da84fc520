"""Topics and subscriptions: the catalog's commands, and what each shard must know of them."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace

from batonq.attribute_formats.arns import QueueName, parse_queue_arn
from batonq.attribute_formats.permissions import allows_sends
from batonq.attribute_formats.topic_arns import TopicName, parse_subscription_arn
from batonq.core.catalog.entries import Link
from batonq.core.catalog.names import FIFO_SUFFIX, check_account, is_text, is_word
from batonq.core.catalog.placement import Placement
from batonq.core.catalog.tags import check_tags
from batonq.core.catalog.topic_entries import SubscriptionEntry, TopicEntry
from batonq.core.policy import MISSING_QUEUE
from batonq.core.topics.filters import parse_filter
from batonq.core.topics.subscription import Subscription
from batonq.errors import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidInput,
    NotFound,
    OverLimit,
    QueueDoesNotExist,
    TopicDoesNotExist,
    TopicExists,
)
from batonq.queue_attributes import ACCESS_POLICY, RETENTION_MAX_S
from batonq.topic_attributes import (
    ATTRIBUTES_SCOPE,
    FIFO_ONLY,
    FIFO_TOPIC,
    FILTER_POLICY,
    FILTER_SCOPE,
    REDRIVE_POLICY,
    RETENTION,
    RETENTION_MIN_S,
    SUBSCRIPTION_CHOICES,
    SUBSCRIPTION_TEXTS,
    TEXT_BYTES_MAX,
    TOPIC_CHOICES,
    TOPIC_TEXTS,
    TRUTH,
)

TOPIC_NAME_LENGTH_MAX = 256
TOPICS_MAX = 100_000
SUBSCRIPTIONS_MAX = 200_000
TOPIC_SUBSCRIPTIONS_MAX = 10_000  # of one topic: all copies of a publish are written in one frame
QUEUE_SUBSCRIPTIONS_MAX = 10_000  # of one queue: a change of the queue writes one record per subscription
UUID_LENGTH_MAX = 64


class TopicCommands(Placement):
    open_queues = False  # every account may send to every queue

    # --- reading -------------------------------------------------------------------------------

    def topic_by_number(self, number: int) -> TopicEntry:
        entry = self.tables.topics.get(number)
        if entry is None:
            raise TopicDoesNotExist
        return entry

    def topic_by_name(self, account: str, name: str) -> TopicEntry:
        entry = self.tables.by_name.get(TopicName(account, name))
        if entry is None:
            raise TopicDoesNotExist(f"Topic {name[:256]} does not exist.")
        return entry

    def list_topics(self, account: str, prefix: str = "") -> list[TopicEntry]:
        """An account's topics whose names start with `prefix`, sorted by name."""
        names = self.tables.names.get(account, [])
        result = []
        for at in range(bisect_left(names, prefix), len(names)):
            if not names[at].startswith(prefix):
                break
            result.append(self.tables.by_name[TopicName(account, names[at])])
        return result

    def find_subscription(self, arn: str) -> SubscriptionEntry:
        """The subscription of an ARN. Raises NotFound."""
        parsed = parse_subscription_arn(arn)
        number = self.tables.by_uuid.get(parsed) if parsed is not None else None
        if number is None:
            raise NotFound(f"Subscription {arn[:512]} does not exist.")
        return self.tables.subscriptions[number]

    def list_subscriptions(self, topic: int) -> list[SubscriptionEntry]:
        """The subscriptions of a topic, oldest first."""
        return [self.tables.subscriptions[number] for number in self.tables.of_topic.get(topic, ())]

    def account_subscriptions(self, account: str) -> list[SubscriptionEntry]:
        """The subscriptions to an account's topics, oldest first within each topic."""
        return [entry for topic in self.list_topics(account) for entry in self.list_subscriptions(topic.number)]

    def reconcile_subscriptions(
        self, shard: int, held: Mapping[int, Mapping[int, int]], only: int = 0
    ) -> list[tuple[int, int, Subscription | None]]:
        """What to tell a shard that holds these subscriptions (topic → number → version), about all topics or only one:
        topic, number, and the subscription to set; None: to remove.
        """
        told: list[tuple[int, int, Subscription | None]] = []
        for topic in [only] if only else sorted(self.tables.topics):
            if topic not in self.tables.topics or self.tables.topics[topic].shard != shard:
                continue
            have, wanted = held.get(topic, {}), self.tables.of_topic[topic]
            for number in wanted:
                if have.get(number) != self.tables.subscriptions[number].policy_version:
                    told.append((topic, number, self.tables.subscriptions[number].policy))
            told += [(topic, number, None) for number in sorted(have.keys() - set(wanted))]
        return told

    # --- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        now: int,
        *,
        any_name: bool = False,
    ) -> TopicEntry:
        """Create a topic, or return the existing one. With `any_name` the name of a FIFO topic need not end in
        .fifo.
        """
        now = self._time(now)
        fifo = attributes.get(FIFO_TOPIC, "").lower() == "true"
        check_topic_name(name, fifo, any_name)
        check_account(account)
        values = topic_attributes(attributes, {}, fifo=fifo)
        existing = self.tables.by_name.get(TopicName(account, name))
        if existing is not None:
            different = [key for key, value in values.items() if existing.attributes.get(key, "") != value]
            if existing.fifo != fifo or different:
                named = different[0] if different else FIFO_TOPIC
                raise TopicExists(f"Topic {name} already exists with a different value of {named}.")
            return existing
        check_tags(f"topic {name}", tags)
        if len(self.tables.topics) >= TOPICS_MAX or self.next_queue >= MISSING_QUEUE:
            raise OverLimit(f"The limit of {len(self.tables.topics)} topics is reached. Delete a topic first.")
        number = self.next_queue
        entry = TopicEntry(
            number=number,
            account=account,
            name=name,
            fifo=fifo,
            attributes=values,
            tags=dict(tags),
            created_ms=now,
            modified_ms=now,
            shard=self._choose_shards(1, {})[0],
            policy_version=self.version + 1,
        )
        self._write("topic", number, entry.record(), now)
        return self.tables.topics[number]

    def delete_topic(self, number: int, now: int) -> TopicEntry:
        """Delete a topic and its subscriptions; returns its last entry. The number is never reused."""
        entry = self.topic_by_number(number)
        self._write("topic", number, None, self._time(now))
        return entry

    def set_topic_attributes(self, number: int, changes: Mapping[str, str], now: int) -> TopicEntry:
        """Change attributes; an empty value removes one."""
        entry = self.topic_by_number(number)
        values = topic_attributes(changes, entry.attributes, fifo=entry.fifo)
        if values == entry.attributes:
            return entry
        now = self._time(now)
        return self._change_topic(replace(entry, attributes=values, modified_ms=now), now)

    def tag_topic(self, number: int, add: Mapping[str, str], remove: Iterable[str], now: int) -> TopicEntry:
        """Add or change tags, then remove some."""
        entry = self.topic_by_number(number)
        gone = set(remove)
        tags = {key: value for key, value in {**entry.tags, **add}.items() if key not in gone}
        check_tags(f"topic {entry.name}", {**tags, **add})
        return self._change_topic(replace(entry, tags=tags), self._time(now))

    def _change_topic(self, entry: TopicEntry, now: int) -> TopicEntry:
        old = self.tables.topics[entry.number]
        if entry == old:
            return old
        if entry.policy != old.policy:
            entry = replace(entry, policy_version=self.version + 1)
        self._write("topic", entry.number, entry.record(), now)
        return self.tables.topics[entry.number]

    # --- subscriptions -------------------------------------------------------------------------

    def subscribe(
        self, topic: int, queue_arn: str, attributes: Mapping[str, str], uuid: str, now: int
    ) -> SubscriptionEntry:
        """Subscribe a queue to a topic, or return the existing subscription. The caller makes the UUID."""
        now = self._time(now)
        entry = self.topic_by_number(topic)
        target = parse_queue_arn(queue_arn)
        if target is None:
            raise InvalidInput(f"{queue_arn[:512]!r} is not the ARN of a queue, which is what the protocol sqs needs.")
        values = subscription_attributes(attributes, {})
        number = self.tables.by_endpoint.get((topic, target))
        if number is not None:
            existing = self.tables.subscriptions[number]
            different = [key for key, value in values.items() if existing.attributes.get(key, "") != value]
            if different:
                raise InvalidInput(
                    f"Queue {target.name} is already subscribed to topic {entry.name}, with a different "
                    f"{different[0]}. Change the attributes of that subscription instead."
                )
            return existing
        queue = self.by_name.get(target)
        if queue is None:
            raise QueueDoesNotExist(f"Queue {target.name} does not exist.")
        if queue.fifo and not entry.fifo:
            raise InvalidInput(f"Queue {target.name} is a FIFO queue, so only FIFO topics can deliver to it.")
        if not is_word(uuid, UUID_LENGTH_MAX):
            raise InvalidInput(f"{uuid[:64]!r} cannot be the last part of a subscription's ARN.")
        dead_letter = self._dead_letter(values, entry, target, queue.fifo, None)
        self._check_room(entry, [target, *([dead_letter] if dead_letter else [])])
        if len(self.tables.of_topic[topic]) >= TOPIC_SUBSCRIPTIONS_MAX:
            raise OverLimit(f"Topic {entry.name} has {TOPIC_SUBSCRIPTIONS_MAX} subscriptions, which is the maximum.")
        number = self.tables.next_subscription
        subscription = SubscriptionEntry(
            number=number,
            topic=topic,
            topic_name=entry.key,
            uuid=uuid,
            queue=target,
            attributes=values,
            created_ms=now,
            link=self._deliverable(entry.account, target),
            queue_fifo=queue.fifo,
            dead_letter=dead_letter,
            dead_letter_link=self._link(dead_letter),
            policy_version=self.version + 1,
        )
        self._write("subscription", number, subscription.record(), now)
        return self.tables.subscriptions[number]

    def _check_room(self, topic: TopicEntry, queues: Iterable[QueueName]) -> None:
        if len(self.tables.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise OverLimit(f"The limit of {SUBSCRIPTIONS_MAX} subscriptions is reached. Remove some first.")
        for queue in queues:
            if len(self.tables.of_queue.get(queue, ())) >= QUEUE_SUBSCRIPTIONS_MAX:
                raise OverLimit(
                    f"Queue {queue.name} has {QUEUE_SUBSCRIPTIONS_MAX} subscriptions, which is the maximum, so topic "
                    f"{topic.name} cannot have another one."
                )

    def unsubscribe(self, number: int, now: int) -> SubscriptionEntry:
        """Remove a subscription; returns its last entry."""
        entry = self._subscription(number)
        self._write("subscription", number, None, self._time(now))
        return entry

    def set_subscription_attributes(self, number: int, changes: Mapping[str, str], now: int) -> SubscriptionEntry:
        """Change attributes; an empty value removes one. Neither the queue nor a dead-letter queue that stays as it is
        need exist.
        """
        entry = self._subscription(number)
        topic = self.tables.topics[entry.topic]
        values = subscription_attributes(changes, entry.attributes)
        dead_letter = self._dead_letter(values, topic, entry.queue, entry.queue_fifo, entry.dead_letter)
        if dead_letter is not None and dead_letter not in entry.queues:
            self._check_room(topic, [dead_letter])
        changed = replace(entry, attributes=values, dead_letter=dead_letter, dead_letter_link=self._link(dead_letter))
        return self._change_subscription(changed, self._time(now))

    def _subscription(self, number: int) -> SubscriptionEntry:
        entry = self.tables.subscriptions.get(number)
        if entry is None:
            raise NotFound("The subscription does not exist.")
        return entry

    def _change_subscription(self, entry: SubscriptionEntry, now: int) -> SubscriptionEntry:
        old = self.tables.subscriptions[entry.number]
        if entry == old:
            return old
        if entry.policy != old.policy:
            entry = replace(entry, policy_version=self.version + 1)
        self._write("subscription", entry.number, entry.record(), now)
        return self.tables.subscriptions[entry.number]

    def _dead_letter(
        self,
        values: Mapping[str, str],
        topic: TopicEntry,
        subscribed: QueueName,
        fifo: bool,
        current: QueueName | None,
    ) -> QueueName | None:
        """The queue for copies that the subscription's queue refuses. The `current` one may have been deleted."""
        text = values.get(REDRIVE_POLICY)
        if not text:
            return None
        try:
            policy = json.loads(text)
        except (ValueError, RecursionError):
            policy = None
        arn = policy.get("deadLetterTargetArn") if isinstance(policy, dict) else None
        name = parse_queue_arn(arn) if isinstance(arn, str) else None
        if name is None or len(policy) != 1:
            raise InvalidAttributeValue(
                f'{REDRIVE_POLICY} must be {{"deadLetterTargetArn": "ARN of a queue"}}, not {text[:256]}.'
            )
        if name == current:
            return name
        if name == subscribed:
            raise InvalidAttributeValue(f"Queue {name.name} cannot be the dead-letter queue of its own subscription.")
        queue = self.by_name.get(name)
        if queue is None:
            raise InvalidAttributeValue(f"The dead-letter queue {name.name} does not exist.")
        if name.account != topic.account:
            raise InvalidAttributeValue("The dead-letter queue must belong to the account of the topic.")
        if queue.fifo != fifo:
            kind = "FIFO queue" if fifo else "standard queue"
            raise InvalidAttributeValue(
                f"The dead-letter queue {name.name} must be a {kind}, like the subscription's queue."
            )
        return name

    def _deliverable(self, account: str, name: QueueName) -> Link | None:
        """A subscribed queue in its current state; None if it does not exist, or if it belongs to another account than
        the topic and does not allow that account to send.
        """
        link = self._link(name)
        if link is None or name.account == account or self.open_queues:
            return link
        policy = self.by_name[name].attributes.get(ACCESS_POLICY, "")
        return link if allows_sends(policy, account, name) else None

    def _refresh_subscriptions(self, queue: QueueName, now: int) -> None:
        """Update the subscriptions that deliver or dead-letter to a queue, after it was created, deleted or moved, or
        its access policy has changed.
        """
        for number in sorted(self.tables.of_queue.get(queue, ())):
            entry = self.tables.subscriptions[number]
            link = self._deliverable(entry.topic_name.account, entry.queue)
            changed = replace(entry, link=link, dead_letter_link=self._link(entry.dead_letter))
            target = self.by_name.get(entry.queue)
            if target is not None and target.fifo != entry.queue_fifo:
                changed = replace(changed, queue_fifo=target.fifo)
            self._change_subscription(changed, now)


def check_topic_name(name: str, fifo: bool, any_name: bool) -> None:
    """Raises InvalidInput. With `any_name` the name of a FIFO topic need not end in .fifo."""
    stem = name.removesuffix(FIFO_SUFFIX)
    if fifo and stem == name and not any_name:
        raise InvalidInput(f"The name of a FIFO topic must end in {FIFO_SUFFIX}.")
    if not fifo and stem != name:
        raise InvalidInput(f"Only the name of a FIFO topic can end in {FIFO_SUFFIX}. Set {FIFO_TOPIC} to true.")
    if not is_word(stem, TOPIC_NAME_LENGTH_MAX - (len(FIFO_SUFFIX) if stem != name else 0)):
        raise InvalidInput(
            f"The name of a topic must have 1 to {TOPIC_NAME_LENGTH_MAX} letters, digits, hyphens and underscores."
        )


def topic_attributes(changes: Mapping[str, str], current: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    """The attributes of a topic after `changes` to `current`. Raises InvalidAttributeName, InvalidAttributeValue."""
    result = dict(current)
    for name, value in changes.items():
        if name == FIFO_TOPIC:
            if (value.lower() == "true") != fifo or value.lower() not in TRUTH:
                raise InvalidAttributeValue(f"{FIFO_TOPIC} cannot be changed after the topic was created.")
            continue
        if name in FIFO_ONLY and not fifo and value.lower() not in ("", "false"):
            raise InvalidAttributeName(f"{name} can be set only on a FIFO topic.")
        if name == RETENTION and value:
            if not (value.isascii() and value.isdigit() and len(value) <= 9):
                raise InvalidAttributeValue(f"{RETENTION} must be a number of seconds, not {value[:64]!r}.")
            if not RETENTION_MIN_S <= int(value) <= RETENTION_MAX_S:
                raise InvalidAttributeValue(f"{RETENTION} must be {RETENTION_MIN_S} to {RETENTION_MAX_S} seconds.")
            value = str(int(value))
        elif name in TOPIC_CHOICES:
            value = _choice(name, value, TOPIC_CHOICES[name])
        elif name not in TOPIC_TEXTS and name != RETENTION:
            raise InvalidAttributeName(f"{name[:256]!r} is not an attribute of a topic that can be set.")
        _put(result, name, value)
    return result


def subscription_attributes(changes: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a subscription after `changes` to `current`. Raises InvalidInput. It does not look whether a
    dead-letter queue exists.
    """
    result = dict(current)
    for name, value in changes.items():
        if name in SUBSCRIPTION_CHOICES:
            value = _choice(name, value, SUBSCRIPTION_CHOICES[name])
        elif name not in SUBSCRIPTION_TEXTS:
            raise InvalidAttributeName(f"{name[:256]!r} is not an attribute of a subscription that can be set.")
        if name in (FILTER_POLICY, REDRIVE_POLICY) and value.strip() in ("{}", "null"):
            value = ""
        _put(result, name, value)
    if result.get(FILTER_POLICY):
        parse_filter(result[FILTER_POLICY], result.get(FILTER_SCOPE, ATTRIBUTES_SCOPE))
    return result


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value and choices is TRUTH:
        value = value.lower()
    if value and value not in choices:
        raise InvalidAttributeValue(f"{name} must be {' or '.join(choices)}, not {value[:64]!r}.")
    return value


def _put(values: dict[str, str], name: str, value: str) -> None:
    if not is_text(value, TEXT_BYTES_MAX):
        raise InvalidAttributeValue(
            f"{name} must be at most {TEXT_BYTES_MAX} bytes of text without control characters."
        )
    if value:
        values[name] = value
    else:
        values.pop(name, None)

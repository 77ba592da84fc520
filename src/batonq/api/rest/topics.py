"""Operations on topics: create, list, read, change, delete and publish."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from contextlib import suppress

from msgspec import UNSET

from batonq.api.rest.queues import query, read_cursor, whole
from batonq.api.rest.sending import send_batch_to, send_to
from batonq.api.rest.service import NO_CONTENT, SECOND_MS, Answer, Call, Finish
from batonq.api.rest.topic_shapes import PAGE_MAX, Topic, TopicChanges, Topics, TopicSpec
from batonq.errors import InvalidInput, TopicDoesNotExist, TopicExists, Unavailable
from batonq.node.catalog.topic_control import Topic as TopicEntry
from batonq.topic_attributes import CONTENT_DEDUPLICATION, FIFO_TOPIC, RETENTION, RETENTION_DEFAULT_S

PAGE_DEFAULT = 100
DISPLAY_NAME = "DisplayName"


def find_topic(call: Call, name: str) -> TopicEntry:
    """The topic of this name. It must belong to the caller's account."""
    try:
        return call.broker.topic(call.caller.account, name)
    except TopicDoesNotExist:
        raise no_such_topic(name) from None


def no_such_topic(name: str) -> TopicDoesNotExist:
    return TopicDoesNotExist(f"Topic {name[:256]!r} does not exist. Create it first.")


async def create_topic(call: Call) -> Answer:
    given = call.read(TopicSpec)
    fifo = given.mode == "FIFO"
    attributes = attributes_of(given, fifo)
    account = call.caller.account
    existing = [topic for topic in call.broker.topics(account, given.name) if topic.name == given.name]
    if existing:
        _check_same(existing[0], attributes, fifo)
    if fifo:
        attributes[FIFO_TOPIC] = "true"
    wanted = {name: value for name, value in attributes.items() if value}
    topic = await call.broker.create_topic(account, given.name, wanted, given.tags or {}, rest=True)
    return Answer(200 if existing else 201, shown(call, topic), (("Location", f"/v1/topics/{topic.name}"),))


def _check_same(existing: TopicEntry, attributes: dict[str, str], fifo: bool) -> None:
    different = next((name for name, value in attributes.items() if existing.attributes.get(name, "") != value), None)
    if existing.fifo != fifo or different is not None:
        field = "mode" if existing.fifo != fifo else FIELDS[different or ""]
        raise TopicExists(
            f"Topic {existing.name} already exists with a different {field}. Update the existing topic, or choose "
            "another name."
        )


async def list_topics(call: Call) -> Answer:
    values = query(call, ("prefix", "limit", "cursor"))
    limit = whole(values.get("limit"), "limit", 1, PAGE_MAX, PAGE_DEFAULT)
    topics = call.broker.topics(call.caller.account, values.get("prefix", ""))
    if "cursor" in values:
        after = read_cursor(values["cursor"])
        topics = [topic for topic in topics if topic.name > after]
    page = topics[:limit]
    cursor = urlsafe_b64encode(page[-1].name.encode()).decode() if len(topics) > limit else UNSET
    return Answer(200, Topics([shown(call, topic) for topic in page], cursor))


async def get_topic(call: Call) -> Answer:
    topic = find_topic(call, call.name)
    answer = shown(call, topic)
    with suppress(Unavailable):  # the settings are known even while the topic's shard is being moved
        counters = await call.broker.counters(topic)
        answer.waiting_copies = counters.present
        if counters.oldest_sent_ms:
            answer.oldest_waiting_seconds = max(0, call.broker.now_ms() - counters.oldest_sent_ms) / SECOND_MS
    return Answer(200, answer)


async def update_topic(call: Call) -> Answer:
    topic = find_topic(call, call.name)
    given = call.read(TopicChanges)
    changes = attributes_of(given, topic.fifo)
    if changes:
        await call.broker.set_topic_attributes(topic, changes)
    if given.tags is not UNSET:
        tags = given.tags or {}
        await call.broker.tag_topic(topic, tags, [name for name in topic.tags if name not in tags])
    current = call.broker.topic_by_number(topic.number)
    if current is None:
        raise no_such_topic(topic.name)
    return Answer(200, shown(call, current))


async def delete_topic(call: Call) -> Answer:
    await call.broker.delete_topic(find_topic(call, call.name))
    return NO_CONTENT


def publish_message(call: Call, finish: Finish) -> None:
    send_to(call, find_topic(call, call.name), finish)


def publish_batch(call: Call, finish: Finish) -> None:
    send_batch_to(call, find_topic(call, call.name), finish)


def shown(call: Call, topic: TopicEntry) -> Topic:
    return Topic(
        name=topic.name,
        mode="FIFO" if topic.fifo else "STANDARD",
        fifo=topic.fifo,
        arn=topic.arn,
        created_at_ms=topic.created_ms,
        modified_at_ms=topic.modified_ms,
        display_name=topic.attributes.get(DISPLAY_NAME, UNSET),
        retention_seconds=int(topic.attributes.get(RETENTION, RETENTION_DEFAULT_S)),
        content_based_deduplication=topic.content_dedup,
        tags=dict(topic.tags),
        subscriptions=len(call.broker.subscriptions(topic.account, topic)),
    )


FIELDS = {
    DISPLAY_NAME: "displayName",
    RETENTION: "retentionSeconds",
    CONTENT_DEDUPLICATION: "contentBasedDeduplication",
}


def attributes_of(given: TopicChanges, fifo: bool) -> dict[str, str]:
    """The attributes for the given fields. A default is an empty value."""
    result: dict[str, str] = {}
    if given.display_name is not UNSET:
        result[DISPLAY_NAME] = given.display_name or ""
    if given.retention_seconds is not UNSET:
        result[RETENTION] = "" if given.retention_seconds is None else str(given.retention_seconds)
    if given.content_based_deduplication is not UNSET:
        if given.content_based_deduplication and not fifo:
            raise InvalidInput("contentBasedDeduplication is for FIFO topics: set mode to FIFO when you create one.")
        result[CONTENT_DEDUPLICATION] = "true" if given.content_based_deduplication else ""
    return result

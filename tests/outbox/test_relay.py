"""The relay on PostgreSQL, from its log, and on SQLite: crashes at each step, refusals, pruning."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from batonq.errors import BatonError, InvalidInput, OverLimit, QueueDoesNotExist
from batonq.outbox import BatonPublisher, Relay, put
from batonq.outbox.cdc import StreamSource
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.publishers import Numbered
from batonq.outbox.sqlite import SqliteSource
from batonq.sync import Baton
from tests.outbox.shop import PATIENCE_S, Shop, bodies, publish

KINDS = ("postgres", "cdc", "sqlite")


class Crash(BaseException):
    """The relay dies here."""


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, sqlite_path: str) -> Shop:
    address = sqlite_path if request.param == "sqlite" else request.getfixturevalue("database")
    return Shop(request.param, address)


def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(shop: Shop, baton: Baton, name: str) -> None:
    queue = baton.create_queue(name)
    with shop.connection() as connection:
        put(connection, name, "never")
        connection.rollback()
        put(connection, name, {"n": 1, "text": "ü\0"}, attributes={"a": "x", "b": b"\0\xff", "c": 1.5}, key="k")
        put(connection, name, b"\0raw", priority="high", traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
        connection.commit()
    with closing(shop.source()) as source:
        publish(source, BatonPublisher(baton), 2)
        assert source.lag()[:4] == (0, 0.0, 0, 0)
        assert Relay(source, BatonPublisher(baton)).run_until_empty() == 0
    raw, first = sorted(queue.receive(10, wait=5), key=lambda message: message.priority, reverse=True)
    assert (first.body, first.group) == ({"n": 1, "text": "ü\0"}, "k")
    assert first.attributes == {"a": "x", "b": b"\0\xff", "c": 1.5}
    assert (raw.body, raw.priority, raw.group) == (b"\0raw", 192, None)
    assert raw.traceparent == "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_rows_for_a_topic_are_published_to_it(shop: Shop, baton: Baton, name: str) -> None:
    queues = [baton.create_queue(f"{name}-{end}") for end in "ab"]
    topic = baton.create_topic(name)
    topic.subscribe(queues[0].name)
    topic.subscribe(queues[1].name, filter={"shop": ["north"]})
    with shop.connection() as connection:
        put(connection, topic=name, body={"n": 1}, attributes={"shop": "north"}, key="k")
        put(connection, topic=name, body={"n": 2}, attributes={"shop": "south"}, key="k")
        put(connection, f"{name}-b", {"n": 3}, key="k")
        connection.commit()
    with closing(shop.source()) as source:
        publish(source, BatonPublisher(baton), 3)
        assert Relay(source, BatonPublisher(baton)).run_until_empty() == 0
    found = [sorted(message.body["n"] for message in queue.receive(10, wait=5)) for queue in queues]
    assert found == [[1, 2], [1, 3]]


@pytest.mark.parametrize("point", ["before publishing", "after publishing"])
def test_a_crash_publishes_nothing_twice_to_a_topic(shop: Shop, baton: Baton, name: str, point: str) -> None:
    queue = baton.create_queue(name)
    baton.create_topic(name).subscribe(name)
    real = BatonPublisher(baton)

    class Dying:
        def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
            if point == "after publishing":
                real.publish(queue, producer, messages)
            raise Crash

        def close(self) -> None:
            raise AssertionError("a relay that died closes nothing")

    with shop.connection() as connection:
        for number in range(20):
            put(connection, topic=name, body=number, key=f"k{number % 3}")
        connection.commit()
    with closing(shop.source()) as source, pytest.raises(Crash):
        Relay(source, Dying()).run_once()
    with closing(shop.source()) as source:
        publish(source, real, 20)
    assert sorted(message.body for message in queue.receive(100, wait=5)) == [*range(20)]
    assert queue.receive(10, wait=0) == []


@pytest.mark.parametrize("point", ["before publishing", "after publishing", "after half of it"])
def test_a_crash_at_any_step_makes_no_second_message(shop: Shop, baton: Baton, name: str, point: str) -> None:
    baton.create_queue(name)
    real = BatonPublisher(baton)

    class Dying:
        def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
            if point == "after half of it":
                messages = messages[: len(messages) // 2]
            if point != "before publishing":
                real.publish(queue, producer, messages)
            raise Crash

        def close(self) -> None: ...

    for round in range(3):
        shop.put(name, *range(10 * round, 10 * round + 10))
        source = shop.source()
        with pytest.raises(Crash):
            publish(source, Dying(), 1)
        assert source.lag().in_doubt >= 10
        source.close()
    # Also rows that were committed since, with the same key, stay behind those in doubt.
    shop.put(name, *range(30, 40))
    with closing(shop.source()) as source:
        publish(source, real, 40)
        assert source.lag()[:4] == (0, 0.0, 0, 0)
    assert bodies(baton, name) == list(range(40))


def test_a_row_that_is_refused_for_good_is_set_aside_and_may_be_retried(shop: Shop, baton: Baton, name: str) -> None:
    baton.create_queue(name, max_message_bytes=1024)
    (_, bad, _) = shop.put(name, "first", "x" * 2000, "third")
    with closing(shop.source()) as source:
        publish(source, BatonPublisher(baton), 3)
        assert source.lag()[:4] == (0, 0.0, 0, 1)
        assert source.prune(0.0) == 2
        assert "1024" in shop.scalar(f"SELECT refused FROM batonq_outbox WHERE id = {bad}")
        assert bodies(baton, name) == ["first", "third"]
        baton.queue(name).update(max_message_bytes=4096)
        assert source.retry([bad + 100]) == 0
        assert source.retry([bad]) == 1
        if isinstance(source, StreamSource):
            source._sweep_at = 0.0  # as a minute later
        publish(source, BatonPublisher(baton), 1)
        assert source.lag()[:4] == (0, 0.0, 0, 0)
    assert bodies(baton, name) == ["x" * 2000]


def test_a_queue_that_refuses_for_now_keeps_its_order_and_does_not_hold_up_others(
    shop: Shop, baton: Baton, name: str
) -> None:
    baton.create_queue(name, max_messages=5)
    baton.create_queue(f"{name}-b")
    shop.put(name, *range(8))
    shop.put(f"{name}-missing", "waits for its queue")
    shop.put(f"{name}-b", "not held up")
    with closing(shop.source()) as source, Baton(baton.url, retries=0) as impatient:
        relay = Relay(source, BatonPublisher(impatient))
        deadline = time.monotonic() + PATIENCE_S
        while source.lag().waiting != 4:  # three over the limit, and the one whose queue is missing
            relay.run_once()
            source.wait(0.05)
            assert time.monotonic() < deadline
        assert bodies(baton, f"{name}-b") == ["not held up"]
        assert bodies(baton, name) == list(range(5))
        baton.create_queue(f"{name}-missing")
        while source.lag().waiting:
            relay.run_once()
            source.wait(0.05)
            assert time.monotonic() < deadline
        assert relay.counts.failures >= 2
    assert bodies(baton, name) == [5, 6, 7]
    assert bodies(baton, f"{name}-missing") == ["waits for its queue"]


def test_only_published_rows_of_some_age_are_pruned(shop: Shop, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    shop.put(name, *range(20))
    with closing(shop.source()) as source:
        publish(source, BatonPublisher(baton), 20)
        waiting = shop.put(f"{name}-missing", "unpublished", key=None)
        old = "datetime" if shop.kind == "sqlite" else "now"
        change = "published_at - 3600" if old == "datetime" else "published_at - interval '1 hour'"
        with shop.connection() as connection:
            connection.execute(f"UPDATE batonq_outbox SET published_at = {change} WHERE id <= {waiting[0] - 11}")
            created = "created_at - 7200" if shop.kind == "sqlite" else "created_at - interval '2 hours'"
            connection.execute(f"UPDATE batonq_outbox SET created_at = {created}")
            connection.commit()
        assert source.prune(7200) == 0
        assert source.prune(1800) == 10
        assert source.prune(1800) == 0
        assert source.lag().published == 10
        relay = Relay(source, BatonPublisher(baton), prune_after=0.0)
        relay._prune_sometimes()
        assert relay.counts.pruned == 10
        assert 7200 <= source.lag().oldest_s < 7300
        assert source.lag()[0] == 1
    assert shop.scalar("SELECT count(*) FROM batonq_outbox") == 1


def test_numbers_are_new_after_the_database_came_back_from_a_backup(shop: Shop, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    shop.put(name, "before")
    with closing(shop.source()) as source:
        publish(source, BatonPublisher(baton), 1)
        with shop.connection() as connection:
            connection.execute("UPDATE batonq_outbox_numbers SET number = 0")
            connection.commit()
        shop.put(name, "after")
        publish(source, BatonPublisher(baton), 1)
    assert bodies(baton, name) == ["before", "after"]


def test_a_database_without_tables_is_told(database: str, sqlite_path: str) -> None:
    with pytest.raises(InvalidInput, match="baton outbox init"):
        PostgresSource(database)
    sqlite3.connect(sqlite_path).close()
    with pytest.raises(InvalidInput, match="baton outbox init"):
        SqliteSource(sqlite_path)
    with pytest.raises(InvalidInput, match="does not exist"):
        SqliteSource(sqlite_path + "-other")
    with pytest.raises(InvalidInput, match="batch must be 1 to"):
        Relay(None, None, batch=0)  # type: ignore[arg-type]


class Refusing:
    """A publisher that refuses as it is told."""

    def __init__(self, answers: Callable[[int], BatonError | None]) -> None:
        self._answers = answers

    def publish(self, queue: str, producer: str, messages: Numbered) -> list[BatonError | None]:
        if queue == "gone":
            raise QueueDoesNotExist
        return [self._answers(number) for number, _ in messages]

    def close(self) -> None: ...


def test_what_was_refused_for_now_keeps_its_numbers(shop: Shop, name: str) -> None:
    shop.put(name, *range(4))
    seen: list[int] = []
    with closing(shop.source()) as source:

        def once(number: int) -> BatonError | None:
            seen.append(number)
            return OverLimit() if len(seen) in (3, 4) else None

        publish(source, Refusing(once), 2)
        publish(source, Refusing(once), 2)
    assert seen[4:] == seen[2:4]
    assert seen[:4] == list(range(seen[0], seen[0] + 4))

"""The relay on PostgreSQL, from its log, and on SQLite: crashes at each step, refusals, order, several at once."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from batonq.errors import BatonError, InvalidInput, OverLimit, QueueDoesNotExist
from batonq.outbox import BatonPublisher, Relay, create_tables, put
from batonq.outbox.cdc import StreamSource
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.publishers import Numbered
from batonq.outbox.source import Source
from batonq.outbox.sqlite import SqliteSource
from batonq.sync import Baton
from tests.outbox import workload

KINDS = ("postgres", "cdc", "sqlite")
PATIENCE_S = 30


class Crash(BaseException):
    """The relay dies here."""


class Shop:
    """An application's database with an outbox, and relays for it."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        with self.connection() as connection:
            create_tables(connection)
            connection.commit()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        made: Any
        made = sqlite3.connect(self.address) if self.kind == "sqlite" else psycopg.connect(self.address)
        with closing(made) as connection:
            yield connection

    def put(self, queue: str, *bodies: Any, key: str | None = "k", **options: Any) -> list[int]:
        with self.connection() as connection:
            ids = [put(connection, queue, body, key=key, **options) for body in bodies]
            connection.commit()
        return ids

    def source(self) -> Source:
        if self.kind == "sqlite":
            return SqliteSource(self.address)
        return StreamSource(self.address) if self.kind == "cdc" else PostgresSource(self.address)

    def scalar(self, sql: str) -> Any:
        with self.connection() as connection:
            return connection.execute(sql).fetchone()[0]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, sqlite_path: str) -> Shop:
    address = sqlite_path if request.param == "sqlite" else request.getfixturevalue("database")
    return Shop(request.param, address)


def publish(source: Source, publisher: Any, rows: int) -> None:
    """Run a relay until so many rows are settled."""
    relay = Relay(source, publisher)
    deadline = time.monotonic() + PATIENCE_S
    while rows > 0:
        settled = relay.run_once()
        rows -= settled
        assert time.monotonic() < deadline
        if not settled:
            source.wait(0.1)


def bodies(baton: Baton, queue: str) -> list[Any]:
    return [body for _, body in sorted(workload.delivered(baton, queue), key=lambda message: message[0])]


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


def test_rows_of_transactions_that_commit_out_of_order_are_not_skipped(database: str, baton: Baton, name: str) -> None:
    for kind in ("postgres", "cdc"):
        queue = f"{name}-{kind}"
        baton.create_queue(queue)
        shop = Shop(kind, database)
        with closing(shop.source()) as source, psycopg.connect(database) as late, psycopg.connect(database) as early:
            low = put(late, queue, "committed last", key="a")
            high = put(early, queue, "committed first", key="b")
            assert low < high
            early.commit()
            publish(source, BatonPublisher(baton), 1)
            assert bodies(baton, queue) == ["committed first"]
            late.commit()
            publish(source, BatonPublisher(baton), 1)
            assert bodies(baton, queue) == ["committed last"]


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


def test_several_relays_at_once_do_not_double(database: str, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    shop = Shop("postgres", database)
    for key in range(40):
        shop.put(name, *({"key": f"k{key}", "n": n, "kept": True} for n in range(1, 26)), key=f"k{key}")
    sources = [PostgresSource(database) for _ in range(4)]
    published: list[int] = []

    def work(source: Source) -> None:
        relay = Relay(source, BatonPublisher(baton), batch=20)
        while source.lag().waiting:
            relay.run_once()
        published.append(relay.counts.published)

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for source in sources:
        source.close()
    assert sum(published) == 1000  # each row by one of them
    workload.check(workload.Written({f"k{key}": 25 for key in range(40)}), workload.delivered(baton, name))


def test_a_lane_has_one_relay_at_a_time(database: str, baton: Baton, name: str) -> None:
    shop = Shop("postgres", database)
    shop.put(name, "a", "b")
    with closing(PostgresSource(database)) as first, closing(PostgresSource(database)) as second:
        (batch,) = first.claim(1, [])
        assert [row.body for _, row in batch.rows] == ['"a"']
        assert second.claim(10, []) == []
        first.settle(batch, [batch.rows[0][1].id], [], True)
        assert second.claim(10, []) == []
        first.release()
        (batch,) = second.claim(10, [])
        assert [row.body for _, row in batch.rows] == ['"b"']


def test_a_relay_that_hangs_loses_its_lanes_and_cannot_begin_a_batch(database: str, name: str) -> None:
    shop = Shop("postgres", database)
    shop.put(name, "a")
    with closing(PostgresSource(database)) as hung, closing(PostgresSource(database)) as other:
        holder, producers = hung.lock_lanes(range(16), 16)
        assert len(producers) == 16
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", (holder[0],))
        (batch,) = other.claim(10, [])
        assert batch.rows[0][1].body == '"a"'
        other.settle(batch, [batch.rows[0][1].id], [], True)
        other.release()
        shop.put(name, "b")
        with hung.working() as connection:
            assert hung._record(connection, holder, list(range(16)), 10, []) == []


@pytest.mark.parametrize("kind", ["postgres", "cdc"])
def test_a_commit_wakes_the_relay(database: str, baton: Baton, name: str, kind: str) -> None:
    """With a poll of ten minutes only the wake-up can be what published the row."""
    queue = baton.create_queue(name)
    shop = Shop(kind, database)
    with closing(shop.source()) as source:
        relay = Relay(source, BatonPublisher(baton), poll=600)
        thread = threading.Thread(target=relay.run)
        thread.start()
        for number in range(3):
            shop.put(name, number)
            (message,) = queue.receive(1, wait=20)
            assert message.body == number
            message.ack()
        relay.stop()
        shop.put(name, "the last")  # so that it wakes up and sees that it is to stop
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_polling_is_enough_where_nobody_listens(database: str, baton: Baton, name: str) -> None:
    queue = baton.create_queue(name)
    shop = Shop("postgres", database)
    with closing(PostgresSource(database, listen=False)) as source:
        relay = Relay(source, BatonPublisher(baton), poll=0.05)
        thread = threading.Thread(target=relay.run)
        thread.start()
        shop.put(name, "found")
        assert [message.body for message in queue.receive(1, wait=20)] == ["found"]
        relay.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


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
    with pytest.raises(InvalidInput, match="no database"):
        SqliteSource(sqlite_path + "-other")
    with pytest.raises(InvalidInput, match="batch is from 1"):
        Relay(None, None, batch=0)  # type: ignore[arg-type]


def test_a_lost_connection_is_made_again(database: str, baton: Baton, name: str) -> None:
    queue = baton.create_queue(name)
    for kind in ("postgres", "cdc"):
        shop = Shop(kind, database)
        with closing(shop.source()) as source:
            relay = Relay(source, BatonPublisher(baton), poll=0.05)
            thread = threading.Thread(target=relay.run)
            thread.start()
            shop.put(name, "one")
            assert [message.body for message in queue.receive(1, wait=20)] == ["one"]
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            shop.put(name, "two")
            assert [message.body for message in queue.receive(1, wait=20)] == ["two"]
            relay.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_second_relay_of_a_slot_stands_by(database: str, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    shop = Shop("cdc", database)
    first, second = shop.source(), shop.source()
    assert Relay(first, BatonPublisher(baton)).run_once() == 0
    shop.put(name, "a")
    assert Relay(second, BatonPublisher(baton)).run_once() == 0
    first.close()
    with closing(second):
        publish(second, BatonPublisher(baton), 1)
    assert bodies(baton, name) == ["a"]


def test_a_large_transaction_is_read_from_the_log_in_parts(database: str, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    shop = Shop("cdc", database)
    with closing(shop.source()) as source:
        assert Relay(source, BatonPublisher(baton)).run_once() == 0
        shop.put(name, *range(1200))
        publish(source, BatonPublisher(baton), 700)
        assert isinstance(source, StreamSource)
    with closing(shop.source()) as source:  # as after a crash within it
        while source.lag().waiting:
            publish(source, BatonPublisher(baton), 1)
    assert bodies(baton, name) == list(range(1200))


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

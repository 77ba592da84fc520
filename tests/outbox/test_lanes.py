"""Order, several relays at once, what wakes them, and what they do when a connection is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from batonq.errors import InvalidInput
from batonq.outbox import BatonPublisher, Relay, put
from batonq.outbox.cdc import StreamSource
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.source import Source
from batonq.sync import Baton
from tests.outbox import workload
from tests.outbox.shop import PATIENCE_S, Shop, bodies, publish


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


@contextmanager
def running(relay: Relay, wake: Callable[[], object] = lambda: None) -> Iterator[None]:
    """The relay at work in a thread, which has ended when the test has, however that went."""
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        relay.stop()
        wake()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["postgres", "cdc"])
def test_a_commit_wakes_the_relay(database: str, baton: Baton, name: str, kind: str) -> None:
    """With a poll of ten minutes only the wake-up can be what published the row."""
    queue = baton.create_queue(name)
    shop = Shop(kind, database)
    with closing(shop.source()) as source:
        relay = Relay(source, BatonPublisher(baton), poll=600)
        with running(relay, lambda: shop.put(name, "the last")):  # it wakes up, and sees that it is to stop
            for number in range(3):
                shop.put(name, number)
                (message,) = queue.receive(1, wait=20)
                assert message.body == number
                message.ack()


def test_a_commit_that_is_told_before_it_can_be_seen_is_waited_for(database: str, baton: Baton, name: str) -> None:
    """A commit that waits for a standby is in the log, and told, and nobody sees its rows yet."""
    baton.create_queue(name)
    shop = Shop("cdc", database)
    with psycopg.connect(database, autocommit=True) as administrator:
        administrator.execute("SET synchronous_commit = local")
        administrator.execute(f"ALTER DATABASE {administrator.info.dbname} SET synchronous_commit = local")
        administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        administrator.execute("SELECT pg_reload_conf()")
        try:
            with closing(shop.source()) as source, ThreadPoolExecutor(1) as pool:
                relay = Relay(source, BatonPublisher(baton))
                assert relay.run_once() == 0
                with psycopg.connect(database) as writer:
                    writer.execute("SET synchronous_commit = on")
                    put(writer, name, "first", key="k")
                    committing = pool.submit(writer.commit)
                    try:
                        deadline = time.monotonic() + PATIENCE_S
                        assert isinstance(source, StreamSource)
                        while not source._ids:
                            assert relay.run_once() == 0
                            source.wait(0.05)
                            assert time.monotonic() < deadline
                        for _ in range(20):
                            assert relay.run_once() == 0
                            source.wait(0.05)
                    finally:
                        administrator.execute("SELECT pg_cancel_backend(%s)", (writer.info.backend_pid,))
                    committing.result(PATIENCE_S)
                shop.put(name, "second")
                publish(source, BatonPublisher(baton), 2)
        finally:
            administrator.execute("ALTER SYSTEM RESET synchronous_standby_names")
            administrator.execute("SELECT pg_reload_conf()")
    assert bodies(baton, name) == ["first", "second"]


def test_polling_is_enough_where_nobody_listens(database: str, baton: Baton, name: str) -> None:
    queue = baton.create_queue(name)
    shop = Shop("postgres", database)
    with (
        closing(PostgresSource(database, listen=False)) as source,
        running(Relay(source, BatonPublisher(baton), poll=0.05)),
    ):
        shop.put(name, "found")
        assert [message.body for message in queue.receive(1, wait=20)] == ["found"]


def test_a_lost_connection_is_made_again(database: str, baton: Baton, name: str) -> None:
    queue = baton.create_queue(name)
    for kind in ("postgres", "cdc"):
        shop = Shop(kind, database)
        with closing(shop.source()) as source, running(Relay(source, BatonPublisher(baton), poll=0.05)):
            shop.put(name, "one")
            assert [message.body for message in queue.receive(1, wait=20)] == ["one"]
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            shop.put(name, "two")
            assert [message.body for message in queue.receive(1, wait=20)] == ["two"]


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


def test_relays_that_begin_at_once_make_one_slot(database: str) -> None:
    Shop("cdc", database)
    with ThreadPoolExecutor(4) as pool:
        sources = list(pool.map(lambda _: StreamSource(database), range(4)))
    for source in sources:
        source.close()
    with psycopg.connect(database) as connection:
        slots = connection.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
        assert slots.fetchone() == (1,)


def test_a_role_that_may_not_replicate_is_told(database: str) -> None:
    Shop("cdc", database)
    with psycopg.connect(database) as connection:
        connection.execute("DROP ROLE IF EXISTS outsider")
        connection.execute("CREATE ROLE outsider LOGIN")
    with pytest.raises(InvalidInput, match="does not have permission"):
        StreamSource(make_conninfo(database, user="outsider"))

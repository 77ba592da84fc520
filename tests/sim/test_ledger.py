"""The ledger: its books agree with the shard's own counters, and it sees what cannot be."""

from __future__ import annotations

import hashlib
from random import Random

import pytest

from batonq.core.commands import Claim, Job
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason
from batonq.core.shard.machine import Shard
from batonq.log.frames import NO_DIGEST, Frame, build
from sim.bodies import make_body, number_of
from sim.ledger import ShardBook
from tests.support import ask

NOW_MS = 1_700_000_000_000
ORDERS, DEAD = 1, 2


def send(shard: Shard, numbers: range) -> None:
    bodies = [b"message %d " % number for number in numbers]
    sends = [ask.Message(body=body, body_md5=hashlib.md5(body, usedforsecurity=False).digest()) for body in bodies]
    ask.send(shard, ORDERS, sends, NOW_MS)


def seal(shard: Shard) -> Frame:
    rows, variable = shard.seal()
    number = shard.frame.number
    shard.begin_frame(number + 1)
    return build(
        cluster=1,
        region=0,
        shard=shard.number,
        epoch=1,
        number=number,
        time_ms=NOW_MS,
        previous_digest=NO_DIGEST,
        rows=rows,
        variable=variable,
    )


@pytest.fixture
def shard() -> Shard:
    shard = Shard(0)
    shard.take_ownership(1, NOW_MS, 0)
    shard.set_policy(QueuePolicy(DEAD, "000000000000", "dead"), NOW_MS)
    policy = QueuePolicy(ORDERS, "000000000000", "orders", dead_letter_queue=DEAD, max_receives=5)
    shard.set_policy(policy, NOW_MS)
    return shard


def claims(shard: Shard, count: int) -> list[Claim]:
    leases = ask.receive(shard, ORDERS, count, None, NOW_MS, "tester")
    return [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]


def test_the_books_of_every_kind_of_end(shard: Shard) -> None:
    send(shard, range(1, 7))
    first, second, third = claims(shard, 3)
    ask.delete(shard, ORDERS, [first], NOW_MS)
    ask.nack(shard, ORDERS, [ask.Nack(second, dead_letter=True), ask.Nack(third)], NOW_MS)
    book = ShardBook(0)
    book.fold(seal(shard))
    assert not book.anomalies
    orders, dead = book.of(ORDERS), book.of(DEAD)
    assert (orders.sent, orders.deleted, orders.moved, len(book.live(ORDERS))) == (6, 1, 1, 4)
    assert (dead.arrived, len(book.live(DEAD))) == (1, 1)
    (letter,) = book.live(DEAD).values()
    assert letter.number == 2
    shard.purge(ORDERS, NOW_MS)
    book.fold(seal(shard))
    assert (orders.purged, len(book.live(ORDERS))) == (4, 0)


def test_a_dead_letter_whose_redrive_is_refused_is_dead_since_it_died() -> None:
    shard = Shard(0)
    shard.take_ownership(1, NOW_MS, 0)
    shard.set_policy(QueuePolicy(ORDERS, "000000000000", "orders"), NOW_MS)
    send(shard, range(1, 2))
    ask.nack(shard, ORDERS, [ask.Nack(claims(shard, 1)[0], dead_letter=True)], NOW_MS)
    shard.start_job(Job("job", ORDERS, 7, 1, 100, "", 0, 0, only_dead=True), NOW_MS + 1_000)
    shard.step_jobs(NOW_MS + 1_000)
    book = ShardBook(0)
    book.fold(seal(shard))
    (entry,) = shard.pending_entries(1, 0, 10)
    shard.settle(1, [(entry.number, int(Reason.REFUSED_NO_QUEUE))], NOW_MS + 2_000)
    book.fold(seal(shard))
    (copy,) = book.live(ORDERS).values()
    assert (copy.owed, copy.owed_ms, copy.dead_ms) == (None, NOW_MS + 1_000, NOW_MS)
    assert not book.anomalies


def test_a_record_that_happens_twice_is_an_anomaly(shard: Shard) -> None:
    send(shard, range(1, 2))
    book = ShardBook(0)
    book.fold(seal(shard))
    ask.delete(shard, ORDERS, claims(shard, 1), NOW_MS)
    frame = seal(shard)
    book.fold(frame)
    assert not book.anomalies
    book.fold(frame._replace(number=3))
    assert "message 1 is leased" in book.anomalies[0]
    assert "message 1 is deleted" in book.anomalies[1]


def test_time_that_goes_back_is_an_anomaly(shard: Shard) -> None:
    send(shard, range(1, 2))
    book = ShardBook(0)
    book.fold(seal(shard))
    earlier = Shard(0)
    earlier.begin_frame(2)
    earlier.take_ownership(1, NOW_MS - 1, 0)
    book.fold(seal(earlier))
    assert "goes back in time" in book.anomalies[0]


def test_a_body_says_which_message_it_is() -> None:
    assert number_of(make_body(42, Random(1))) == 42
    assert number_of(b"something else") == -1
    assert number_of(b"message x ") == -1

"""Requests and answers that are lost on the way: each message is in the queue once, whatever was repeated."""

from __future__ import annotations

import asyncio
from random import Random

from batonq.client import BatchLimits, Outgoing, Retries, Sent
from batonq.errors import DeduplicationConflict
from tests.client.support import Asked, LossyProxy, connected, run
from tests.support.server import TestServer

MESSAGES = 600
QUICK = Retries(attempts=1_000, base=0.001, cap=0.01, deadline=600.0)


def test_no_second_message_and_no_lost_one(form: str, server: TestServer, account: str) -> None:
    random = Random(7)

    def fate(asked: Asked) -> str:
        return random.choice(("answer", "request", "", ""))

    async def body() -> None:
        with LossyProxy(server.http.port, fate) as proxy:
            keys = {"access_key": account, "secret_key": "any"}
            batching = BatchLimits(count=7, linger=0.001)
            async with connected(form, proxy.url, retries=QUICK, batching=batching, **keys) as baton:
                queue = await baton.create_queue("lossy", visibility=600)
                sends = [queue.send(number) for number in range(MESSAGES)]
                many = [queue.send_many(range(start, start + 50)) for start in range(1_000, 1_500, 50)]
                results = await asyncio.gather(*sends, *many)
                assert len({result.id for result in results[:MESSAGES]}) == MESSAGES
                assert proxy.lost > 50
            async with connected(form, server.url, **keys) as baton:
                queue = baton.queue("lossy")
                stats = await queue.stats()
                assert stats.visible == MESSAGES + 500 and stats.duplicates > 0
                held = []
                while found := await queue.receive(1_000, wait=0):
                    held += found
                assert sorted(message.body for message in held) == [*range(MESSAGES), *range(1_000, 1_500)]

    run(body())


def test_lost_answers_to_acks_are_no_errors(form: str, server: TestServer, account: str) -> None:
    random = Random(11)

    def fate(asked: Asked) -> str:
        return random.choice(("answer", "request", "")) if asked.path.endswith("ack") else ""

    async def body() -> None:
        with LossyProxy(server.http.port, fate) as proxy:
            keys = {"access_key": account, "secret_key": "any"}
            async with connected(form, proxy.url, retries=QUICK, batching=BatchLimits(count=5), **keys) as baton:
                queue = await baton.create_queue("acks", visibility=600)
                await queue.send_many(range(200))
                held = await queue.receive(1_000, wait=0)
                for message in held[:20]:
                    await message.ack()
                await asyncio.gather(*(message.ack() for message in held[20:]))
                stats = await queue.stats()
                assert (stats.depth, stats.deleted) == (0, 200)
                assert proxy.lost > 5

    run(body())


def test_a_refusal_that_was_lost_is_told_all_the_same(form: str, server: TestServer, account: str) -> None:
    """A number that was passed over looks like one that was taken, once those behind it were."""
    lose = ["answer"]

    def fate(asked: Asked) -> str:
        return lose.pop() if lose and asked.path.endswith("batch") and b"other content" in asked.body else ""

    async def body() -> None:
        with LossyProxy(server.http.port, fate) as proxy:
            keys = {"access_key": account, "secret_key": "any"}
            async with connected(form, proxy.url, retries=QUICK, **keys) as baton:
                queue = await baton.create_queue("conflicts", visibility=600)
                first = await queue.send("content", dedup_key="k")
                same, conflict, fine, plain = await queue.send_many(
                    [
                        Outgoing("content", dedup_key="k"),
                        Outgoing("other content", dedup_key="k"),
                        Outgoing("fine", dedup_key="f"),
                        "plain",
                    ]
                )
                assert proxy.lost == 1
                assert (same.id, same.duplicate) == (first.id, True)
                assert isinstance(conflict, DeduplicationConflict)
                assert isinstance(fine, Sent) and isinstance(plain, Sent)
                held = await queue.receive(10, wait=0)
                assert sorted(message.body for message in held) == ["content", "fine", "plain"]

    run(body())

"""What a worker gives back without having tried it: however often that happens, no message dies of it."""

from __future__ import annotations

import asyncio

import pytest

from batonq.client.aio.baton import Baton
from batonq.worker import Message, Rate, Worker
from tests.worker.support import no_new_tokens, until


def test_messages_beyond_a_rate_go_back_and_do_not_die(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Baton(server_url) as baton:
            queue = await baton.create_queue("rated", max_receives=2, dead_letter_queue="rated-dead")
            await queue.send_many(range(40))
            app = Worker(server_url)
            handled: list[tuple[int, int]] = []

            @app.task(queue="rated", concurrency=2, wait=0.1, rate=Rate(40, burst=1, key=lambda message: "one"))
            async def handle(message: Message) -> None:
                handled.append((message.body, message.receive_count))

            no_new_tokens(monkeypatch, lambda: app.counters["handle"].released > 40)
            serving = asyncio.create_task(app.serve())
            await until(lambda: app.counters and app.counters["handle"].acked == 40)
            app.stop()
            await serving
            assert sorted(handled) == [(number, 1) for number in range(40)]
            assert app.counters["handle"].released > 40  # each of them several times
            assert (await baton.queue("rated-dead").stats()).sent == 0
            assert (await queue.stats()).dead_lettered == 0
            await queue.delete()

    asyncio.run(main())


def test_those_behind_a_failure_in_a_group_do_not_die_with_it(server_url: str) -> None:
    async def main() -> None:
        async with Baton(server_url) as baton:
            queue = await baton.create_queue("in-order", fifo=True, max_receives=5, dead_letter_queue="in-order-dead")
            for body in ("bad", "a", "b", "c"):
                await queue.send(body, group="g")
            app = Worker(server_url)
            handled: list[tuple[str, int]] = []

            @app.task(queue="in-order", wait=0.1)
            async def handle(message: Message) -> None:
                if message.body == "bad":
                    raise ValueError(message.body)
                handled.append((message.body, message.receive_count))

            serving = asyncio.create_task(app.serve())
            await until(lambda: len(handled) == 3)
            app.stop()
            await serving
            assert handled == [("a", 1), ("b", 1), ("c", 1)]  # as if nobody had held them before
            (dead,) = await baton.queue("in-order-dead").peek()
            assert (dead.body, dead.receive_count) == ("bad", 5)
            await queue.delete()

    asyncio.run(main())

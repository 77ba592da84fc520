"""A worker on a Baton of the program's own: in memory here, and the same in a file."""

from __future__ import annotations

import asyncio

from batonq import testing
from batonq.worker import Message, Poison, Worker
from tests.worker.support import until


def test_a_worker_on_a_baton_in_memory() -> None:
    async def main() -> None:
        async with await testing.memory_async() as baton:
            jobs = await baton.create_queue("jobs", max_receives=3, dead_letter_queue="dead")
            await jobs.send_many(["fine", "poison", "slow"])
            app = Worker(baton=baton)

            @app.task(queue="jobs", visibility=3)
            async def handle(message: Message) -> None:
                if message.body == "poison":
                    raise Poison("so it is")
                if message.body == "slow":
                    await until(lambda: app.counters["handle"].extended >= 2)

            serving = asyncio.create_task(app.serve())

            await until(
                lambda: app.counters and app.counters["handle"].acked == 2 and app.counters["handle"].dead_lettered
            )
            app.stop()
            assert await serving == 0
            stats = await jobs.stats()
            assert (stats.depth, stats.received) == (0, 3)
            (letter,) = await baton.queue("dead").receive(wait=0)  # the client is still open
            assert letter.body == "poison"

    asyncio.run(main())

"""A server killed with -9 and started again in the middle of sends: every acknowledged message is there once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.client import BatchLimits, Retries
from batonq.errors import Unavailable
from tests.client.support import connected, run
from tests.support.ports import reserve_port
from tests.system.process import ServerProcess

KILLS = 5
SENDERS = 8
PATIENT = Retries(attempts=1_000, cap=0.2, deadline=600.0)


@pytest.mark.parametrize("patient", [True, False], ids=["retries", "no-retries"])
def test_every_acknowledged_send_is_there_once(form: str, patient: bool, tmp_path: Path) -> None:
    """With retries no send fails at all; without, those that failed may be there or not, and the others are."""
    port = reserve_port()
    flags = ("--port", str(port))
    acknowledged: list[int] = []
    tried: list[int] = []
    stop = asyncio.Event()

    async def sender(queue: Any, number: int) -> None:
        """One message at a time, by each of the ways to send."""
        mine = number * 1_000_000
        while not stop.is_set():
            mine += 1
            tried.append(mine)
            try:
                if number % 4 == 0:
                    (result,) = await queue.send_many([mine])
                    assert not isinstance(result, Exception), result
                else:
                    await queue.send(mine, batch=number % 4 != 1, group=str(number) if number % 4 == 2 else None)
            except Unavailable:
                if patient:
                    raise
                await asyncio.sleep(0.01)
                continue
            acknowledged.append(mine)

    async def body() -> None:
        random = Random(KILLS)
        server = await asyncio.to_thread(ServerProcess, tmp_path, *flags)
        try:
            url = server.url
            retries = PATIENT if patient else 0
            async with connected(form, url, retries=retries, batching=BatchLimits(count=50, linger=0.001)) as baton:
                queue = await baton.create_queue("killed", visibility=600)
                senders = [asyncio.create_task(sender(queue, number)) for number in range(SENDERS)]
                for _ in range(KILLS):
                    enough = len(acknowledged) + random.randint(20, 120)
                    while len(acknowledged) < enough:
                        await asyncio.sleep(0.001)
                        for task in senders:
                            if task.done():
                                task.result()
                    await asyncio.to_thread(server.kill)
                    server = await asyncio.to_thread(ServerProcess, tmp_path, *flags)
                stop.set()
                await asyncio.gather(*senders)
            async with connected(form, url) as baton:
                found: list[int] = []
                while messages := await baton.queue("killed").receive(1_000, wait=0):
                    found += [message.body for message in messages]
        finally:
            server.kill()
        assert len(found) == len(set(found)), "a message was taken twice"
        assert set(acknowledged) <= set(found) <= set(tried), "an acknowledged message is not there"
        if patient:
            assert set(found) == set(tried)

    run(body())


def test_receives_and_acks_go_on_after_a_kill(form: str, tmp_path: Path) -> None:
    port = reserve_port()
    flags = ("--port", str(port))

    async def body() -> None:
        server = await asyncio.to_thread(ServerProcess, tmp_path, *flags)
        try:
            async with connected(form, server.url, retries=PATIENT) as baton:
                queue = await baton.create_queue("held", visibility=600)
                await queue.send_many(range(100))
                held = await queue.receive(50, wait=0)
                await asyncio.to_thread(server.kill)
                acks = [asyncio.create_task(message.ack()) for message in held]  # nobody is there to take them
                rest = asyncio.create_task(queue.receive(100, wait=5))
                server = await asyncio.to_thread(ServerProcess, tmp_path, *flags)
                await asyncio.gather(*acks)
                assert len(await rest) == 50
                stats = await queue.stats()
                assert (stats.deleted, stats.in_flight, stats.visible) == (50, 50, 0)
        finally:
            server.kill()

    run(body())

"""The server lists a worker by its name, with what it receives, acknowledges and fails."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batonq.client.aio.baton import Baton
from batonq.worker import Message, Worker
from tests.system.process import Client, ServerProcess

MINUTE_MS = 60_000


@pytest.fixture
def own_server_url(tmp_path: Path) -> Iterator[str]:
    """A server that no other worker of this process has used: workers without a name share one."""
    with ServerProcess(tmp_path) as server:
        yield server.url


def to_a_new_minute(url: str) -> None:
    """Counts are per minute of the server's clock, so that a test must not go on into the next one."""
    client = Client(url)
    now_ms = client.post("/_baton/clock/advance", {"seconds": 0})[1]["now_ms"]
    client.advance((MINUTE_MS - now_ms % MINUTE_MS) / 1000)
    client.close()


async def listed(baton: Baton, name: str) -> dict[str, Any]:
    reply = await baton._calls.request("GET", "/v1/workers")
    found = [one for one in msgspec.msgpack.decode(reply.answer.body)["workers"] if one["name"] == name]
    return dict(found[0]) if found else {}


@pytest.mark.parametrize("name", ["", "mail worker 7"])
def test_the_server_lists_a_worker(own_server_url: str, name: str) -> None:
    to_a_new_minute(own_server_url)

    async def main() -> None:
        async with Baton(own_server_url) as baton:
            queue = await baton.create_queue("listed", max_receives=1)
            await queue.send_many(["good", "bad", "good"])
            app = Worker(own_server_url, name=name)

            @app.task(queue="listed", wait=0.1)
            async def handle(message: Message) -> None:
                if message.body == "bad":
                    raise ValueError(message.body)

            serving = asyncio.create_task(app.serve())
            shown: dict[str, Any] = {}
            called = name or f"{socket.gethostname()}-{os.getpid()}"

            async def is_done() -> bool:
                shown.update(await listed(baton, called))
                return bool(shown.get("ackedPerMinute", 0) >= 2 and shown["failedPerMinute"] >= 1)

            for _ in range(600):
                if await is_done():
                    break
                await asyncio.sleep(0.1)
            app.stop()
            await serving
            assert (shown["queues"], shown["state"], shown["agent"][:7]) == (["listed"], "polling", "batonq/")
            assert (shown["receivedPerMinute"], shown["ackedPerMinute"], shown["failedPerMinute"]) == (3, 2, 1)
            await queue.delete()

    asyncio.run(main())

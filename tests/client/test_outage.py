"""A wrong address fails at once; a server that restarts is waited for, and its outage is logged once."""

from __future__ import annotations

import asyncio
import time

import pytest

from batonq.client import Retries
from batonq.client.transport import Unreachable
from tests.client.support import WAIT_S, Asked, ScriptedServer, answer, connected, run
from tests.support.ports import reserve_port

PATIENT = Retries(attempts=100_000, cap=0.02, deadline=600.0)


class Restartable(ScriptedServer):
    """A server that says that a queue is empty, on a port of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(self._stats)
        self._own_port = port

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)

    async def _stats(self, asked: Asked) -> bytes:
        return answer(value={"visible": 0})


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    ends = time.monotonic() + WAIT_S
    while not any(text in message for message in caplog.messages):
        assert time.monotonic() < ends, f"{text!r} was not logged"
        await asyncio.sleep(0.005)


def test_a_wrong_port_fails_at_once(form: str) -> None:
    async def body() -> None:
        port = reserve_port()
        async with connected(form, f"http://127.0.0.1:{port}") as baton:
            began = time.monotonic()
            with pytest.raises(Unreachable) as info:
                await baton.queue("jobs").send("x")
            assert time.monotonic() - began < 5  # about 30 s with retries
            text = str(info.value)
            assert text.startswith(f"Cannot connect to 127.0.0.1:{port}: [Errno 111]") and "BATON_URL" in text

    run(body())


def test_an_unknown_host_fails_at_once(form: str) -> None:
    async def body() -> None:
        async with connected(form, "http://no-such-host.invalid:9324") as baton:
            with pytest.raises(Unreachable, match=r"Cannot connect to no-such-host\.invalid:9324"):
                await baton.queue("jobs").stats()

    run(body())


def test_a_server_that_restarts_is_waited_for_and_logged_once(form: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        port = reserve_port()
        async with connected(form, f"http://127.0.0.1:{port}", retries=PATIENT) as baton:
            queue = baton.queue("jobs")
            with Restartable(port):
                await queue.stats()
            assert not caplog.records
            waiting = [asyncio.create_task(queue.stats()) for _ in range(3)]
            await logged(caplog, "Retrying.")
            with Restartable(port):
                await asyncio.gather(*waiting)
            began, ended = caplog.messages
            assert began.startswith(f"Cannot connect to 127.0.0.1:{port}") or "connection was closed" in began
            assert ended.startswith(f"The server at 127.0.0.1:{port} answers again after ")

    run(body())


def test_a_program_that_starts_with_its_server_can_wait_for_it(form: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        port = reserve_port()
        retries = Retries(attempts=100_000, cap=0.02, deadline=600.0, first_connection=True)
        async with connected(form, f"http://127.0.0.1:{port}", retries=retries) as baton:
            waiting = asyncio.create_task(baton.queue("jobs").stats())
            await logged(caplog, "Retrying.")
            with Restartable(port):
                await waiting

    run(body())

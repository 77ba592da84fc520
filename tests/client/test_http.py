"""The transports over real sockets, both forms: connections are kept, limited, given up, and opened again."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from batonq import sync
from batonq.client import Baton, Retries
from batonq.client.aio.http import HttpTransport as AsyncHttp
from batonq.client.blocking.http import HttpTransport as BlockingHttp
from batonq.client.transport import NotSent, Stale
from batonq.errors import InvalidInput, Unavailable
from tests.client.support import WAIT_S, Asked, Blocking, ScriptedServer, answer, connected, run, sent
from tests.support.ports import reserve_port


def http(form: str, url: str, **options: Any) -> Any:
    limits = {"connections": 2, "polls": 2, **options}
    return AsyncHttp(url, **limits) if form == "async" else Blocking(BlockingHttp(url, **limits))


async def _fine(asked: Asked) -> bytes:
    return answer(200, {"path": asked.path})


def test_a_connection_is_used_again(form: str) -> None:
    async def body() -> None:
        with ScriptedServer(_fine) as server:
            transport = http(form, server.url)
            for number in range(20):
                status, _, _ = await transport.request("POST", f"/{number}", b"x", [("A", "b")], WAIT_S)
                assert status == 200
            assert server.connections == 1
            assert [asked.path for asked in server.asked] == [f"/{number}" for number in range(20)]
            assert server.asked[0].headers["a"] == "b"
            assert server.asked[0].headers["user-agent"].startswith("batonq/")
            await transport.close()

    run(body())


def test_no_more_connections_than_the_limit(form: str) -> None:
    async def body() -> None:
        release = threading.Event()

        async def slow(asked: Asked) -> bytes:
            await asyncio.to_thread(release.wait, WAIT_S)
            return answer(200)

        with ScriptedServer(slow) as server:
            transport = http(form, server.url)
            calls = [asyncio.create_task(transport.request("GET", "/", b"", (), WAIT_S)) for _ in range(6)]
            poll = asyncio.create_task(transport.request("POST", "/poll", b"", (), WAIT_S, polls=True))
            await asyncio.to_thread(server.wait_asked, 3)
            assert server.connections == 3  # two for requests, and a long poll has its own
            release.set()
            assert [status for status, _, _ in await asyncio.gather(*calls, poll)] == [200] * 7
            assert server.connections == 3
            await transport.close()

    run(body())


def test_who_finds_no_connection_in_time_is_told(form: str) -> None:
    async def body() -> None:
        told = threading.Event()

        async def late(asked: Asked) -> bytes:
            if asked.path == "/never":
                await asyncio.Event().wait()
            await asyncio.to_thread(told.wait, WAIT_S)
            return answer(200)

        with ScriptedServer(late) as server:
            transport = http(form, server.url, connections=1)
            first = asyncio.create_task(transport.request("GET", "/", b"", (), WAIT_S))
            await asyncio.to_thread(server.wait_asked, 1)
            with pytest.raises(NotSent, match="All 1 connections are in use"):
                await transport.request("GET", "/", b"", (), 0.05)
            told.set()
            assert (await first)[0] == 200
            with pytest.raises(Unavailable, match="No response within 1 seconds"):
                await transport.request("GET", "/never", b"", (), 1.0)
            await transport.close()

    run(body())


def test_a_connection_that_was_closed_while_idle_is_replaced(form: str) -> None:
    async def body() -> None:
        async def close_after(asked: Asked) -> bytes:
            return sent(asked).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

        with ScriptedServer(close_after) as server:
            async with connected(form, server.url) as baton:
                for _ in range(5):
                    await baton.queue("q").send("x")
            assert server.connections == 5

    run(body())


def test_a_connection_that_ends_instead_of_an_answer_is_tried_again_at_once(form: str) -> None:
    async def body() -> None:
        ends = [False, True, False]

        async def script(asked: Asked) -> bytes | None:
            return None if ends.pop(0) else sent(asked)

        with ScriptedServer(script) as server:
            # No pause is long enough for this test's limit: the second try needs none.
            async with connected(form, server.url, retries=Retries(base=1000.0, cap=1000.0, deadline=1e9)) as baton:
                await baton.queue("q").send("a")
                await baton.queue("q").send("b")
            first, second, third = server.asked
            assert second.body == third.body != first.body

    run(body())


def test_what_is_not_known_to_be_done_is_told_apart(form: str) -> None:
    async def body() -> None:
        async def hang_up(asked: Asked) -> None:
            return None

        transport = http(form, f"http://127.0.0.1:{reserve_port()}")
        with pytest.raises(NotSent, match="Cannot connect"):
            await transport.request("GET", "/", b"", (), WAIT_S)
        with ScriptedServer(hang_up) as server:
            transport = http(form, server.url)
            with pytest.raises(Unavailable, match="the outcome is unknown") as caught:
                await transport.request("GET", "/", b"", (), WAIT_S)
            assert not isinstance(caught.value, (NotSent, Stale))
            await transport.close()

    run(body())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    ],
    ids=["continue", "chunked", "empty"],
)
def test_answers_in_every_shape(form: str, said: bytes, expected: bytes) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return said

        with ScriptedServer(script) as server:
            transport = http(form, server.url)
            for _ in range(3):
                assert (await transport.request("GET", "/", b"", (), WAIT_S))[2] == expected
            assert server.connections == 1
            await transport.close()

    run(body())


def test_an_answer_without_a_length_ends_with_its_connection(form: str) -> None:
    async def body() -> None:
        class Ending(ScriptedServer):
            async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
                await writer.drain()

        with Ending(_fine) as server:
            transport = http(form, server.url)
            assert (await transport.request("GET", "/", b"", (), WAIT_S))[2] == b"all of it"
            assert (await transport.request("GET", "/", b"", (), WAIT_S))[2] == b"all of it"
            await transport.close()

    run(body())


def test_an_answer_without_a_length_is_not_given_again_when_the_connection_ends(form: str) -> None:
    """As a 204 to an ack: the next request on its connection, whose server is killed, was not answered."""

    async def body() -> None:
        said: list[bytes | None] = [b"HTTP/1.1 204 No Content\r\n\r\n", None]

        async def script(asked: Asked) -> bytes | None:
            return said.pop(0)

        with ScriptedServer(script) as server:
            transport = http(form, server.url)
            assert (await transport.request("POST", "/", b"", (), WAIT_S))[0] == 204
            with pytest.raises(Unavailable):
                await transport.request("POST", "/", b"", (), WAIT_S)
            await transport.close()

    run(body())


def test_something_else_than_http_is_told(form: str) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return b"SSH-2.0-OpenSSH_9.6\r\n"

        with ScriptedServer(script) as server:
            transport = http(form, server.url)
            with pytest.raises(Unavailable, match="not HTTP"):
                await transport.request("GET", "/", b"", (), WAIT_S)
            await transport.close()

    run(body())


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "127.0.0.1:9324", "http://a:b@c", "http://x:99999", "http://x?q"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    for kind in (Baton, sync.Baton):
        with pytest.raises(InvalidInput):
            kind(url)


def test_addresses() -> None:
    for url, host in (
        ("http://x", "x"),
        ("http://x:81/", "x:81"),
        ("https://x", "x"),
        ("http://[::1]:9324", "[::1]:9324"),
    ):
        assert AsyncHttp(url, connections=1, polls=1).host == host


def test_a_cancelled_long_poll_lets_go_of_its_connection() -> None:
    async def body() -> None:
        async def never(asked: Asked) -> bytes:
            await asyncio.Event().wait()
            return b""

        with ScriptedServer(never) as server:
            async with Baton(server.url) as baton:
                poll = asyncio.create_task(baton.queue("q").receive(wait=20))
                await asyncio.to_thread(server.wait_asked, 1)
                poll.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await poll
                assert await asyncio.to_thread(server.gone.wait, WAIT_S)

    run(body())


def test_closing_ends_a_long_poll_of_another_thread() -> None:
    async def never(asked: Asked) -> bytes:
        await asyncio.Event().wait()
        return b""

    with ScriptedServer(never) as server:
        baton = sync.Baton(server.url)
        told: list[BaseException] = []

        def poll() -> None:
            try:
                baton.queue("q").receive(wait=20)
            except Unavailable as problem:
                told.append(problem)

        thread = threading.Thread(target=poll)
        thread.start()
        server.wait_asked(1)
        baton.close()
        thread.join(WAIT_S)
        assert len(told) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_may_be_used_by_one_loop_after_another() -> None:
    """It should be closed on the first, but where it is not, a connection of that loop is of no use to the next."""

    async def script(asked: Asked) -> bytes:
        return sent(asked)

    with ScriptedServer(script) as server:

        async def send(baton: Baton) -> None:
            await asyncio.gather(*(baton.queue("q").send(number) for number in range(3)))

        baton = Baton(server.url)
        for _ in range(3):
            asyncio.run(send(baton))
        assert sum(len(asked.value["messages"]) for asked in server.asked) == 9
        del baton
        gc.collect()  # so that Python's warnings about it come here


def test_what_is_opened_while_another_thread_closes_is_closed_too(form: str) -> None:
    async def body() -> None:
        release = threading.Event()

        async def script(asked: Asked) -> bytes:
            await asyncio.to_thread(release.wait, WAIT_S)
            return answer(200)

        with ScriptedServer(script) as server:
            transport = http(form, server.url)
            await transport.close()
            late = asyncio.create_task(transport.request("GET", "/", b"", (), WAIT_S))
            release.set()
            await asyncio.gather(late, return_exceptions=True)
            assert await asyncio.to_thread(server.gone.wait, WAIT_S)

    run(body())

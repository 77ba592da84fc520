"""The HTTP server: what it accepts, what it refuses, in which order it answers, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from batonq.api.http import Request, Response, Router
from batonq.api.http.messages import Heads, Reply
from batonq.api.http.request_reader import REQUEST_BYTES
from tests.api.raw import Scenario, echo, post, serving, until


def test_requests_on_one_connection(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (server, connect):
            client = await connect()
            client.send(post(b"hello", "/a/b%20c?x=1&y"))
            status, headers, content = await client.answer()
            assert (status, content) == (200, b"POST /a/b%20c?x=1&y 5 b'hello'")
            assert headers["server"] == "Baton" and headers["date"].endswith("GMT") and "connection" not in headers
            client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.answer())[2] == b"GET /? 0 b''"
            client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            _, headers, _ = await client.answer(body=False)
            assert headers["content-length"] == "13"
            client.send(b"GET http://elsewhere/p?q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            _, headers, content = await client.answer()
            assert content == b"GET /p?q 0 b''" and headers["connection"] == "close"
            assert await client.ended()
            assert server.counters.requests == 4 and server.usage.bytes_held == 0

    run(scenario)


def test_http_1_0_ends_after_one_answer(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert (await client.answer())[0] == 200
            assert await client.ended()

    run(scenario)


def test_a_body_in_chunks_and_in_pieces(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await asyncio.sleep(0)
            client.send(b"6\r\n world\r\n0\r\n\r\n")
            assert (await client.answer())[2] == b"POST /? 11 b'hello world'"
            whole = post(b"x" * 50_000)
            for at in range(0, len(whole), 7_001):
                client.send(whole[at : at + 7_001])
                await client.writer.drain()
            assert b"50000" in (await client.answer())[2]

    run(scenario)


def test_expect_continue(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=100) as (_, connect):
            client = await connect()
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"hello")
            assert (await client.answer())[2] == b"POST /? 5 b'hello'"
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n")
            assert (await client.answer())[0] == 413  # refused before the body is sent

    run(scenario)


def test_a_wish_to_upgrade_is_ignored(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            wish = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
            client.send(post(b"hello", extra=wish))
            assert (await client.answer())[2] == b"POST /? 5 b'hello'"
            client.send(post(b"again"))
            assert (await client.answer())[2] == b"POST /? 5 b'again'"
            client.send(b"GET /x HTTP/1.1\r\nHost: x\r\n" + wish.encode() + b"\r\n" + post(b"third"))
            assert (await client.answer())[2] == b"GET /x? 0 b''"
            assert (await client.answer())[2] == b"POST /? 5 b'third'"
            client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
            assert (await client.answer())[0] == 405

    run(scenario)


def test_pipelined_requests_are_answered_in_order(run: Callable[[Scenario], None]) -> None:
    in_work = most = 0

    async def slow_first(request: Request) -> Response:
        nonlocal in_work, most
        in_work += 1
        most = max(most, in_work)
        await asyncio.sleep(0.02 if request.body == b"0" else 0)
        in_work -= 1
        return Response(200, request.body)

    async def scenario() -> None:
        async with serving(slow_first, pipelined_max=4) as (_, connect):
            client = await connect()
            for number in range(50):
                client.send(post(str(number).encode()))
            assert [(await client.answer())[2] for _ in range(50)] == [str(number).encode() for number in range(50)]
            assert most == 1

    run(scenario)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nBad Header\x01: x\r\n\r\n",
    ],
)
def test_garbage_is_refused(run: Callable[[Scenario], None], garbage: bytes) -> None:
    async def scenario() -> None:
        async with serving() as (server, connect):
            client = await connect()
            client.send(garbage)
            status, headers, _ = await client.answer()
            assert status == 400 and headers["connection"] == "close"
            assert await client.ended()
            assert server.counters.refused_requests == 1 and server.counters.requests == 0

    run(scenario)


def test_an_error_waits_for_the_answers_before_it(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            client.send(post(b"good") + b"\x00\x00garbage\r\n\r\n" + post(b"never"))
            assert (await client.answer())[2] == b"POST /? 4 b'good'"
            assert (await client.answer())[0] == 400
            assert await client.ended()

    run(scenario)


def test_sizes_are_limited(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(head_bytes_max=2_000, body_bytes_max=1_000) as (server, connect):
            refused = {
                "declared": (post(b"x" * 1_001), 413),
                "chunked": (
                    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"fa\r\n" + b"x" * 250 + b"\r\n" * 1,
                    0,
                ),
                "head": (b"GET / HTTP/1.1\r\nX: " + b"y" * 3_000, 431),
                "path": (b"GET /" + b"y" * 3_000, 431),
            }
            for name, (data, status) in refused.items():
                client = await connect()
                client.send(data)
                if name == "chunked":
                    for _ in range(4):
                        client.send(b"fa\r\n" + b"x" * 250 + b"\r\n")
                    status = 413
                assert (await client.answer())[0] == status, name
                client.close()
            await until(lambda: server.usage.bytes_held == 0)
            client = await connect()
            client.send(post(b"x" * 1_000))
            assert (await client.answer())[0] == 200

    run(scenario)


def test_a_refused_client_can_read_why_while_it_still_sends(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=1_000) as (_, connect):
            client = await connect()
            client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
            for _ in range(30):
                client.send(b"x" * 100_000)
            status, _, content = await client.answer()
            assert status == 413 and b"1000 bytes" in content

    run(scenario)


def test_all_bodies_together_are_limited(run: Callable[[Scenario], None]) -> None:
    release = asyncio.Event()

    async def wait(request: Request) -> Response:
        await release.wait()
        return Response(200)

    async def scenario() -> None:
        async with serving(wait, requests_bytes_max=2 * (1_000 + REQUEST_BYTES) + 500) as (server, connect):
            holders = [await connect() for _ in range(2)]
            for holder in holders:
                holder.send(post(b"x" * 1_000))
            await until(lambda: server.usage.bytes_held == 2 * (1_000 + REQUEST_BYTES))
            late = await connect()
            late.send(post(b"x" * 1_000))
            assert (await late.answer())[0] == 503
            release.set()
            for holder in holders:
                assert (await holder.answer())[0] == 200
            late.close()
            await until(lambda: server.usage.bytes_held == 0)

    run(scenario)


def test_connections_are_limited(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(connections_max=1) as (server, connect):
            first = await connect()
            first.send(post())
            assert (await first.answer())[0] == 200
            second = await connect()
            assert (await second.answer())[0] == 503
            assert server.counters.refused_connections == 1
            first.close()
            await until(lambda: server.connections_open == 0)
            third = await connect()
            third.send(post())
            assert (await third.answer())[0] == 200

    run(scenario)


def test_idle_and_slow_connections_end(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(idle_s=600, request_s=1_200) as (server, connect):
            idle, slow, slow_body = await connect(), await connect(), await connect()
            slow.send(b"GET / HT")
            slow_body.send(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhel")
            await until(lambda: server.connections_open == 3)
            connections = list(server._connections)
            await until(lambda: sum(connection._reader.reading for connection in connections) == 2)
            # The sweep runs once a second; here it is told that two and three seconds have passed.
            for connection in connections:
                connection.check(server.tick + 601)
            assert await idle.ended()
            for connection in list(server._connections):
                connection.check(server.tick + 1_201)
            assert (await slow.answer())[0] == 408
            assert (await slow_body.answer())[0] == 408

    run(scenario)


def test_a_client_that_leaves_cancels_only_a_wait(run: Callable[[Scenario], None]) -> None:
    ended: dict[str, str] = {}
    started = asyncio.Event()

    async def handler(request: Request) -> Response:
        name = request.path
        request.cancellable = name == "/poll"
        started.set()
        try:
            await asyncio.sleep(0.05 if name == "/work" else 600)
        except asyncio.CancelledError:
            ended[name] = "cancelled"
            raise
        ended[name] = "done"
        return Response(200)

    async def scenario() -> None:
        async with serving(handler) as (server, connect):
            for path in ("/poll", "/work"):
                started.clear()
                client = await connect()
                client.send(post(path=path))
                await started.wait()
                client.close()
                await until(lambda path=path: path in ended)  # type: ignore[misc]
            assert ended == {"/poll": "cancelled", "/work": "done"}
            await until(lambda: server.connections_open == 0)

    run(scenario)


def test_a_half_closed_client_gets_its_answer(run: Callable[[Scenario], None]) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.01)
        return Response(200, b"late")

    async def scenario() -> None:
        async with serving(handler) as (_, connect):
            client = await connect()
            client.send(post())
            client.writer.write_eof()
            assert (await client.answer())[2] == b"late"
            assert await client.ended()

    run(scenario)


def test_a_failing_handler_answers_500(run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> Response:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with serving(handler) as (server, connect):
            client = await connect()
            client.send(post())
            status, _, content = await client.answer()
            assert status == 500 and b"a bug" not in content
            assert server.counters.failures == 1

    run(scenario)
    assert "a bug" in caplog.text


def test_a_large_answer_to_a_slow_reader(run: Callable[[Scenario], None]) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, b"x" * 5_000_000)

    async def scenario() -> None:
        async with serving(handler, write_s=600) as (server, connect):
            client = await connect()
            client.send(post() + post())
            assert len((await client.answer())[2]) == 5_000_000
            assert len((await client.answer())[2]) == 5_000_000
            stuck = socket.create_connection(("127.0.0.1", server.port))
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.send(post())
            await until(lambda: any(connection._writable is not None for connection in server._connections))
            for connection in list(server._connections):
                if connection._writable is not None:
                    connection.check(server.tick + 602)
            await until(lambda: server.connections_open == 1)
            stuck.close()

    run(scenario)


def test_stop_finishes_what_is_in_work(run: Callable[[Scenario], None]) -> None:
    started = asyncio.Event()
    release = asyncio.Event()

    async def handler(request: Request) -> Response:
        started.set()
        await release.wait()
        return Response(200, b"finished")

    async def scenario() -> None:
        async with serving(handler) as (server, connect):
            idle, busy = await connect(), await connect()
            busy.send(post())
            await started.wait()
            stopping = asyncio.create_task(server.stop(10))
            assert await idle.ended()
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await connect()
            assert not stopping.done()
            release.set()
            _, headers, content = await busy.answer()
            assert content == b"finished" and headers["connection"] == "close"
            await stopping
            assert server.connections_open == 0

    run(scenario)


def test_stop_does_not_wait_for_ever(run: Callable[[Scenario], None]) -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(600)
        return Response(200)

    async def scenario() -> None:
        async with serving(handler) as (server, connect):
            client = await connect()
            client.send(post())
            await until(lambda: server.counters.requests == 1)
            await server.stop(0.01)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await client.answer()

    run(scenario)


# --- direct: answers without a task ------------------------------------------------------------


class Held:
    """Takes requests for /direct; their answers are written when the test says so."""

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, Reply]] = []

    def __call__(self, request: Request, reply: Reply) -> bool:
        if request.path == "/bug":
            raise RuntimeError("a bug")
        if request.path != "/direct":
            return False
        request.cancellable = request.body == b"only a wait"
        self.replies.append((request.body, reply))
        return True

    def answer(self) -> bool:
        body, reply = self.replies.pop(0)
        return reply(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_direct_answers_keep_their_place(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (server, connect):
            client = await connect()
            client.send(post(b"1", "/direct") + post(b"2", "/other") + post(b"3", "/direct") + post(b"4", "/direct"))
            await until(lambda: len(held.replies) == 1)
            await asyncio.sleep(0.01)
            assert len(held.replies) == 1 and held.answer()  # the others wait behind it, and go the general way
            assert (await client.answer())[2] == b"1"
            for number in (b"2", b"3", b"4"):
                assert number in (await client.answer())[2]
            client.send(post(b"5", "/direct"))
            await until(lambda: len(held.replies) == 1)
            assert held.answer()
            assert (await client.answer())[2] == b"5"
            assert server.counters.requests == 5 and server.usage.bytes_held == 0

    run(scenario)


@pytest.mark.parametrize("body", [b"only a wait", b"a deed"])
def test_a_client_that_leaves_before_a_direct_answer(run: Callable[[Scenario], None], body: bytes) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (server, connect):
            client = await connect()
            client.send(post(body, "/direct"))
            await until(lambda: len(held.replies) == 1)
            [connection] = server._connections
            client.close()
            if body == b"a deed":  # is answered to the end, for a client that has only said all it had to say
                await until(lambda: connection._finishing)
                assert held.answer()
            await until(lambda: server.connections_open == 0)
            assert connection.task is not None
            await connection.task  # nothing is left that waits for ever
            assert not held.replies or not held.answer()
            assert server.usage.bytes_held == 0

    run(scenario)


def test_a_connection_that_breaks_before_a_direct_answer(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (server, connect):
            client = await connect()
            client.send(post(b"a deed", "/direct"))
            await until(lambda: len(held.replies) == 1)
            [connection] = server._connections
            plain_socket = client.writer.get_extra_info("socket")
            plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()  # resets it
            await until(lambda: server.connections_open == 0)
            assert connection.task is not None
            await connection.task
            assert not held.answer()

    run(scenario)


def test_stopping_and_half_closing_wait_for_a_direct_answer(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (server, connect):
            stopped, half_closed = await connect(), await connect()
            half_closed.send(post(b"1", "/direct"))
            await until(lambda: len(held.replies) == 1)
            half_closed.writer.write_eof()
            stopped.send(post(b"2", "/direct"))
            await until(lambda: len(held.replies) == 2)
            stopping = asyncio.create_task(server.stop(10))
            await asyncio.sleep(0.01)
            assert held.answer() and held.answer()
            assert (await half_closed.answer())[2] == b"1" and await half_closed.ended()
            assert (await stopped.answer())[2] == b"2" and await stopped.ended()
            await stopping

    run(scenario)


def test_a_half_closed_client_gets_no_answer_in_the_place_of_one_that_is_not_given(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (server, connect):
            client = await connect()
            client.send(post(b"only a wait", "/direct") + post(b"2", "/other"))
            await until(lambda: len(held.replies) == 1)
            [connection] = server._connections
            client.writer.write_eof()
            await until(lambda: connection._finishing)
            assert not held.answer(), "nobody is there"
            assert await client.ended(), "the second answer would be taken for the first one"

    run(scenario)


def test_a_direct_handler_that_fails(run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(direct=Held()) as (server, connect):
            client = await connect()
            client.send(post(b"1", "/bug"))
            assert (await client.answer())[0] == 500
            assert server.counters.failures == 1

    run(scenario)
    assert "a bug" in caplog.text


def test_garbage_behind_a_direct_request(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(direct=held) as (_, connect):
            client = await connect()
            client.send(post(b"1", "/direct") + b"\x00\x00garbage\r\n\r\n")
            await until(lambda: len(held.replies) == 1)
            assert held.answer()
            assert (await client.answer())[2] == b"1"
            assert (await client.answer())[0] == 400
            assert await client.ended()

    run(scenario)


# --- routes and heads -----------------------------------------------------------------------------


def test_routes() -> None:
    async def page(request: Request) -> Response:
        return Response(200, b"page")

    router = Router(echo)
    router.mount("/", page)
    router.mount("/clock", page, methods=["POST"])
    assert router.resolve(Request("GET", "/")) is page
    assert router.resolve(Request("HEAD", "/")) is page
    assert router.resolve(Request("POST", "/")) is echo
    assert router.resolve(Request("GET", "/", "Action=ListQueues")) is echo
    assert router.resolve(Request("GET", "/000000000000/queue")) is echo
    assert router.resolve(Request("POST", "/clock")) is page
    with pytest.raises(ValueError, match="mounted already"):
        router.mount("/", page)


def test_heads_keep_the_date_for_a_second_and_headers_on_their_line() -> None:
    now = 1_700_000_000.5
    heads = Heads(lambda: now)
    response = Response(404, b"gone", "text/html", (("X-Note", "a\r\nSet-Cookie: b"), ("X-Other", "c")))
    head = heads.head(response, close=True)
    assert head == (
        b"HTTP/1.1 404 Not Found\r\nServer: Baton\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"X-Content-Type-Options: nosniff\r\nContent-Type: text/html\r\nX-Note: a  Set-Cookie: b\r\nX-Other: c\r\n"
        b"Connection: close\r\nContent-Length: 4\r\n\r\n"
    )
    now += 1
    assert b"22:13:21" in heads.head(response, close=True)

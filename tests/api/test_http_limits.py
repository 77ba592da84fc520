"""What a client that means harm can take of the HTTP server: memory, time and places, all within stated bounds."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import cast

import pytest

from batonq.api.http import CredentialGate, HttpLimits, Request, Response
from batonq.api.http.limits import KIB, MIB
from batonq.api.http.request_reader import PART_BYTES, Reading, RequestReader
from tests.api.raw import Client, Connect, Scenario, post, serving, until

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
WISH = b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


async def headers_back(request: Request) -> Response:
    """What the handler was given, line by line."""
    lines = [name + b": " + value for name, value in sorted(request.headers.items())]
    return Response(200, b"\n".join(lines))


class Held:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.began = 0

    async def __call__(self, request: Request) -> Response:
        self.began += 1
        await self.release.wait()
        return Response(200, request.path.encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def refused(client: Client, status: int) -> bytes:
    """The client is told why, and its connection ends."""
    answered, headers, content = await client.answer()
    assert (answered, headers["connection"]) == (status, "close"), content
    return content


# --- trailers and heads -----------------------------------------------------------------------------


def test_trailers_are_not_made_part_of_the_request(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(headers_back) as (_, connect):
            client = await connect()
            client.send(CHUNKED + chunk(b"hello") + b"0\r\nX-Amz-Target: Evil\r\nHost: evil\r\nX: 1\r\nX: 2\r\n\r\n")
            assert (await client.answer())[2] == b"host: x\ntransfer-encoding: chunked"
            client.send(b"GET / HTTP/1.1\r\nHost: next\r\n\r\n")
            assert (await client.answer())[2] == b"host: next"

    run(scenario)


@pytest.mark.parametrize(
    "trailers",
    [b"X: y\r\n" * 40_000, b"".join(b"x%d: y\r\n" % number for number in range(30_000)), b"X: " + b"y" * 300_000],
    ids=["repeated", "different", "one long"],
)
@pytest.mark.parametrize("ended", [True, False])
def test_trailers_have_a_small_limit(run: Callable[[Scenario], None], trailers: bytes, ended: bool) -> None:
    async def scenario() -> None:
        async with serving(headers_back) as (server, connect):
            client = await connect()
            client.send(CHUNKED + chunk(b"hello") + b"0\r\n" + trailers + (b"\r\n\r\n" if ended else b""))
            await refused(client, 431)
            assert server.usage.bytes_held == 0

    run(scenario)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"".join(b"x%d: y\r\n" % number for number in range(127)), 200),
        (b"".join(b"x%d: y\r\n" % number for number in range(128)), 431),
        (b"X: y\r\n" * 127, 200),
        (b"X: y\r\n" * 128, 431),
        (b"X: y\r\n" * 9_000, 431),
        (b"X: " + b"y" * 60_000 + b"\r\n", 200),
        (b"X: " + b"y" * 70_000 + b"\r\n", 431),
    ],
    ids=["127", "128", "127 of one name", "128 of one name", "9000 of one name", "60 kB", "70 kB"],
)
def test_heads_are_limited_in_number_and_size(run: Callable[[Scenario], None], headers: bytes, status: int) -> None:
    """However the head arrives: whole, with a large body behind it, or with its end missing."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + headers

    async def scenario() -> None:
        async with serving() as (_, connect):
            whole, with_body = await connect(), await connect()
            whole.send(head + b"\r\n")
            assert (await whole.answer())[0] == status
            with_body.send(head.replace(b"Host: x\r\n", b"Content-Length: 100000\r\n") + b"\r\n" + bytes(100_000))
            assert (await with_body.answer())[0] == status
            if status == 431:
                endless = await connect()
                endless.send(head + b"X: y")
                await refused(endless, 431)

    run(scenario)


def test_repeated_headers_are_joined(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(headers_back) as (_, connect):
            client = await connect()
            client.send(b"GET / HTTP/1.1\r\nHost: x\r\nB: 1\r\nA: 2\r\nb: 3\r\nB: 4\r\n\r\n")
            assert (await client.answer())[2] == b"a: 2\nb: 1,3,4\nhost: x"

    run(scenario)


# --- bodies in pieces -------------------------------------------------------------------------------


def test_small_chunks_take_no_more_than_twice_their_bytes(run: Callable[[Scenario], None]) -> None:
    """Nor anything once the client has gone, whether or not Python looks for garbage by then."""
    size = 1 * MIB

    async def scenario() -> None:
        async with serving() as (server, connect):
            client = await connect()
            client.send(CHUNKED)
            await until(lambda: server.usage.bytes_held > 0)
            pieces = chunk(bytes(32)) * (size // 256)
            gc.collect()
            gc.disable()
            tracemalloc.start()
            try:
                for _ in range(8):
                    client.send(pieces)
                    await client.writer.drain()
                await until(lambda: server.usage.bytes_held >= size)
                client.writer.transport.set_write_buffer_limits(0)
                held, _ = tracemalloc.get_traced_memory()
                assert held < 2 * size + 512 * KIB
                assert server.usage.bytes_held < 2 * size
                client.close()
                await until(lambda: server.connections_open == 0)
                await asyncio.sleep(0)
                left, _ = tracemalloc.get_traced_memory()
                assert left < 512 * KIB and server.usage.bytes_held == 0
            finally:
                tracemalloc.stop()
                gc.enable()

    run(scenario)


def test_the_number_of_small_chunks_is_limited(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(chunks_max=1_000) as (_, connect):
            some, many, large = await connect(), await connect(), await connect()
            some.send(CHUNKED + chunk(b"x") * 1_000 + b"0\r\n\r\n")
            assert b" 1000 " in (await some.answer())[2]
            many.send(CHUNKED + chunk(b"x") * 20_000)
            assert b"larger" in await refused(many, 400)
            large.send(CHUNKED + chunk(b"x" * 100) * 5_000 + b"0\r\n\r\n")
            assert b" 500000 " in (await large.answer())[2]

    run(scenario)


def test_others_have_their_turn_between_small_chunks(run: Callable[[Scenario], None]) -> None:
    """Hundreds of connections may send small chunks in the same moment: of each, little is read in one turn."""

    class Body:
        whole = b""

        def take(self, request: Request) -> None:
            self.whole = request.body

    body = Body()
    reader = RequestReader(cast(Reading, body), HttpLimits(), None, "peer", "http")
    unread = reader.feed(CHUNKED + chunk(b"x") * 1_000 + b"0\r\n\r\n")
    turns = 1
    while unread:
        before = len(unread)
        unread = reader.feed(unread)
        assert before - len(unread) <= 2 * PART_BYTES
        turns += 1
    assert turns > 1 and body.whole == b"x" * 1_000

    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            client.send(CHUNKED + chunk(b"x" * 40) * 10_000 + b"0\r\n\r\n" + post(b"next"))
            assert b" 400000 " in (await client.answer())[2]
            assert b" 4 " in (await client.answer())[2]

    run(scenario)


# --- many requests at once --------------------------------------------------------------------------


def test_thousands_of_wishes_to_upgrade_in_one_segment(run: Callable[[Scenario], None]) -> None:
    count = 3_000

    async def path(request: Request) -> Response:
        return Response(200, request.path.encode())

    async def scenario() -> None:
        async with serving(path) as (server, connect):
            client = await connect()
            client.send(b"".join(WISH % number for number in range(count)) + post(b"last", "/last"))
            for number in range(count):
                assert (await client.answer())[2] == b"/%d" % number
            assert (await client.answer())[2] == b"/last"
            assert server.counters.requests == count + 1

    run(scenario)


def test_a_wish_to_upgrade_keeps_what_else_the_head_says(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(headers_back) as (_, connect):
            client = await connect()
            client.send(
                b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\nA: 2\r\n\r\n"
            )
            _, headers, content = await client.answer()
            assert content == b"a: 1,2\nconnection: close\nhost: x"
            assert headers["connection"] == "close" and await client.ended()
            bad = await connect()
            bad.send(WISH % 1 + b"\x00garbage\r\n\r\n")
            assert (await bad.answer())[0] == 200
            await refused(bad, 400)

    run(scenario)


def test_pipelined_requests_wait_unread(run: Callable[[Scenario], None]) -> None:
    """However many come in one segment, only so many are taken apart before the first is answered."""
    count = 8_000

    async def scenario() -> None:
        held = Held()
        async with serving(held) as (server, connect):
            client, other = await connect(), await connect()
            client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(count)))
            await until(lambda: held.began == 1)
            assert server.usage.bytes_held < 3 * MIB
            other.send(post(path="/other"))
            await until(lambda: held.began == 2)
            held.release.set()
            assert (await other.answer())[2] == b"/other"
            for number in range(count):
                assert (await client.answer())[2] == b"/%d" % number
            await until(lambda: server.usage.bytes_held == 0)

    run(scenario)


def test_others_have_their_turn_between_pipelined_requests(run: Callable[[Scenario], None]) -> None:
    order: list[str] = []

    async def note(request: Request) -> Response:
        order.append(request.path)
        return Response(200)

    async def scenario() -> None:
        async with serving(note) as (_, connect):
            greedy, modest = await connect(), await connect()
            greedy.send(b"GET /greedy HTTP/1.1\r\n\r\n" * 1_000)
            await until(lambda: bool(order))
            modest.send(b"GET /modest HTTP/1.1\r\n\r\n")
            assert (await modest.answer())[0] == 200
            assert len(order) < 1_001  # the others are still to come
            for _ in range(1_000):
                await greedy.answer()

    run(scenario)


def test_the_end_of_a_client_that_has_sent_much_ahead(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect):
            client = await connect()
            client.send(post(b"x" * 1_000) * 300)
            client.writer.write_eof()
            for _ in range(300):
                assert (await client.answer())[0] == 200
            assert await client.ended()

    run(scenario)


# --- memory of all requests -------------------------------------------------------------------------


async def stalled(connect: Connect, count: int, source: str = "127.0.0.1", size: int = 64 * KIB) -> list[Client]:
    """Clients that send all of a body but its last byte."""
    clients = [await connect(source) for _ in range(count)]
    for client in clients:
        client.send(post(bytes(size))[:-1])
        await client.writer.drain()
    return clients


def test_clients_that_stall_make_room_for_those_that_send(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(requests_bytes_max=8 * MIB) as (server, connect):
            idle = await stalled(connect, 140)
            await until(lambda: server.usage.bytes_held > 7 * MIB)
            assert server.usage.bytes_held <= 8 * MIB
            for _ in range(3):
                client = await connect()
                client.send(post(bytes(64 * KIB)))
                assert (await client.answer())[0] == 200
            await refused(idle[0], 503)  # the one that has stalled for longest
            idle[-1].send(b"x")
            assert (await idle[-1].answer())[0] == 200

    run(scenario)


def test_one_address_takes_no_more_than_its_share(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(requests_bytes_max=8 * MIB, address_share=0.5) as (server, connect):
            here = await stalled(connect, 40)
            there = await stalled(connect, 100, "127.0.0.2")
            await until(lambda: server.usage.bytes_held > 6 * MIB)
            assert server.usage.bytes_held <= 7 * MIB
            for client in here:  # they are older than all of the others, and have an address of their own
                client.send(b"x")
                assert (await client.answer())[0] == 200
            await refused(there[0], 503)

    run(scenario)


def test_answers_that_are_not_read_make_room(run: Callable[[Scenario], None]) -> None:
    """They count as what is held, and the one that has not been read for the longest gives way."""
    size = 16 * MIB  # more than the system takes from the server for a client that does not read

    async def large(request: Request) -> Response:
        return Response(200, bytes(size if request.path == "/large" else 1))

    async def scenario() -> None:
        async with serving(large, requests_bytes_max=3 * size) as (server, connect):
            unread = []
            for _ in range(8):
                unread.append(await connect())
                unread[-1].send(post(b"", "/large") + post(b"", "/large"))
                before = server.counters.requests
                await until(lambda before=before: server.counters.requests > before)  # type: ignore[misc]
                assert server.usage.bytes_held <= 3 * size
            assert server.usage.bytes_held > size
            await until(lambda: server.connections_open < 8)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await unread[0].answer()
            for _ in range(2):
                assert len((await unread[-1].answer())[2]) == size
            client = await connect()
            client.send(post(b"", "/small"))
            assert (await client.answer())[2] == b"\0"
            for other in unread:
                other.close()
            await until(lambda: server.connections_open == 1)
            assert server.usage.bytes_held == 0

    run(scenario)


def test_an_answer_larger_than_all_room_is_given(run: Callable[[Scenario], None]) -> None:
    async def large(request: Request) -> Response:
        return Response(200, bytes(16 * MIB))

    async def scenario() -> None:
        async with serving(large, requests_bytes_max=1 * MIB) as (server, connect):
            client = await connect()
            for _ in range(2):
                client.send(post())
                assert len((await client.answer())[2]) == 16 * MIB
            await until(lambda: server.usage.bytes_held == 0)

    run(scenario)


def test_work_is_not_thrown_away_to_make_room(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(held, requests_bytes_max=1 * MIB) as (server, connect):
            working = [await connect() for _ in range(4)]
            for client in working:
                client.send(post(bytes(255 * KIB), "/work"))
            await until(lambda: held.began == 4)
            late = await connect()
            late.send(post(bytes(64 * KIB)))
            await refused(late, 503)
            held.release.set()
            for client in working:
                assert (await client.answer())[0] == 200
            late.close()
            await until(lambda: server.usage.bytes_held == 0)

    run(scenario)


def test_one_address_has_no_more_than_its_share_of_connections(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(connections_max=4, address_share=0.5) as (server, connect):
            mine = [await connect() for _ in range(2)]
            await until(lambda: server.connections_open == 2)
            await refused(await connect(), 503)
            other = await connect("127.0.0.2")
            other.send(post())
            assert (await other.answer())[0] == 200
            mine[0].close()
            await until(lambda: server.connections_open == 2)
            again = await connect()
            again.send(post())
            assert (await again.answer())[0] == 200

    run(scenario)


def test_what_one_connection_holds_is_limited(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        held = Held()
        async with serving(held, body_bytes_max=MIB) as (server, connect):
            client = await connect()
            sending = asyncio.create_task(_send_all(client, post(bytes(MIB)) * 30))
            await until(lambda: held.began == 1)
            for _ in range(100):
                await asyncio.sleep(0)
                assert server.usage.bytes_held < 2 * MIB + 512 * KIB
            assert not sending.done()  # the rest stays with the client
            held.release.set()
            for _ in range(30):
                assert (await client.answer())[0] == 200
            await sending

    run(scenario)


async def _send_all(client: Client, data: bytes) -> None:
    client.send(data)
    await client.writer.drain()


# --- slow clients -----------------------------------------------------------------------------------


def test_a_body_has_to_keep_coming(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(body_window_s=5, body_rate_bytes_min=1_000) as (server, connect):
            slow, steady = await connect(), await connect()
            for client in (slow, steady):
                client.send(post(bytes(100_000))[:50_000])
            await until(lambda: server.usage.bytes_held > 100_000)
            tick = server.tick
            for passed_s in (2, 4):
                for connection in list(server._connections):
                    connection.check(tick + passed_s)
            before = server.usage.bytes_held
            steady.send(bytes(6_000))
            slow.send(bytes(4_000))
            await until(lambda: server.usage.bytes_held >= before + 10_000)
            for connection in list(server._connections):
                connection.check(tick + 5)
            await refused(slow, 408)
            steady.send(post(bytes(100_000))[56_000:])
            assert (await steady.answer())[0] == 200

    run(scenario)


def test_a_request_that_begins_behind_another_is_timed_too(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with serving(request_s=2) as (server, connect):
            client = await connect()
            client.send(post(b"whole") + b"GET /half HTTP/1.1\r\nHost:")
            assert (await client.answer())[0] == 200
            for connection in list(server._connections):
                connection.check(server.tick + 3)
            await refused(client, 408)

    run(scenario)


# --- without credentials ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "header", "status"),
    [
        ("/", "", 403),
        ("/?X-Amz-Signature=abc", "", 200),
        ("/", "Authorization: AWS4-HMAC-SHA256 abc\r\n", 200),
        ("/", "X-Node: abc\r\n", 200),
        ("/open/door", "", 200),
        ("/opened", "", 403),
    ],
)
def test_a_large_body_is_read_only_with_credentials(
    run: Callable[[Scenario], None], target: str, header: str, status: int
) -> None:
    async def judge(request: Request) -> Response:
        return Response(200 if len(request.body) > 64 * KIB else 403, b"%d" % len(request.body))

    async def scenario() -> None:
        async with serving(judge) as (server, connect):
            server.gate = CredentialGate(HttpLimits(), [b"x-node"], b"/open/")
            body = bytes(100 * KIB)
            whole = await connect()
            whole.send(post(body, target, header))
            assert (await whole.answer())[0] == status
            chunked = await connect()
            start = f"POST {target} HTTP/1.1\r\nHost: x\r\n{header}Transfer-Encoding: chunked\r\n\r\n"
            chunked.send(start.encode() + chunk(body) + b"0\r\n\r\n")
            assert (await chunked.answer())[0] == status
            if status == 403:
                announced = await connect()
                announced.send(post(body, target, header)[: -len(body)])
                _, headers, content = await announced.answer()  # before any of the body has come
                assert content == b"0" and headers["connection"] == "close"
            small = await connect()
            small.send(post(bytes(64 * KIB), target, header) + post(bytes(64 * KIB), target, header))
            for _ in range(2):
                assert (await small.answer())[2] == b"65536"

    run(scenario)

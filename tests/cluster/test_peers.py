"""Calls from node to node over real HTTP: who may, what is remembered, and what a lost line means."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from batonq.api.http import HttpServer, Request, Response
from batonq.api.internal import InternalApp
from batonq.certificates import client_context, server_context
from batonq.core.commands import Command, Receive
from batonq.errors import AccessDenied, InvalidInput, NotOwner, Unavailable
from batonq.node.cluster import node_server as answering
from batonq.node.cluster.node import read_secret
from batonq.node.cluster.node_server import REMEMBERED_BYTES_MAX, REMEMBERED_MAX, Answering, Call, Memory, Served
from batonq.node.cluster.peers import PREFIX, NoAnswer, NotSent, Peers
from batonq.node.messages.received import Delivery
from batonq.node.routing import wire
from batonq.node.routing.submission import Done, Waiting
from batonq.node.settings import Settings
from tests.support.authority import Authority
from tests.support.doubles import double
from tests.support.patience import patient_nodes

SECRET = b"a secret of some length"
WAIT_S = 120
HEADERS = {b"content-type": b"application/msgpack"}

# Which an earlier release announces.
NO_ADDRESSES = (
    "http://n1:99999",
    "http://n1:x",
    "http://a..b:1",
    f"http://{'a' * 64}:1",
    "http://[::1:1",
    "http://\N{GREEK SMALL LETTER ALPHA}:1",
)


class Shard:
    """Every receive waits."""

    def __init__(self) -> None:
        self.begun = 0
        self.waiting = 0

    def submit(self, command: Command, done: Done) -> Waiting:
        self.begun += 1
        self.waiting += 1
        return self

    def abandon(self) -> None:
        self.waiting -= 1


@double("give_back", "port_here", "epoch_here")
class Echo(Answering):
    """Answers with what it was asked, and counts."""

    def __init__(self) -> None:
        super().__init__(cast(Served, self))
        self.runs: list[str] = []
        self.back: list[Any] = []
        self.found: list[Any] = []
        self.shard = Shard()
        self.ownership_loop = None
        self.opened = True

    async def give_back(self, found: Any) -> None:
        self.back += found

    async def _run(self, path: str, name: str, body: bytes) -> bytes:
        self.runs.append(path)
        await asyncio.sleep(0)
        if path == "elsewhere":
            raise NotOwner("ask another node")
        if path == "wrong":
            raise InvalidInput("that is wrong")
        if path.startswith("node/"):
            return await super()._run(path, name, body)
        if path.endswith("/receive_matching"):
            return wire.encode(self.found)
        return body[::-1]

    def port_here(self, shard: int) -> Any:
        return self.shard

    def epoch_here(self, shard: int) -> int:
        return 1


def with_server(
    main: Callable[[str, Echo], Awaitable[None]], secret: bytes = SECRET, context: ssl.SSLContext | None = None
) -> None:
    async def run() -> None:
        echo = Echo()
        app = InternalApp(echo, secret)
        server = HttpServer(lambda request: app.handle, direct=app.begin)
        await server.start("127.0.0.1", 0, ssl=context)
        try:
            await main(f"{server.scheme}://127.0.0.1:{server.port}", echo)
        finally:
            await server.stop(1)

    with patient_nodes():
        asyncio.run(run())


def test_a_call_and_its_errors_come_back() -> None:
    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        large = bytes(range(256)) * 8_000
        for body in (b"", b"abc", large):
            assert await peers.ask(address, f"{PREFIX}any", "", body, WAIT_S) == body[::-1]
        with pytest.raises(InvalidInput, match="that is wrong"):
            await peers.ask(address, f"{PREFIX}wrong", "", b"", WAIT_S)
        assert (
            len(await asyncio.gather(*(peers.ask(address, f"{PREFIX}x", "", b"1", WAIT_S) for _ in range(100)))) == 100
        )
        peers.close()

    with_server(main)


def test_only_who_knows_the_secret_is_answered() -> None:
    async def main(address: str, echo: Echo) -> None:
        for secret in (b"", b"another secret than theirs"):
            peers = Peers(secret)
            with pytest.raises(AccessDenied):
                await peers.ask(address, f"{PREFIX}any", "", b"abc", WAIT_S)
            peers.close()
        assert not echo.runs

    with_server(main)


def test_a_node_is_asked_over_tls_when_it_says_so_and_only_one_that_is_known(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    made = authority.sign("node", "127.0.0.1")

    async def main(address: str, echo: Echo) -> None:
        assert address.startswith("https://")
        peers = Peers(SECRET, client_context(str(authority.file)))
        body = bytes(1_000_000)
        assert (
            await asyncio.gather(*(peers.ask(address, f"{PREFIX}x", "", body, WAIT_S) for _ in range(5))) == [body] * 5
        )
        for context in (client_context(str(other.file)), None):
            wary = Peers(SECRET, context)
            with pytest.raises(NotSent, match="certificate verify failed"):
                await wary.ask(address, f"{PREFIX}any", "", b"abc", WAIT_S)
            wary.close()
        with pytest.raises(NotSent):
            await peers.ask(address.replace("127.0.0.1", "localhost"), f"{PREFIX}any", "", b"abc", WAIT_S)
        assert len(echo.runs) == 5
        peers.close()

    with_server(main, context=server_context(str(made.certificate), str(made.key))[0])


def test_without_a_secret_only_this_machine_may_ask() -> None:
    async def ask(peer: str) -> Response:
        app = InternalApp(Echo(), b"")
        return await app.handle(Request("POST", "/internal/any", headers=HEADERS, body=b"x", peer=peer))

    assert asyncio.run(ask("127.0.0.2")).status == 200
    assert asyncio.run(ask("10.1.2.3")).status == 403


def test_a_call_that_is_made_again_is_not_run_again() -> None:
    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        for _ in range(3):
            assert await peers.ask(address, f"{PREFIX}any", "call-1", b"abc", WAIT_S) == b"cba"
            with pytest.raises(InvalidInput):
                await peers.ask(address, f"{PREFIX}wrong", "call-2", b"", WAIT_S)
            with pytest.raises(NotOwner):  # that was not run, and may be the next time
                await peers.ask(address, f"{PREFIX}elsewhere", "call-3", b"", WAIT_S)
        assert sorted(echo.runs) == ["any", "elsewhere", "elsewhere", "elsewhere", "wrong"]
        peers.close()

    with_server(main)


def test_a_call_whose_answer_had_to_be_forgotten_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "REMEMBERED_MAX", 1)

    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        for name in ("first", "second", "third", "fourth"):
            await peers.ask(address, f"{PREFIX}{name}", name, b"", WAIT_S)
        with pytest.raises(Unavailable, match="may or may not"):
            await peers.ask(address, f"{PREFIX}first", "first", b"", WAIT_S)
        assert echo.runs == ["first", "second", "third", "fourth"]
        peers.close()

    with_server(main)


def test_calls_are_refused_before_the_name_of_one_that_was_run_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "REMEMBERED_MAX", 1)
    monkeypatch.setattr(answering, "NAMES_MAX", 2)

    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        run = ["first", "second", "third", "fourth"]
        for name in run:
            await peers.ask(address, f"{PREFIX}{name}", name, b"", WAIT_S)
        with pytest.raises(Unavailable, match="The request was not executed"):
            await peers.ask(address, f"{PREFIX}fifth", "fifth", b"", WAIT_S)
        for name in run[:2]:
            with pytest.raises(Unavailable, match="may or may not"):
                await peers.ask(address, f"{PREFIX}{name}", name, b"", WAIT_S)
        assert echo.runs == run
        monkeypatch.setattr(answering, "REMEMBERED_S", 0.0)
        await peers.ask(address, f"{PREFIX}later", "later", b"", WAIT_S)
        assert echo.runs == [*run, "later"]
        peers.close()

    with_server(main)


def test_a_long_poll_ends_with_its_connection_and_other_calls_do_not() -> None:
    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        await peers.ask(address, f"{PREFIX}any", "", b"", WAIT_S)  # so that the next one need not wait for a connection
        asked = wire.encode_commands([Receive(1, 1, None, "zoe", wait_ms=20_000)])
        with pytest.raises(NoAnswer):
            await peers.ask(address, f"{PREFIX}shards/0/poll", "call", asked, 0.5)
        async with asyncio.timeout(WAIT_S):
            while echo._memory.find("call") is not None:  # noqa: ASYNC110 - the server sees it when it sees it
                await asyncio.sleep(0.01)
        assert (echo.shard.begun, echo.shard.waiting) == (1, 0)
        peers.close()

    with_server(main)


@pytest.mark.parametrize("late", [False, True])
def test_a_receive_that_is_repeated_goes_on_though_its_first_connection_ends(late: bool) -> None:
    async def main(address: str, echo: Echo) -> None:
        delivery = Delivery("id", "receipt", b"", b"", b"", "", "", "", "", 1, 0, 0, 1, 0, 0, None)
        echo.found = [(7, delivery)]
        asked = wire.encode(("account", ["hooks-*"], 1, None, 0, "holder"))
        first, repetition = (
            asyncio.ensure_future(echo.handle("shards/0/receive_matching", "call", asked)) for _ in range(2)
        )
        for _ in range(2 if late else 1):  # the receive ends in the second turn
            await asyncio.sleep(0)
        first.cancel()
        assert await repetition == wire.encode(echo.found)
        await asyncio.sleep(0.01)
        assert first.cancelled() and echo.runs == ["shards/0/receive_matching"]
        assert not echo.back, "the repetition has them"

    with_server(main)


def test_what_was_received_for_one_that_gives_up_is_given_back_though_the_answer_has_left() -> None:
    async def main(address: str, echo: Echo) -> None:
        peers = Peers(SECRET)
        delivery = Delivery("id", "receipt", b"", b"", b"", "", "", "", "", 1, 0, 0, 1, 0, 0, None)
        echo.found = [(7, delivery)]
        asked = wire.encode(("account", ["hooks-*"], 1, None, 0, "holder"))
        await peers.ask(address, f"{PREFIX}shards/0/receive_matching", "call", asked, WAIT_S)
        for name in ("call", "call", "unknown"):
            await peers.ask(address, f"{PREFIX}node/give_up", "", msgspec.msgpack.encode(name), WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while not echo.back:  # noqa: ASYNC110 - it is given back beside the answer
                await asyncio.sleep(0.01)
        assert echo.back == [(7, delivery)]
        peers.close()

    with_server(main)


def test_a_node_that_is_not_there_was_asked_nothing() -> None:
    async def main() -> None:
        with pytest.raises(NotSent):
            await Peers(SECRET).ask("http://127.0.0.1:9", "/internal/any", "", b"", WAIT_S)

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer):
            await Peers(SECRET).ask(f"http://127.0.0.1:{port}", "/internal/any", "", b"", WAIT_S)
        server.close()
        await server.wait_closed()

    asyncio.run(main())


ANSWERS = {
    "in pieces": ([b"HTTP/1.1 20", b"0 OK\r\ncontent-length:  5\r", b"\n\r\nab", b"cde"], b"abcde"),
    "empty": ([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], b""),
    "no length": ([b"HTTP/1.1 200 OK\r\n\r\nabc"], None),
    "too long": ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc"], None),
    "too short": ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc"], None),
    "too much": ([b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\nabc"], None),
    "no status": ([b"HTTP/1.1 OK\r\nContent-Length: 3\r\n\r\nabc"], None),
    "endless head": ([b"HTTP/1.1 200 OK\r\n" + b"x" * (65 << 10)], None),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_only_a_whole_answer_is_an_answer(what: str) -> None:
    pieces, expected = ANSWERS[what]

    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        ended = asyncio.Event()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peers = Peers(SECRET)
        if expected is None:
            with pytest.raises(NoAnswer):
                await peers.ask(address, "/internal/any", "", b"", WAIT_S)
        else:
            assert await peers.ask(address, "/internal/any", "", b"", WAIT_S) == expected
        peers.close()
        await ended.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_answers_are_forgotten_in_time_though_a_call_from_before_still_runs() -> None:
    async def main() -> None:
        memory = Memory()

        def run(name: str, size: int) -> None:
            call = Call("")
            memory.add(name, call)
            call.answer = b"x" * size
            memory.end(name, call)

        poll = Call("")
        memory.add("poll", poll)
        for number in range(REMEMBERED_MAX + 50):
            run(str(number), 1_000)
        run("last", 1_000)
        assert memory.find("0") is None and memory.find("last") is not None
        run("large", REMEMBERED_BYTES_MAX)
        memory.add("after it", Call(""))
        assert memory.find("last") is None, "all answers together have a limit"
        assert memory.has_lost("last") and not memory.has_lost("after it"), "but what was run is not run again"
        assert memory.find("poll") is poll
        poll.answer = NotOwner("ask another node")
        memory.end("poll", poll)
        assert memory.find("poll") is None

    asyncio.run(main())


def test_a_secret_that_is_no_secret_is_refused(tmp_path: object) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_secret(Settings(cluster_secret_file="/nowhere/at/all"))
    with pytest.raises(InvalidInput, match="Create a secret"):
        Settings(host="10.0.0.1", secure=True, log_url="nats://x", node="a", advertise="http://10.0.0.1:9324").check()
    for wrong in (
        {"node": "a b"},
        {"log_url": ""},
        {"advertise": "10.0.0.1"},
        *({"advertise": address} for address in NO_ADDRESSES),
        {"tls_cert": "certificate.pem"},
        {"tls_key": "key.pem"},
    ):
        values: dict[str, Any] = {"log_url": "nats://x", "node": "a", "advertise": "http://127.0.0.1:1", **wrong}
        with pytest.raises(InvalidInput):
            Settings(**values).check()


@pytest.mark.parametrize(
    "host", ["n1", "n1:9324", "baton_1.example.org.:1", "10.0.0.1:65535", "[::1]:1", "[fe80::1%e0]"]
)
def test_an_address_that_can_be_reached_may_be_advertised(host: str) -> None:
    Settings(log_url="nats://x", node="a", advertise=f"http://{host}").check()


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_a_member_whose_address_is_not_valid_was_asked_nothing(address: str) -> None:
    with pytest.raises(NotSent, match=r"address|reached"):
        asyncio.run(Peers(SECRET).ask(address, "/internal/any", "", b"", WAIT_S))

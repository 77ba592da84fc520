"""Long messages of NATS: taken in whole, however they are cut on their way, and read no faster than they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.log.backend import Unreachable
from batonq.log.jetstream.client import LONG_BYTES, READ_BYTES, LongClient, LongParser, Parts, Pieces
from batonq.log.jetstream.requests import ask, ask_repeatedly
from tests.cluster.memory import run_simulated
from tests.log.fencing import until

Taken = tuple[int, bytes, bytes, bytes, bytes | None]


class Heard:
    """A client, as far as the parser asks for it."""

    def __init__(self) -> None:
        self.messages: list[Taken] = []
        self.pings = 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, payload: bytes, header: bytes | None) -> None:
        assert type(payload) is bytes
        self.messages.append((sid, subject, reply, payload, header))

    async def _process_ping(self) -> None:
        self.pings += 1


LENGTHS = st.one_of(
    st.integers(0, 60), st.integers(LONG_BYTES - 3, LONG_BYTES + 3), st.integers(LONG_BYTES, 6 * LONG_BYTES)
)
MESSAGES = st.lists(st.tuples(LENGTHS, st.sampled_from([b"", b"NATS/1.0\r\nName: value\r\n\r\n"])), max_size=6)


def written(messages: list[tuple[int, bytes]]) -> tuple[bytes, list[Taken]]:
    text, wanted = b"", []
    for number, (length, header) in enumerate(messages):
        payload = bytes([number + 65]) * (length // 2) + b"\r\n" * (length - length // 2)
        payload = payload[:length]
        if header:
            text += b"HMSG subject %d reply %d %d\r\n" % (number, len(header), len(header) + length)
        else:
            text += b"MSG subject %d reply %d\r\n" % (number, length)
        text += header + payload + b"\r\nPING\r\n"
        wanted.append((number, b"subject", b"reply", payload, header or None))
    return text, wanted


@settings(deadline=None)
@given(MESSAGES, st.lists(st.integers(1, 3 * LONG_BYTES), max_size=12))
def test_messages_are_whole_however_they_are_cut(messages: list[tuple[int, bytes]], cuts: list[int]) -> None:
    text, wanted = written(messages)

    async def run() -> Heard:
        heard = Heard()
        parser = LongParser(heard)
        rest = text
        for cut in cuts:
            piece, rest = rest[:cut], rest[cut:]
            await parser.parse(piece)
        await parser.parse(rest)
        return heard

    heard = asyncio.run(run())
    assert heard.messages == wanted
    assert heard.pings == len(messages)


class Wire:
    """A transport that can be told to wait."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def test_what_is_not_read_yet_is_not_taken_in_without_end() -> None:
    async def run() -> None:
        wire: Any = Wire()
        pieces = Pieces()
        pieces.set_transport(wire)
        chunk = bytes(READ_BYTES // 4)
        for _ in range(5):
            pieces.feed_data(chunk)
        assert wire.calls == ["pause"]
        assert await pieces.read() is chunk
        assert await pieces.read() is chunk
        assert wire.calls == ["pause"]
        await pieces.read()
        assert wire.calls == ["pause", "resume"]

    asyncio.run(run())


def test_a_line_comes_before_what_follows_it_and_the_end_is_told() -> None:
    async def run() -> None:
        pieces = Pieces()
        reading = asyncio.ensure_future(pieces.readline())
        await asyncio.sleep(0)
        pieces.feed_data(b"INFO {")
        pieces.feed_data(b"}\r\nPI")
        assert await reading == b"INFO {}\r\n"
        pieces.feed_data(b"NG\r\n")
        pieces.feed_eof()
        assert not pieces.at_eof()
        assert await pieces.read() + await pieces.read() == b"PING\r\n"
        assert pieces.at_eof() and await pieces.read() == b"" and await pieces.readline() == b""

    asyncio.run(run())


def test_whoever_waits_hears_of_a_connection_that_breaks() -> None:
    async def run() -> None:
        pieces = Pieces()
        reading = asyncio.ensure_future(pieces.read())
        await asyncio.sleep(0)
        pieces.set_exception(ConnectionResetError("gone"))
        with pytest.raises(ConnectionResetError):
            await reading
        assert isinstance(pieces.exception(), ConnectionResetError)

    asyncio.run(run())


def test_parts_have_the_length_of_all_of_them() -> None:
    assert len(Parts([b"ab", b"", b"cde"])) == 5


async def greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hear: Callable[[bytes, asyncio.StreamWriter], None] = lambda line, writer: None,
) -> None:
    """A server that greets, answers pings, and does with every line what `hear` does."""
    writer.write(b'INFO {"server_id":"s","max_payload":1048576,"headers":true}\r\n')
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
        hear(line, writer)
    writer.close()


class Socket:
    """A transport that takes what it is given, unless it is broken."""

    def __init__(self) -> None:
        self.broken = False
        self.written: list[bytes] = []

    def writelines(self, payload: list[bytes]) -> None:
        if self.broken:
            raise OSError("gone")
        self.written += payload


def test_a_long_message_is_written_at_once_and_in_its_place() -> None:
    async def main() -> None:
        client, socket = LongClient(), Socket()
        client._transport = cast(Any, socket)
        client._flush_queue = asyncio.Queue()
        client._flusher_task = asyncio.ensure_future(asyncio.sleep(3_600))
        client._status = LongClient.CONNECTED
        long: Any = Parts([b"long", b"er"])
        await client.publish("short", b"1")
        await client.publish("long", long, headers={"Name": "value"})
        head = b"NATS/1.0\r\nName: value\r\n\r\n"
        command = b"HPUB long  %d %d\r\n" % (len(head), len(head) + len(long))
        assert b"".join(socket.written) == b"PUB short  1\r\n1\r\n" + command + head + b"longer\r\n"
        assert (client._pending, client._pending_data_size) == ([], 0)
        while not client._flush_queue.empty():
            client._flush_queue.get_nowait()

        socket.broken = True
        await client.publish("long", long, headers={"Name": "value"})
        assert b"".join(client._pending) == command + head + b"longer\r\n"
        assert not client._flush_queue.empty(), "the flusher is to find out what is wrong"
        client._flusher_task.cancel()

    asyncio.run(main())


def test_a_question_is_over_when_its_connection_is_lost() -> None:
    async def main() -> None:
        asked = asyncio.Event()
        lines: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            lines.append(writer)
            await greet(reader, writer, lambda line, _: asked.set() if line.startswith(b"PUB question") else None)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = LongClient()
        await client.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=-1)
        inbox = await client.subscribe("answers")

        async def wait() -> None:
            async with client.expect(3_600):
                await inbox.next_msg(None)

        waiting = asyncio.ensure_future(wait())
        question = asyncio.ensure_future(ask(client, "here", client.request("question", b"?", 3_600), 3_600))
        await asked.wait()
        lines[0].transport.abort()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(question, 60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 60)
        assert waiting.done() and not waiting.cancelled(), "it ended by itself"
        await client.close()
        server.close()

    asyncio.run(main())


def test_a_connection_comes_back_whatever_is_about_to_end_or_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.log.jetstream.client.SILENT_S", 0.0)
    monkeypatch.setattr("batonq.log.jetstream.client.AGAIN_S", 0.01)

    async def main() -> None:
        connections: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            await greet(reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = LongClient()
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0)

        async def wait(turns: int) -> None:
            """It is over at the same time as others, and takes some turns of the loop to end."""
            try:
                async with client.expect(0.1):
                    try:
                        await asyncio.Event().wait()
                    finally:
                        for _ in range(turns):
                            await asyncio.sleep(0)
            except TimeoutError:
                await client.unanswered()

        await asyncio.gather(*map(wait, range(5)))
        await until(lambda: len(connections) > 1 and client.is_connected)

        tries = 0
        connect = client._select_next_server

        async def first_fail() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise KeyError("a bug of the library's")
            await connect()

        monkeypatch.setattr(client, "_select_next_server", first_fail)
        connections[-1].transport.abort()
        await until(lambda: tries > 1 and client.is_connected)
        await client.close()
        server.close()

    asyncio.run(main())


def test_a_server_that_answers_nothing_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.log.jetstream.client.SILENT_S", 0.2)

    async def main() -> None:
        def server(answers: bool) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
            def hear(line: bytes, writer: asyncio.StreamWriter) -> None:
                if line.startswith(b"PUB question") and answers:
                    writer.write(b"MSG " + line.split()[2] + b" 1 2\r\nhi\r\n")

            return lambda reader, writer: greet(reader, writer, hear)

        servers = [await asyncio.start_server(server(answers), "127.0.0.1", 0) for answers in (False, True)]
        urls = [f"nats://127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers]
        client = LongClient()
        await client.connect(urls, max_reconnect_attempts=-1, dont_randomize=True)
        assert client.connected_url is not None and client.connected_url.geturl() == urls[0]
        async with asyncio.timeout(60):
            while True:
                try:
                    answer = await ask(client, "here", client.request("question", b"?", 0.1), 0.1)
                    break
                except Unreachable:
                    await asyncio.sleep(0.01)
        assert answer.data == b"hi" and client.connected_url.geturl() == urls[1]
        await client.close()
        for each in servers:
            each.close()

    asyncio.run(main())


class Connected:
    """A client, as far as questions ask for it."""

    is_connected = True

    def expect(self, timeout_s: float) -> asyncio.Timeout:
        return asyncio.timeout(timeout_s)

    def answered(self) -> None: ...

    async def unanswered(self) -> None: ...


@pytest.mark.parametrize("heard", [0, 1, None], ids=["the first", "the second", "none"])
def test_what_nobody_heard_is_asked_again(heard: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.log.jetstream.requests.AGAIN_S", 0.02)
    asked: list[int] = []
    ended: list[int] = []

    async def main() -> None:
        thrice = asyncio.Event()

        async def question() -> str:
            number = len(asked)
            asked.append(number)
            try:
                if number == 2:
                    thrice.set()
                await (thrice if number == heard else asyncio.Event()).wait()
            finally:
                ended.append(number)
            return f"answer {number}"

        client: Any = Connected()
        if heard is None:
            with pytest.raises(Unreachable, match="here: TimeoutError"):
                await ask_repeatedly(client, "here", question, 0.1)
        else:
            assert await ask_repeatedly(client, "here", question, 60) == f"answer {heard}"
        assert len(asyncio.all_tasks()) == 1, "nobody waits any more for the others"

    run_simulated(main())
    assert sorted(ended) == asked and len(asked) > 1

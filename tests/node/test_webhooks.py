"""Webhooks: real receivers that fail, redirect or are slow; signatures; and addresses that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batonq.errors import InvalidInput
from batonq.node.alarms import webhook_request, webhooks
from batonq.node.alarms.book import Alarm, AlarmBook
from batonq.node.alarms.webhook_request import Failed, Refused, forbidden, parse_webhooks, post, signature
from batonq.node.alarms.webhooks import Webhooks
from batonq.node.settings import Settings
from tests.node.support import until
from tests.support.authority import Authority

SECRET = "a-secret-of-enough-length"
NOW_S = 1_700_000_000.5


class Receiver:
    """An HTTP server that answers with the planned statuses, then with 204."""

    def __init__(self, *planned: int, location: str = "") -> None:
        self.planned = [*planned]
        self.location = location
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.arrived = asyncio.Condition()
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"{'https' if context else 'http'}://127.0.0.1:{self.port}/hooks/secret?x=1"
        finally:
            server.close()
            await server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            headers["request"] = head[0]
            body = await reader.readexactly(int(headers["content-length"]))
            status = self.planned.pop(0) if self.planned else 204
            async with self.arrived:
                self.requests.append((headers, body))
                self.arrived.notify_all()
            if status:  # 0: the connection is closed without an answer
                location = f"Location: {self.location}\r\n" if self.location else ""
                writer.write(f"HTTP/1.1 {status} Whatever\r\n{location}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        writer.close()

    async def got(self, count: int) -> None:
        async with self.arrived, asyncio.timeout(30):
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    @property
    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.requests]


@contextlib.asynccontextmanager
async def talking(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A server for one connection that does as it is told, and has closed it when this ends."""
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait_for(ended.wait(), 30)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(webhooks, "RETRY_MAX_S", 0.01)


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return str(path)


def make(urls: str, secret_file: str, trust: ssl.SSLContext | None = None, **given: Any) -> tuple[Webhooks, AlarmBook]:
    fields = {"alarm_webhook_private": True, **given}
    settings = Settings(alarm_webhooks=urls, alarm_webhook_secret_file=secret_file, node="n1", **fields)
    settings.check()
    book = AlarmBook(lambda: int(NOW_S * 1000), 10)
    hooks = Webhooks(settings, book, time_s=lambda: NOW_S, random_bytes=lambda count: b"r" * count, trust=trust)
    book.listeners.append(hooks.tell)
    return hooks, book


def raised(**given: Any) -> Alarm:
    fields = {"severity": "warning", "text": "d has 3 dead letters.", "raised_ms": 1, "last_ms": 2, "ruled": True}
    return Alarm(id="dead-letters.d", kind="dead-letters", queue="d", **{**fields, **given})


async def failure(book: AlarmBook) -> Alarm:
    """The alarm that a webhook fails."""
    await until(lambda: book.get("webhook-failing.1") is not None, 0.001)
    found = book.get("webhook-failing.1")
    assert found is not None
    return found


def run(work: Callable[[], Any]) -> Any:
    return asyncio.run(work())


def test_every_change_is_sent_in_order_and_signed(secret_file: str) -> None:
    async def main() -> None:
        receiver = Receiver()
        async with receiver.running() as url:
            hooks, book = make(url, secret_file, public_url="https://queue.example")
            book.renew(raised())
            book.renew(raised(text="d has 4 dead letters."))
            book.acknowledge("dead-letters.d", "ann", "on it")
            book.end("dead-letters.d")
            await receiver.got(3)
            await hooks.close()
        assert receiver.events == ["raised", "acknowledged", "cleared"]
        headers, body = receiver.requests[1]
        assert headers["request"] == "POST /hooks/secret?x=1 HTTP/1.1"
        assert headers["host"] == f"127.0.0.1:{receiver.port}" and headers["content-type"] == "application/json"
        assert headers["baton-event"] == "acknowledged" and headers["baton-delivery"] == "72" * 16
        # What docs/how-to/alarms.md tells receivers to do.
        time_s, mac = (part.partition("=")[2] for part in headers["baton-signature"].split(","))
        assert time_s == "1700000000"
        wanted = hmac.new(SECRET.encode(), f"{time_s}.".encode() + body, hashlib.sha256).hexdigest()
        assert mac == wanted and headers["baton-signature"] == signature(SECRET.encode(), 1_700_000_000, body)
        sent = json.loads(body)
        assert sent["server"] == {"node": "n1", "url": "https://queue.example"}
        alarm = sent["alarm"]
        assert (alarm["alarm"], alarm["acknowledgedBy"], alarm["note"]) == ("dead-letters.d", "ann", "on it")
        assert alarm["text"] == "d has 4 dead letters." and alarm["runbook"].endswith("#dead-letters")

    run(main)


@pytest.mark.parametrize("planned", [(500, 503), (0, 0, 0), (429, 408), (500, 0, 502, 599)])
def test_a_failure_is_retried_with_the_same_delivery_id(secret_file: str, planned: tuple[int, ...]) -> None:
    async def main() -> None:
        receiver = Receiver(*planned)
        async with receiver.running() as url:
            hooks, book = make(url, secret_file)
            book.renew(raised())
            await receiver.got(len(planned) + 1)
            await hooks.close()
        assert receiver.events == ["raised"] * (len(planned) + 1)
        assert len({headers["baton-delivery"] for headers, _ in receiver.requests}) == 1

    run(main)


def test_after_too_many_failures_an_alarm_says_so_until_a_delivery_succeeds(
    secret_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        receiver = Receiver(*[500] * webhooks.ATTEMPTS_MAX)
        async with receiver.running() as url:
            hooks, book = make(url, secret_file)
            book.renew(raised())
            await receiver.got(webhooks.ATTEMPTS_MAX)
            failing = await failure(book)
            address = f"http://127.0.0.1:{receiver.port}/…"
            text = f"An alarm could not be sent to the webhook {address}: The answer is 500. (after 10 attempts)"
            assert failing.text == text
            assert "/hooks/secret" not in caplog.text  # paths of webhooks are often passwords
            book.end("dead-letters.d")
            await receiver.got(webhooks.ATTEMPTS_MAX + 1)
            await until(lambda: book.get("webhook-failing.1") is None, 0.001)
            await hooks.close()
        # The alarm about the webhook itself was not sent.
        assert receiver.events == ["raised"] * webhooks.ATTEMPTS_MAX + ["cleared"]
        assert (hooks.delivered, hooks.failed, hooks.dropped) == (1, 1, 0)

    run(main)


@pytest.mark.parametrize(("status", "said"), [(400, "is 400"), (401, "is 401"), (302, "redirects are not followed")])
def test_what_a_retry_cannot_mend_is_not_retried(secret_file: str, status: int, said: str) -> None:
    async def main() -> None:
        elsewhere = Receiver()
        async with elsewhere.running() as other:
            receiver = Receiver(status, location=other)
            async with receiver.running() as url:
                hooks, book = make(url, secret_file)
                book.renew(raised())
                assert said in (await failure(book)).text
                await hooks.close()
            assert len(receiver.requests) == 1 and elsewhere.requests == []

    run(main)


def test_one_webhook_that_hangs_delays_no_other_and_its_queue_is_bounded(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "WAITING_MAX", 3)

    async def main() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"never")

        receiver = Receiver()
        async with talking(hang) as silent, receiver.running() as url:
            hooks, book = make(f"{silent},{url}", secret_file)
            for count in range(5):
                book.renew(raised())
                book.end("dead-letters.d")
                await receiver.got(2 * count + 2)
            assert hooks.dropped == 6  # of ten, one is being sent and three wait
            await hooks.close()

    run(main)


def test_a_slow_webhook_is_given_up(secret_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_request, "TIMEOUT_S", 0.05)

    async def main() -> None:
        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"never")

        async with talking(slow) as url:
            (hook,) = parse_webhooks(url, "", True)
            with pytest.raises(Failed, match="no answer within 0 s"):
                await post(hook, b"{}", {})

    run(main)


@pytest.mark.parametrize("answer", [b"SSH-2.0-hello\r\n", b"HTTP/1.1 abc\r\n", b"x" * 10_000])
def test_an_answer_that_is_not_http_is_a_failure(secret_file: str, answer: bytes) -> None:
    async def main() -> None:
        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)

        async with talking(other) as url:
            (hook,) = parse_webhooks(url, "", True)
            with pytest.raises(Failed):
                await post(hook, b"{}", {})

    run(main)


# --- a test event


def test_a_test_event_reports_how_each_webhook_answers(secret_file: str) -> None:
    async def main() -> None:
        good, bad = Receiver(), Receiver(500, 500)
        async with good.running() as first, bad.running() as second:
            hooks, _ = make(f"{first}, {second}", secret_file)
            tried = await hooks.test()
            await hooks.close()
        assert [(each.delivered, each.status, each.problem) for each in tried] == [
            (True, 204, ""),
            (False, 0, "The answer is 500."),
        ]
        assert good.events == ["test"] and len(bad.requests) == 1  # without retries
        assert all("secret" not in each.webhook for each in tried)

    run(main)


# --- where webhooks may go


@pytest.mark.parametrize(
    ("address", "public", "private_too"),
    [
        ("93.184.215.14", True, True),
        ("2606:2800:21f::1", True, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("fd00::1", False, True),
        ("::ffff:10.0.0.1", False, True),
        ("::ffff:93.184.215.14", True, True),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("2002:a9fe:a9fe::1", False, False),
        ("168.63.129.16", False, False),
        ("192.0.0.192", False, False),
        ("100.100.100.200", False, False),
        ("fd00:ec2::254", False, False),
        ("fec0::1", False, True),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("240.0.0.1", False, False),
        ("2001:0:53aa:64c::1", False, False),
    ],
)
def test_which_addresses_are_allowed(address: str, public: bool, private_too: bool) -> None:
    parsed = ipaddress.ip_address(address)
    assert (not forbidden(parsed, False), not forbidden(parsed, True)) == (public, private_too)


def test_a_private_address_is_refused_without_a_connection(secret_file: str) -> None:
    async def main() -> None:
        receiver = Receiver()
        async with receiver.running() as url:
            hooks, book = make(url, secret_file, alarm_webhook_private=False)
            (tried,) = await hooks.test()
            assert not tried.delivered and "--alarm-webhook-private" in tried.problem
            book.renew(raised())
            await failure(book)
            await hooks.close()
        assert receiver.requests == []

    run(main)


def test_the_connection_goes_to_the_address_that_was_checked(secret_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that gives another address the second time is not asked a second time."""

    async def main() -> None:
        receiver = Receiver()
        async with receiver.running():
            loop, asked = asyncio.get_running_loop(), []

            async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
                asked.append(host)
                return [(2, 1, 6, "", ("127.0.0.1" if len(asked) == 1 else "10.9.9.9", port))]

            monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
            (hook,) = parse_webhooks(f"http://alarms.example:{receiver.port}/", "", True)
            assert await post(hook, b"{}", {}) == 204
        assert asked == ["alarms.example"]
        assert receiver.requests[0][0]["host"] == f"alarms.example:{receiver.port}"

    run(main)


def test_one_bad_address_of_a_name_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [(2, 1, 6, "", ("93.184.215.14", port)), (2, 1, 6, "", ("169.254.169.254", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        (hook,) = parse_webhooks("http://alarms.example/", "", True)
        with pytest.raises(Refused, match=r"alarms.example has the address 169.254.169.254"):
            await post(hook, b"{}", {})

    run(main)


def test_the_certificate_is_verified(tmp_path: Path, secret_file: str) -> None:
    authority = Authority(tmp_path / "ca")
    good, other = authority.sign("good", "127.0.0.1"), authority.sign("other", "elsewhere.example")
    trust = ssl.create_default_context(cafile=str(authority.file))

    def served(signed: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(signed.certificate, signed.key)
        return context

    async def main() -> None:
        receiver = Receiver()
        async with receiver.running(served(good)) as url:
            (hook,) = parse_webhooks(url, "", True)
            assert await post(hook, b"{}", {}, trust) == 204
            with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
                await post(hook, b"{}", {})  # the system does not know the authority
        async with receiver.running(served(other)) as url:
            (hook,) = parse_webhooks(url, "", True)
            with pytest.raises(Failed, match="CERTIFICATE_VERIFY_FAILED"):
                await post(hook, b"{}", {}, trust)
        assert len(receiver.requests) == 1

    run(main)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"alarm_webhooks": "ftp://x"}, "is not a URL such as"),
        ({"alarm_webhooks": "https://"}, "is not a URL such as"),
        ({"alarm_webhooks": "https://x:99999/"}, "is not a URL such as"),
        ({"alarm_webhooks": "https://a b/"}, "is not a URL such as"),
        ({"alarm_webhooks": "https://x/\r\nHost: y"}, "is not a URL such as"),
        ({"alarm_webhooks": "https://user:pw@x/"}, "has a user name or password"),
        ({"alarm_webhooks": "https://x/", "alarm_webhook_hosts": "y,z"}, "'x' is not in --alarm-webhook-hosts"),
        ({"alarm_webhooks": "https://x/", "alarm_webhook_hosts": "X"}, "needs --alarm-webhook-secret-file"),
        ({"alarm_disk_share": 1.0}, "--alarm-disk-share must be"),
        ({"alarm_depth": -1}, "must not be negative"),
    ],
)
def test_settings_that_are_not_valid_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Settings(**given).check()


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read from"), ("short", "is too short")])
def test_the_secret_must_be_there_and_long_enough(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "other"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=said):
        make("https://x/", str(path))

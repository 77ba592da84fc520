"""Who is let in before anything is read of what a request wants: whole servers, as `baton serve` puts them together."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batonq.api.http.gate import host_name
from batonq.cli.serve import compose
from batonq.errors import InvalidInput
from batonq.node.node import Node
from batonq.node.settings import Settings
from tests.api.raw import Client

CREATE = json.dumps({"QueueName": "evil"}).encode()
AS_JSON = "Content-Type: application/json\r\n"
# Each way into a server: a method, a target, headers and a body.
DOORS = {
    "page": ("GET", "/", "Accept: text/html\r\n", b""),
    "metrics": ("GET", "/metrics", "", b""),
    "health": ("GET", "/livez", "", b""),
    "clock": ("POST", "/_baton/clock/advance", AS_JSON, b'{"seconds": 3600}'),
    "link": ("GET", "/?Action=CreateQueue&QueueName=evil", "", b""),
    "form": ("POST", "/", "Content-Type: application/x-www-form-urlencoded\r\n", b"Action=CreateQueue&QueueName=evil"),
    "json": ("POST", "/", "X-Amz-Target: AmazonSQS.CreateQueue\r\n", CREATE),
    "rest": ("POST", "/v1/queues", AS_JSON, b'{"name": "evil"}'),
    "documents": ("GET", "/v1/docs", "", b""),
}
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:9324",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost.localstack.cloud",
    "evil.example/localhost",
    "localhost@evil.example",
    "localhost, evil.example",
    "10.0.0.1:9324",
    "0.0.0.0",
    "[2001:db8::1]:9324",
    "\u00e9vil.example",
    "",
]
FROM_ELSEWHERE = [
    "Origin: https://evil.example",
    "Origin: http://localhost:3000",
    "Origin: null",
    "Referer: https://evil.example/page?http://localhost",
    "Referer: http://localhost.evil.example/",
    "Referer: nonsense",
    "Sec-Fetch-Site: cross-site",
    "Sec-Fetch-Site: same-site",
    "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site",
]
OUR_HOSTS = [
    "localhost",
    "LocalHost:9324",
    "localhost.",
    "queue.localhost:1",
    "127.0.0.1",
    "127.8.9.10:80",
    "[::1]",
    "[::1]:9324",
    "queue.example.com:8443",
    "queue.test",
]


class Running(NamedTuple):
    node: Node
    port: int

    async def ask(self, door: str, head: str) -> tuple[int, dict[str, str], bytes]:
        method, target, headers, body = DOORS[door]
        lines = f"{method} {target} HTTP/1.1\r\n{headers}{head}Content-Length: {len(body)}\r\n\r\n"
        return await self.send(lines.encode("latin-1") + body)

    async def send(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            client.send(data)
            return await client.answer()
        finally:
            client.close()

    def queues(self) -> list[str]:
        return [queue.name for queue in self.node.catalog.current().queues.values()]


@asynccontextmanager
async def serving(data: Path, **settings: Any) -> AsyncIterator[Running]:
    node = Node(Settings(data=str(data), port=0, **settings))
    node.settings.check()
    await node.start()
    server = compose(node)
    await server.start("127.0.0.1", 0)
    try:
        yield Running(node, server.port)
    finally:
        await server.stop(0.1)
        await node.stop()


@pytest.fixture
def developing(tmp_path: Path) -> Callable[[Callable[[Running], Any]], None]:
    """Run a scenario against a server of the development profile."""

    def runner(scenario: Callable[[Running], Any]) -> None:
        async def whole() -> None:
            names = {"public_url": "https://queue.example.com/base", "allowed_hosts": "queue.test,other.test"}
            async with serving(tmp_path, **names) as running:
                await running.send(b"GET /?Action=CreateQueue&QueueName=mine HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert running.queues() == ["mine"]
                began_ms = running.node.broker.now_ms()
                await asyncio.wait_for(scenario(running), 60)
                assert running.queues() == ["mine"]
                assert running.node.broker.now_ms() < began_ms + 3_600_000

        asyncio.run(whole())

    return runner


# --- the development profile ------------------------------------------------------------------------


def test_a_foreign_host_reaches_nothing(developing: Callable[..., None]) -> None:
    """A page of a site whose name was made to lead to this machine would send its own name as the host."""

    async def scenario(running: Running) -> None:
        for door, host in product(DOORS, FOREIGN_HOSTS):
            status, _, content = await running.ask(door, f"Host: {host}\r\n")
            assert status == 421, (door, host, content)
            assert b"localhost" in content

    developing(scenario)


def test_a_refused_host_is_told_how_to_be_let_in(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        _, headers, content = await running.ask("json", "Host: localhost.localstack.cloud:4566\r\n")
        assert b"--allowed-hosts localhost.localstack.cloud." in content
        assert headers["content-type"].startswith("text/plain") and headers["connection"] == "close"

    developing(scenario)


def test_names_of_this_machine_and_those_of_the_settings_reach_it(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        for door, host in product(("page", "metrics", "health", "documents"), OUR_HOSTS):
            assert (await running.ask(door, f"Host: {host}\r\n"))[0] == 200, (door, host)

    developing(scenario)


def test_pages_of_other_sites_reach_nothing(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        for door, head in product(DOORS, FROM_ELSEWHERE):
            status, _, content = await running.ask(door, f"Host: localhost\r\n{head}\r\n")
            assert status == 403, (door, head, content)
            assert b"another site" in content

    developing(scenario)


def test_a_browser_uses_the_servers_own_page(developing: Callable[..., None]) -> None:
    heads = (
        "Sec-Fetch-Site: none",
        "Sec-Fetch-Site: same-origin\r\nReferer: http://localhost:9324/",
        "Origin: http://localhost:9324",
    )

    async def scenario(running: Running) -> None:
        for door, head in product(("page", "metrics", "documents"), heads):
            assert (await running.ask(door, f"Host: localhost:9324\r\n{head}\r\n"))[0] == 200, (door, head)

    developing(scenario)


def test_a_host_is_needed_except_in_http_1_0(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        assert (await running.send(b"GET /livez HTTP/1.1\r\n\r\n"))[0] == 400
        assert (await running.send(b"GET /livez HTTP/1.0\r\n\r\n"))[0] == 200
        assert (await running.send(b"GET /livez HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n"))[0] == 403

    developing(scenario)


def test_the_host_of_a_whole_address_counts_too(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        for host, status in {"localhost:9324": 200, "evil.example": 421, "localhost@evil": 421}.items():
            data = f"GET http://{host}/livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert (await running.send(data.encode()))[0] == status

    developing(scenario)


def test_more_hosts_than_are_remembered_are_let_in(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        for number in range(600):
            data = f"GET /livez HTTP/1.1\r\nHost: localhost:{number}\r\n\r\n"
            assert (await running.send(data.encode()))[0] == 200

    developing(scenario)


@pytest.mark.parametrize("hosts", ["http://queue.test", "queue.test:80", "a b", "queue.test, other"])
def test_allowed_hosts_are_names(hosts: str) -> None:
    with pytest.raises(InvalidInput, match="without a port"):
        Settings(allowed_hosts=hosts).check()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_the_share_of_an_address_is_a_part(share: float) -> None:
    with pytest.raises(InvalidInput, match="at most 1"):
        Settings(address_share=share).check()


def test_names_in_host_headers() -> None:
    assert host_name("Queue.Test.:80") == "queue.test"
    assert host_name("[::1]") == "::1"
    assert host_name("a:b:c") == host_name("a b") == host_name("[::1") == host_name("") == ""


# --- the secured profile ----------------------------------------------------------------------------


def test_the_secured_profile_asks_for_credentials_not_for_hosts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, secure=True) as running:
            for head in ("Host: queue.example.com\r\n", "Host: x\r\nOrigin: https://elsewhere.example\r\n"):
                for door, wanted in {"json": 403, "link": 403, "rest": 403, "metrics": 401, "health": 200}.items():
                    assert (await running.ask(door, head))[0] == wanted, (door, head)
            assert running.queues() == []

    asyncio.run(scenario())


def test_without_credentials_the_answer_does_not_wait_for_a_large_body(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, secure=True) as running:
            for door in ("json", "form", "rest", "clock"):
                method, target, headers, _ = DOORS[door]
                head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: %d\r\n\r\n".encode()
                small = await asyncio.wait_for(running.send(head % 1 + b"x"), 10)
                large = await asyncio.wait_for(running.send(head % (4 << 20)), 10)
                assert small[0] == large[0] == 403, door
                same = ("content-type", "x-amzn-query-error")
                assert [small[1].get(name) for name in same] == [large[1].get(name) for name in same]
                assert large[1]["connection"] == "close" and "connection" not in small[1]

    asyncio.run(scenario())


@pytest.mark.parametrize("secure", [False, True])
def test_headers_that_are_not_ascii_fail_nowhere(
    tmp_path: Path, secure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = [b"\xe9", b"Basic \xe9", b"Basic w6k=", b"Basic 6Q==", b"Bearer \xe9", b"\xff\xfe=\xe9/\xe9, \xe9"]
    names = [
        b"Authorization",
        b"Accept",
        b"Content-Type",
        b"X-Amz-Target",
        b"X-Amz-Date",
        b"Idempotency-Key",
        b"Expect",
    ]

    async def scenario() -> None:
        async with serving(tmp_path, secure=secure) as running:
            for name in names:
                for value in values:
                    for door in DOORS:
                        method, target, _, body = DOORS[door]
                        start = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                        status, _, content = await running.send(
                            start.encode() + name + b": " + value + b"\r\n\r\n" + body
                        )
                        assert status < 500, (door, name, value, content)

    asyncio.run(scenario())
    assert "Traceback" not in caplog.text


# --- pages ------------------------------------------------------------------------------------------


def test_pages_bring_all_that_they_may_run(developing: Callable[..., None]) -> None:
    """A browser runs and applies just the elements whose digests the policy names."""

    async def scenario(running: Running) -> None:
        for target in ("/v1/docs", "/problems/over_limit"):
            data = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n"
            status, headers, content = await running.send(data.encode())
            text = content.decode()
            assert status == 200 and headers["content-type"].startswith("text/html")
            directives = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
            assert directives["default-src"] == directives["frame-ancestors"] == directives["base-uri"] == "'none'"
            for element in ("style", "script"):
                found = re.findall(f"<{element}[^>]*>(.*?)</{element}>", text, re.DOTALL)
                digests = [f"'sha256-{base64.b64encode(sha256(one.encode()).digest()).decode()}'" for one in found]
                assert directives[f"{element}-src"] == (" ".join(digests) or "'none'")
            assert directives["connect-src"] == "'none'"
            markup = re.sub("<(style|script)>.*?</\\1>", "", text, flags=re.DOTALL)
            assert not re.search(r"<[^>]*\s(style|src|on[a-z]+)\s*=|<(iframe|form|base|object|embed)", markup)
            assert headers["x-frame-options"] == "DENY" and headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"

    developing(scenario)


def test_text_is_not_guessed_at(developing: Callable[..., None]) -> None:
    async def scenario(running: Running) -> None:
        for door in ("metrics", "health", "page"):
            _, headers, _ = await running.ask(door, "Host: localhost\r\n")
            assert headers["x-content-type-options"] == "nosniff"

    developing(scenario)

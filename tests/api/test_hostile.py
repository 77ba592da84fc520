"""What anybody can send without a key: it is refused with 4xx, leaves nothing behind, and takes little memory."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from batonq.cli.serve import compose
from batonq.core.catalog.machine import Catalog
from tests.support.server import ACCOUNT, TestServer

KEY, SECRET = "BATONKNOWN", "a-secret"
KIB = 1024
MIB = 1024 * KIB


class WholeServer(TestServer):
    """With everything that `baton serve` has: both interfaces, and the pages."""

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.node.start()
        self.http = compose(self.node)
        await self.http.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        self.http.stop_accepting()
        self.node.stop_waiting()
        await self.http.stop(5)
        await self.node.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with WholeServer(str(tmp_path_factory.mktemp("secured")), secure=True) as running:
        running.run(lambda: running.node.catalog.change(Catalog.put_key, KEY, SECRET, ACCOUNT))
        yield running


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with WholeServer(str(tmp_path_factory.mktemp("development"))) as running:
        yield running


@pytest.fixture(params=["secured", "development"])
def either(request: pytest.FixtureRequest) -> TestServer:
    found: TestServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Wire:
    """A connection on which any bytes can be sent. It is opened again when the server has closed it."""

    def __init__(self, server: TestServer) -> None:
        self._server = server
        self._socket: socket.socket | None = None

    def ask(self, target: str, headers: dict[str, str], body: bytes = b"", method: str = "POST") -> int:
        """The status of the answer. Texts are sent in Latin-1, each character as one byte."""
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1")
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._server.http.port), 30)
        self._socket.sendall(head + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = self._socket.recv(65_536)
            assert piece, "the connection ended without an answer"
            answer += piece
        start, _, rest = answer.partition(b"\r\n\r\n")
        length = 0
        for line in start.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(rest) < length and method != "HEAD":
            rest += self._socket.recv(65_536)
        if b"connection: close" in start.lower():
            self.close()
        return int(start.split(b" ")[1])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@pytest.fixture
def wires() -> Iterator[dict[TestServer, Wire]]:
    made: dict[TestServer, Wire] = {}
    yield made
    for wire in made.values():
        wire.close()


def ask(wires: dict[TestServer, Wire], server: TestServer, *given: Any, **more: Any) -> int:
    return wires.setdefault(server, Wire(server)).ask(*given, **more)


HOST = {"Host": "localhost"}
PRESIGNED = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/d/aws4_request"
    "&X-Amz-SignedHeaders=host&X-Amz-Date=20260304T050607Z"
)
JSON = {**HOST, "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}


# --- no request is a mistake of the server's --------------------------------------------------


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/?ZX-Amz-Signature=1", HOST),
        (f"/?Action=ListQueues&{PRESIGNED}&X-Amz-Expires=60&ZX-Amz-Signature=1", HOST),
        (f"/v1/queues?{PRESIGNED}&X-Amz-Expires=60&ZX-Amz-Signature=1", HOST),
        (f"/?Action=ListQueues&{PRESIGNED}&X-Amz-Signature=1&X-Amz-Expires=000000060{'9' * 5000}", HOST),
        (f"/v1/queues?{PRESIGNED}&X-Amz-Signature=1&X-Amz-Expires=000000060{'9' * 5000}", HOST),
        ("/", {**HOST, "Authorization": "Basic \xe9", "Accept": "text/html"}),
        ("/metrics", {**HOST, "Authorization": "Basic \xe9"}),
        ("/metrics", {**HOST, "Authorization": "Basic w6k6w6k="}),
        ("/metrics", {**HOST, "Authorization": "Bearer \xe9"}),
        ("/metrics", {**HOST, "Authorization": "Basic /w=="}),
        ("/v1/queues", {**HOST, "Authorization": "Basic \xe9"}),
        ("/000000000000/q", {**JSON, "Authorization": "Basic \xe9"}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_that_were_a_mistake_of_the_servers(
    secured: TestServer, wires: dict[TestServer, Wire], target: str, headers: dict[str, str], method: str
) -> None:
    # A browser without a session is sent to the page for signing in.
    assert 303 <= ask(wires, secured, target, headers, method=method) < 500


PATHS = [
    "/",
    "/000000000000/q",
    "/v1/queues",
    "/v1/queues/q/messages:batch",
    "/v1/queues/q/messages:receive",
    "/metrics",
    "/v1/keys",
    "/v1/keys/x:disable",
    "/v1/history/0",
    "/v1/docs",
    "/problems/x",
    "/livez",
    "//",
    "/v1/",
    "/%",
    "/v1/queues/%ff",
]
NAMES = [
    "Action",
    "Version",
    "X-Amz-Signature",
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Security-Token",
    "QueueUrl",
    "limit",
    "cursor",
    "prefix",
    "Tag.1.Key",
    "a.b.c",
    "",
]
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "9" * 5000,
    "\xb2\xb3",
    "\xe9",
    "%",
    "%zz",
    "%00",
    "%ff",
    "%ed%a0%80",
    "+",
    "&",
    "=",
    "ListQueues",
    "SendMessage",
    "AWS4-HMAC-SHA256",
    f"{KEY}/20260304/us-east-1/sqs/aws4_request",
    "////",
    "a/b/c/d/aws4_request",
    "20260304T050607Z",
    "99999999T999999Z",
    "host",
    "host;host",
    ";;;",
    "x" * 3000,
    "." * 300,
    "\x7f",
    "1e400",
    "nan",
]
HEADERS = [
    "Authorization",
    "X-Amz-Date",
    "X-Amz-Target",
    "X-Amz-Content-Sha256",
    "X-Amz-Security-Token",
    "Content-Type",
    "Accept",
    "Idempotency-Key",
    "Baton-Consumer",
    "Baton-Reason",
    "Prefer",
    "Origin",
    "Sec-Fetch-Site",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "X-Amzn-Trace-Id",
    "Host",
]
TEXTS = [
    *VALUES,
    "Basic \xe9",
    "Basic",
    "Bearer",
    "Bearer \xe9",
    "AWS4-HMAC-SHA256",
    "AWS4-HMAC-SHA256 ,,,=,=",
    "application/json",
    "application/msgpack",
    "text/html",
    "*/*;q=nan",
    "application/json;q=1e999, */*;q=-1",
    ";" * 500,
    "," * 500,
    "AmazonSQS.SendMessage",
    "AmazonSQS.ReceiveMessage",
    "AmazonSQS.\xe9",
    "application/x-www-form-urlencoded",
    f"AWS4-HMAC-SHA256 Credential={KEY}/20260304/r/sqs/aws4_request, SignedHeaders=host;x-amz-date, Signature=\xe9",
    f"AWS4-HMAC-SHA256 Credential={KEY}/2/\xe9/\xff/aws4_request, SignedHeaders=host, Signature=00",
]
BODIES = [
    b"",
    b"{}",
    b"[",
    b"\xff",
    b"\x80",
    b"\xdd\xff\xff\xff\xff",
    b"Action=ListQueues",
    b"a=%",
    b"%=%&=&&",
    b"a.b=1&a=2",
    b'{"QueueUrl":"http://[/"}',
    b'{"QueueUrl":"' + b"x" * 5000 + b'"}',
    b'{"MessageBody":"\\ud800"}',
    b"[" * 3000,
]


def made_up(chance: random.Random) -> tuple[str, dict[str, str], bytes, str]:
    """Parts that mean something here, put together by chance."""
    pairs = [f"{chance.choice(NAMES)}={chance.choice(VALUES)}" for _ in range(chance.randrange(8))]
    query = (
        "&".join(pairs)
        if chance.random() < 0.5
        else "&".join(quote(pair, safe="=", encoding="latin-1") for pair in pairs)
    )
    target = chance.choice(PATHS) + ("?" + query.replace(" ", "%20") if query else "")
    headers = {**HOST, **{chance.choice(HEADERS): chance.choice(TEXTS).strip() for _ in range(chance.randrange(6))}}
    return (
        target,
        headers,
        chance.choice(BODIES),
        chance.choice(["GET", "POST", "POST", "HEAD", "PUT", "DELETE", "PATCH"]),
    )


def as_botocore_signs(target: str, headers: dict[str, str], body: bytes, method: str) -> dict[str, str]:
    """The same, signed by a key that is known: it comes further."""
    request = AWSRequest(method, f"http://localhost{target}", {**headers, "Host": "localhost"}, body)
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    return {name: str(value) for name, value in request.headers.items()}


@pytest.mark.parametrize("seed", range(4))
def test_made_up_requests(either: TestServer, wires: dict[TestServer, Wire], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(400):
        target, headers, body, method = made_up(chance)
        if chance.random() < 0.3:
            headers = as_botocore_signs(target, headers, body, method)
            if chance.random() < 0.5:
                headers[chance.choice(HEADERS)] = chance.choice(TEXTS).strip()
        status = ask(wires, either, target, headers, body, method)
        assert 200 <= status < 500, (status, method, target, headers, body)


# --- nothing is kept of requests that nobody has signed ----------------------------------------


def junk(kind: str, number: int) -> tuple[str, dict[str, str]]:
    """A request with 50 KiB that are different each time."""
    text = f"{number:08}" * (50 * KIB // 8)
    packed = {**HOST, "Content-Type": "application/msgpack"}
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    credential = f"{KEY}/{moment[:8]}/{text}/sqs/aws4_request"
    signature = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host;x-amz-date;x-amz-target, Signature=0"
    return {
        "path": (f"/v1/queues/{text}/messages:batch", packed),
        "queue path": (f"/{text}/q", JSON),
        "accept": ("/v1/queues", {**HOST, "Accept": f"application/json;{text}"}),
        "content type": ("/v1/queues", {**HOST, "Content-Type": f"application/json;{text}"}),
        "key": ("/", {**JSON, "Authorization": f"AWS4-HMAC-SHA256 Credential={text}/x"}),
        "presigned key": (f"/?Action=ListQueues&X-Amz-Credential={text}/x", HOST),
        "scope": ("/", {**JSON, "X-Amz-Date": moment, "Authorization": signature}),
    }[kind]


@pytest.mark.parametrize("kind", ["path", "queue path", "accept", "content type", "key", "presigned key", "scope"])
def test_requests_leave_nothing_behind(either: TestServer, wires: dict[TestServer, Wire], kind: str) -> None:
    for number in range(20):
        ask(wires, either, *junk(kind, number), body=b"{}")
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100, 300):
            assert ask(wires, either, *junk(kind, number), body=b"{}") < 500
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < MIB, f"{kept} bytes of 200 requests with 50 KiB each"


# --- a form takes memory of about its size -----------------------------------------------------

FORM = {**HOST, "Content-Type": "application/x-www-form-urlencoded"}
FORMS = {
    "dots": b"Action=ListQueues&" + b"a." * (2 * MIB - 20) + b"=1",
    "many names with dots": b"Action=ListQueues"
    + b"".join(b"&%d%b=1" % (number, b".a" * 1000) for number in range(1990)),
    "escapes": b"Action=SendMessage&QueueUrl=q&MessageBody=" + b"%41" * (4 * MIB // 3 - 30),
    "escapes that are none": b"Action=SendMessage&QueueUrl=q&MessageBody=" + b"%" * (4 * MIB - 100),
    "fields": b"Action=ListQueues" + b"&a" * (2 * MIB - 20),
    "blanks": b"Action=SendMessage&QueueUrl=q&MessageBody=" + b"+" * (4 * MIB - 100),
}


@pytest.mark.parametrize("kind", FORMS)
def test_forms_of_four_megabytes(development: TestServer, wires: dict[TestServer, Wire], kind: str) -> None:
    body = FORMS[kind]
    assert ask(wires, development, "/", FORM, b"Action=ListQueues") == 200
    tracemalloc.start()
    try:
        status = ask(wires, development, "/", FORM, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(body), f"{peak} bytes for a form of {len(body)}"  # this client has some of them
    assert status == 400


def test_names_of_parameters(development: TestServer, wires: dict[TestServer, Wire]) -> None:
    good = "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringListValue.1"
    assert ask(wires, development, "/", FORM, f"Action=ListQueues&{good}=x".encode()) == 200
    assert ask(wires, development, "/", FORM, f"Action=ListQueues&{good}.x.y=x".encode()) == 400
    assert ask(wires, development, "/", FORM, f"Action=ListQueues&{'a' * 256}=x".encode()) == 200
    assert ask(wires, development, "/", FORM, f"Action=ListQueues&{'a' * 257}=x".encode()) == 400

"""What the decoders read before they know who asks: JSON, MessagePack, forms, signatures, addresses, tokens."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from tests.api.mutations import Target, flatten, requests, with_odd_value
from tests.fuzz.cases import Case
from tests.fuzz.chance import KIB, ODD_BYTES, Chance

QUEUE = "fuzzed"
JSON = b"application/json"
MSGPACK = b"application/msgpack"
AMAZON_JSON = b"application/x-amz-json-1.0"
FORM = b"application/x-www-form-urlencoded"
LARGE_BYTES_MAX = 1024 * KIB
REST_CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/queues", {"name": QUEUE, "retry": {"kind": "schedule", "delaysSeconds": [1]}, "tags": {"a": "b"}}),
    ("PATCH", f"/v1/queues/{QUEUE}", {"retentionSeconds": 600, "deduplication": {"windowSeconds": 5}}),
    (
        "POST",
        f"/v1/queues/{QUEUE}/messages",
        {"body": {"a": [1, "ü", None]}, "attributes": {"a": 1}, "priority": "high"},
    ),
    (
        "POST",
        f"/v1/queues/{QUEUE}/messages:batch",
        {"messages": [{"body": 1, "clientMessageId": "a"}, {"body": "x"}], "producer": {"id": "p", "sequence": 1}},
    ),
    (
        "POST",
        f"/v1/queues/{QUEUE}/messages:receive",
        {"maxMessages": 5, "visibilityTimeoutSeconds": 1, "consumer": "c"},
    ),
    ("POST", f"/v1/queues/{QUEUE}/messages:ack", {"receiptHandles": ["$receipt", "A" * 44]}),
    ("POST", f"/v1/queues/{QUEUE}/messages:nack", {"messages": [{"receiptHandle": "$receipt", "delaySeconds": 1}]}),
    (
        "POST",
        f"/v1/queues/{QUEUE}/messages:change-visibility",
        {"messages": [{"receiptHandle": "$receipt", "visibilityTimeoutSeconds": 5}]},
    ),
    ("POST", f"/v1/queues/{QUEUE}:redrive", {"ratePerSecond": 1}),
    ("POST", "/v1/messages:receive", {"queues": [QUEUE, "fuz*"], "maxMessages": 1}),
]
REST_READS = (
    "/v1/queues?prefix=f&limit=10&cursor=ZnV6emVk",
    f"/v1/queues/{QUEUE}",
    f"/v1/queues/{QUEUE}/stats",
    f"/v1/queues/{QUEUE}:stats",
    f"/v1/queues/{QUEUE}/messages?after=0&limit=10&state=VISIBLE",
    f"/v1/queues/{QUEUE}/messages/$receipt:ack",
    f"/v1/queues/{QUEUE}/messages/$receipt:nack",
    f"/v1/queues/{QUEUE}/messages/$receipt:change-visibility",
    f"/v1/queues/{QUEUE}/jobs",
    "/v1/jobs/0000000000000001:cancel",
    "/v1/history?names=true",
    "/v1/history/0?from=1&to=3&max_bytes=1000&wait=0",
    "/problems/invalid-input",
    "/v1/docs",
)
# What a page of links would send, with a number at the end of each name and value for variety.
NUMBERS = (
    b"0",
    b"-1",
    b"9" * 5_000,
    b"1e400",
    b"0x10",
    b"\xd9\xa1",
    b"%D9%A1",
    b"",
    b" 1",
    b"+1",
    b"1_0",
    b"00000000000000000001",
)


class Facts(NamedTuple):
    """What is true of the server that is asked. Each value has one length, whichever server it is."""

    port: str
    receipt: str
    key_id: str
    moment: str  # like 20260102T030405Z, now

    @property
    def day(self) -> str:
        return self.moment[:8]

    @property
    def target(self) -> Target:
        url = f"http://127.0.0.1:{self.port}/000000000000/{QUEUE}"
        return Target(url, QUEUE, f"arn:aws:sqs:us-east-1:000000000000:{QUEUE}", self.receipt)

    def fill(self, case: Case) -> Case:
        """A case that was made with PLACEHOLDERS, with these facts in their place."""
        data = case.data
        for placeholder, value in zip((*PLACEHOLDERS, PLACEHOLDERS.day), (*self, self.day), strict=True):
            assert len(value) == len(placeholder), f"{value!r} is not as long as {placeholder!r}"
            data = data.replace(placeholder.encode(), value.encode())
        segments = []
        at = 0
        for segment in case.segments:
            segments.append(data[at : at + len(segment)])
            at += len(segment)
        return replace(case, segments=tuple(segments))


PLACEHOLDERS = Facts("54321", "RECEIPT" + "0" * 37, "BATONFUZZKEYFUZZKEY0", "20010203T040506Z")


class Sent(NamedTuple):
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""

    def encode(self) -> bytes:
        lines = [self.method + b" " + self.target + b" HTTP/1.1", b"Host: 127.0.0.1"]
        lines += [name + b": " + value for name, value in self.headers]
        if self.body or self.method != b"GET":
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


# --- JSON ----------------------------------------------------------------------------------------


def json_bomb(chance: Chance) -> bytes:
    """Text that is JSON, or nearly, and expensive or odd."""
    size = int(100 * (LARGE_BYTES_MAX / 100) ** chance.random())
    return chance.made(
        [
            (3, lambda: b"[" * size),
            (2, lambda: b'{"a":' * (size // 5) + b"1" + b"}" * (size // 5)),
            (2, lambda: b"[" * 900 + b"]" * 900),
            (2, lambda: b"1" * size),
            (1, lambda: b"-1." + b"1" * size + b"e" + b"9" * chance.randint(1, 400)),
            (2, lambda: b"[" + b"1," * (size // 2) + b"1]"),
            (2, lambda: b"{" + b",".join(b'"k%d":%d' % (number, number) for number in range(size // 12)) + b"}"),
            (2, lambda: b"{" + b'"a":1,' * (size // 6) + b'"a":2}'),
            (2, lambda: b'"' + b"\\u0041" * (size // 6) + b'"'),
            (2, lambda: b'"' + b'\\\\\\"' * (size // 4) + b'"'),
            (1, lambda: b'"\\ud800' + b"x" * size + b'"'),
            (1, lambda: b'"' + b"\xff" * size + b'"'),
            (1, lambda: b" " * size + b"{}"),
            (
                1,
                lambda: chance.choice(
                    (b"NaN", b"Infinity", b"-", b"1e999", b"\xef\xbb\xbf{}", b"\x00", b"nul", b"{}{}")
                ),
            ),
        ]
    )


def json_text(chance: Chance, value: Any) -> bytes:
    """A request's document with odd values, damage, or a bomb somewhere in it."""
    kind = chance.random()
    if kind < 0.45:
        for _ in range(chance.randint(1, 3)):
            value = with_odd_value(chance, value)
        return json.dumps(value).encode()
    text = json.dumps(value).encode()
    if kind < 0.75:
        return chance.damaged(text)
    if kind < 0.85:
        return json_bomb(chance)
    places = [at for at, byte in enumerate(text) if byte == ord(":")]
    if kind < 0.97 and places:  # in the place of a value
        at = chance.choice(places) + 1
        end = min([found for found in (text.find(mark, at) for mark in (b",", b"}", b"]")) if found > 0], default=at)
        return text[:at] + json_bomb(chance) + text[end:]
    return text


# --- MessagePack ---------------------------------------------------------------------------------


def packed(chance: Chance, value: Any) -> bytes:
    kind = chance.random()
    if kind < 0.4:
        for _ in range(chance.randint(1, 3)):
            value = with_odd_value(chance, value)
        try:
            return msgspec.msgpack.encode(value)
        except OverflowError:
            return b"\xc1"
    data = msgspec.msgpack.encode(value)
    if kind < 0.75:
        return chance.damaged(data)
    bomb = packed_bomb(chance)
    at = chance.randint(0, len(data))
    return bomb if kind < 0.85 else data[:at] + bomb + data[at + chance.randint(0, 5) :]


def packed_bomb(chance: Chance) -> bytes:
    size = int(100 * (LARGE_BYTES_MAX / 100) ** chance.random())
    return chance.made(
        [
            (3, lambda: b"\x91" * size),
            (2, lambda: b"\x81\xa1a" * (size // 3)),
            (2, lambda: b"\x91" * 900 + b"\xc0"),
            (2, lambda: b"\xdd\xff\xff\xff\xff" + b"\x01" * chance.randint(0, size)),
            (2, lambda: b"\xdf\xff\xff\xff\xff" + b"\xa1a\x01" * 3),
            (2, lambda: b"\xdb\xff\xff\xff\xff" + b"x" * 100),
            (2, lambda: b"\xc6\xff\xff\xff\xff"),
            (2, lambda: b"\xdd" + struct.pack(">I", size) + b"\xc0" * size),
            (
                2,
                lambda: (
                    b"\xdf"
                    + struct.pack(">I", size // 6)
                    + b"".join(b"\xa5%05d" % (n % 99999) + b"\xc0" for n in range(size // 6))
                ),
            ),
            (1, lambda: b"\xc9\xff\xff\xff\xff\x7f"),
            (1, lambda: b"\xd7\xff" + b"\xff" * 8),
            (1, lambda: b"\xd6\xff" + b"\xff" * 4),
            (1, lambda: b"\xc7\x0c\xff" + b"\xff" * 12),
            (1, lambda: b"\xc1"),
            (1, lambda: b"\xcb\x7f\xf8" + bytes(6)),
            (1, lambda: b"\xcb\x7f\xf0" + bytes(6)),
            (1, lambda: b"\xa2\xed\xa0"),
            (1, lambda: b"\xdb" + struct.pack(">I", size) + b"\xff" * size),
        ]
    )


# --- forms ---------------------------------------------------------------------------------------


def form(chance: Chance, operation: str, value: Any) -> bytes:
    fields: dict[str, str] = {"Action": operation, "Version": "2012-11-05"}
    if chance.maybe(0.4):
        value = with_odd_value(chance, value)
    if isinstance(value, dict):
        flatten(fields, "", value, operation)
    text = urlencode(fields, errors="replace").encode()
    kind = chance.random()
    if kind < 0.4:
        return chance.damaged(text)
    return text + b"&" + form_bomb(chance) if kind < 0.7 else text


def form_bomb(chance: Chance) -> bytes:
    size = int(100 * (LARGE_BYTES_MAX / 100) ** chance.random())
    return chance.made(
        [
            (4, lambda: b"a" + b"." * size + b"=1"),
            (4, lambda: b"Entry" + b".1" * (size // 2) + b".Id=1"),
            (3, lambda: b"&".join(b"Attribute.%d.Name=a" % number for number in range(min(size // 20, 2_500)))),
            (3, lambda: b"&".join(b"a" + b".b" * 200 + b".%d=1" % number for number in range(min(size // 400, 1_990)))),
            (2, lambda: b"&".join(b"x%d" % number for number in range(size // 6))),
            (2, lambda: b"&" * size),
            (2, lambda: b"=" * size),
            (2, lambda: b"MessageBody=" + b"%" * size),
            (2, lambda: b"MessageBody=" + b"%41" * (size // 3)),
            (1, lambda: b"MessageBody=" + b"+" * size),
            (1, lambda: b"MessageBody=%ED%A0%80&x=%FF"),
            (2, lambda: b"AttributeName." + chance.choice(NUMBERS) + b"=All"),
            (2, lambda: b"MaxNumberOfMessages=" + chance.choice(NUMBERS)),
            (1, lambda: b"Action=ListQueues&Action=CreateQueue"),
            (1, lambda: b"Attribute.1=x&Attribute.1.Name=y&Attribute.Name.Value=z"),
        ]
    )


# --- signatures ----------------------------------------------------------------------------------


def authorization(chance: Chance, facts: Facts) -> list[tuple[bytes, bytes]]:
    """Headers that sign a request, well or badly. The key is a real one in half of them."""
    key = (
        facts.key_id if chance.maybe(0.5) else chance.choice(("", "AKIDEXAMPLE", "é" * 10, "a" * 5_000, "333333333333"))
    )
    scope = f"{facts.day}/us-east-1/sqs/aws4_request"
    names = chance.made(
        [
            (5, lambda: "host;x-amz-date"),
            (1, lambda: "host"),
            (1, lambda: ";" * chance.count(10, 50_000)),
            (1, lambda: "host;" + ";".join(f"h{number}" for number in range(chance.count(5, 8_000)))),
            (1, lambda: "host;\u00e9;x-amz-date"),
            (1, lambda: ";".join(["host"] * chance.count(10, 8_000))),
        ]
    )
    signature = chance.choice(("00" * 32, "", "é", "0" * 5_000, "00" * 32 + ","))
    value = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    data = value.encode("latin-1", "replace")
    kind = chance.random()
    if kind < 0.35:
        data = chance.damaged(data)
    elif kind < 0.45:
        data = chance.choice(
            (
                b"Basic \xe9",
                b"Basic " + b"=" * 40,
                b"Basic 6Q==",
                b"Bearer \xff\xfe",
                b"Bearer " + b"a" * 60_000,
                b"AWS4-HMAC-SHA256",
                b"AWS4-HMAC-SHA256 " + b"," * 50_000,
                b"AWS4-HMAC-SHA256 Credential=" + b"/" * 50_000,
                b"\xe9",
                b"",
            )
        )
    moment = (
        facts.moment
        if chance.maybe(0.6)
        else chance.choice(("", "20260101T000000Z", "²" * 16, "20261399T999999Z", "0" * 16))
    )
    headers = [(b"Authorization", data), (b"X-Amz-Date", moment.encode("latin-1"))]
    if chance.maybe(0.2):
        headers.append((b"X-Amz-Content-Sha256", chance.choice((b"UNSIGNED-PAYLOAD", b"\xe9", b"", b"0" * 64))))
    if chance.maybe(0.1):
        headers.append((b"X-Amz-Security-Token", chance.choice(ODD_BYTES[:5]) * 10))
    return [(name, value.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")) for name, value in headers]


def presigned(chance: Chance, facts: Facts) -> bytes:
    """A query that signs a request."""
    fields = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", f"{facts.key_id}/{facts.day}/us-east-1/sqs/aws4_request"),
        ("X-Amz-Date", facts.moment),
        (
            "X-Amz-Expires",
            chance.choice(
                ("60", "60", "60", "60", "0", "604801", "9" * 5_000, "0" * 9_000 + "1", "-1", "٣", "1e3", "")
            ),
        ),
        ("X-Amz-SignedHeaders", chance.choice(("host", "", ";" * 2_000, "host;é"))),
        ("X-Amz-Signature", chance.choice(("00" * 32, "", "é", "%"))),
    ]
    if chance.maybe(0.3):
        del fields[chance.randrange(len(fields))]
    if chance.maybe(0.5):
        at = chance.choice((-1, chance.randrange(len(fields))))
        fields[at] = ("Z" + fields[at][0], fields[at][1])
    if chance.maybe(0.2):
        fields += [chance.choice(fields)] * chance.count(2, 300)
    query = urlencode(fields).encode()
    if chance.maybe(0.1):
        query += b"&a" * chance.count(10, 20_000)
    return _in_target(chance.damaged(query) if chance.maybe(0.3) else query)


def internal(chance: Chance) -> Sent:
    """What only other nodes may ask."""
    path = chance.choice((b"/internal/node/status", b"/internal/shard/0/send", b"/internal/", b"/internal/node/drain"))
    headers = []
    for name in (b"X-Baton-Signature", b"X-Baton-Call", b"X-Baton-Time", b"X-Baton-Nonce", b"X-Baton-Date"):
        if chance.maybe(0.7):
            value = chance.choice(
                (
                    b"00" * 32,
                    b"\xe9",
                    b"",
                    b"1:2",
                    b"9" * 5_000,
                    b"\xff" * 64,
                    b"1785000000",
                    b"v2:1:2:3",
                    chance.noise(20),
                )
            )
            headers.append((name, bytes(byte for byte in value if byte >= 32 and byte != 127)))
    if chance.maybe(0.1):
        headers.append((b"Origin", b"http://evil.example"))
    body = packed(chance, {"a": [1, 2, 3]}) if chance.maybe(0.8) else chance.noise(50)
    return Sent(
        b"POST" if chance.maybe(0.9) else b"GET",
        _in_target(chance.damaged(path) if chance.maybe(0.1) else path),
        headers,
        body,
    )


# --- cases ---------------------------------------------------------------------------------------


def sqs_json(chance: Chance, facts: Facts) -> Sent:
    operation, given = chance.choice(requests(facts.target))
    headers = [(b"Content-Type", AMAZON_JSON), (b"X-Amz-Target", b"AmazonSQS." + operation.encode())]
    return Sent(b"POST", b"/", headers, json_text(chance, given))


def sqs_query(chance: Chance, facts: Facts) -> Sent:
    operation, given = chance.choice(requests(facts.target))
    text = form(chance, operation, given)
    if chance.maybe(0.3) and len(text) < 60 * KIB:
        return Sent(b"GET", b"/?" + _in_target(text), [])
    return Sent(
        b"POST",
        chance.choice((b"/", b"/", b"/000000000000/fuzzed", b"/?Action=ListQueues")),
        [(b"Content-Type", FORM)],
        text,
    )


def rest(chance: Chance, facts: Facts) -> Sent:
    method, path, value = chance.choice(REST_CALLS)
    value = json.loads(json.dumps(value).replace("$receipt", facts.receipt))
    headers = []
    if chance.maybe(0.1):
        headers.append((b"Idempotency-Key", chance.choice((b"a", b"k" * 200, b"\xe9"))))
    if chance.maybe(0.15):
        headers.append(
            (
                b"Accept",
                chance.choice((JSON, MSGPACK, b"*/*;q=" + chance.choice((b"x", b"-1", b"1e999")), b"," * 5_000)),
            )
        )
    if chance.maybe(0.5):
        return Sent(method.encode(), path.encode(), [*headers, (b"Content-Type", JSON)], json_text(chance, value))
    return Sent(method.encode(), path.encode(), [*headers, (b"Content-Type", MSGPACK)], packed(chance, value))


def rest_address(chance: Chance, facts: Facts) -> Sent:
    receipt = facts.receipt
    if chance.maybe(0.5):
        receipt = quote(chance.damaged(receipt.encode()))
    path = chance.choice(REST_READS).replace("$receipt", receipt).encode()
    kind = chance.random()
    if kind < 0.5:
        path = chance.damaged(path)
    elif kind < 0.7 and b"=" in path:
        start, _, _ = path.rpartition(b"=")
        path = start + b"=" + chance.choice(NUMBERS)
    elif kind < 0.8:
        path += chance.choice((b"/", b"?", b"&")) * chance.count(5, 60_000)
    method = b"POST" if b":" in path and chance.maybe(0.8) else chance.choice((b"GET", b"GET", b"HEAD", b"DELETE"))
    if method == b"DELETE" and chance.maybe(0.9):
        method = b"GET"
    return Sent(
        method, _in_target(path), [(b"Content-Type", chance.choice((JSON, MSGPACK)))] if method == b"POST" else []
    )


def signed(chance: Chance, facts: Facts) -> Sent:
    inner = chance.choice((sqs_json, sqs_query, rest, rest_address))(chance, facts)
    inner = inner._replace(body=inner.body[: 16 * KIB])
    if chance.maybe(0.35):
        mark = b"&" if b"?" in inner.target else b"?"
        return inner._replace(target=inner.target[: 16 * KIB] + mark + presigned(chance, facts))
    return inner._replace(headers=[*inner.headers, *authorization(chance, facts)])


def pages(chance: Chance, facts: Facts) -> Sent:
    """The node's own pages, with and without a token."""
    path = chance.choice((b"/", b"/metrics", b"/_baton/clock/advance", b"/v1/keys", b"/v1/keys/x:disable"))
    headers = [(b"Accept", b"text/html"), *authorization(chance, facts)]
    body = json_text(chance, {"seconds": 0, "queue": QUEUE, "id": "x"})
    if b"clock" in path or b"keys" in path:
        body = b'{"seconds": "x", "name": "\\u00e9", "account": 5}'
    return Sent(chance.choice((b"GET", b"POST")), path, [*headers, (b"Content-Type", JSON)], body)


def document_case(chance: Chance, name: str, facts: Facts, *, secured: bool) -> Case:
    makers: list[tuple[float, Callable[[], Sent]]] = [
        (5 if secured else 25, lambda: sqs_json(chance, facts)),
        (5 if secured else 20, lambda: sqs_query(chance, facts)),
        (5 if secured else 25, lambda: rest(chance, facts)),
        (15, lambda: rest_address(chance, facts)),
        (50 if secured else 8, lambda: signed(chance, facts)),
        (6, lambda: internal(chance)),
        (6, lambda: pages(chance, facts)),
    ]
    count = 1 if chance.maybe(0.8) else 3
    data = b"".join(chance.made(makers).encode() for _ in range(count))
    return Case(name=name, segments=chance.split(data) if chance.maybe(0.2) else (data,))


def _in_target(path: bytes) -> bytes:
    """Without what would end the target: such requests are made by the HTTP grammar."""
    return path.replace(b"\r", b"%0D").replace(b"\n", b"%0A").replace(b" ", b"%20").replace(b"\0", b"%00")

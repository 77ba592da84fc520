"""Connections as HTTP/1.1 clients, old clients, proxies and attackers write them."""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.cases import Case, End
from tests.fuzz.chance import KIB, ODD_BYTES, Chance

CRLF = b"\r\n"
LARGE_BYTES_MAX = 768 * KIB
CONNECTION_BYTES_MAX = 8 * KIB * KIB
METHODS = (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS")
ODD_METHODS = (b"TRACE", b"CONNECT", b"PRI", b"get", b"", b"G\xc9T", b"A" * 300, b"GET ", b"M-SEARCH", b"SOURCE")
TARGETS = (
    b"/livez",
    b"/readyz",
    b"/",
    b"/?Action=ListQueues",
    b"/v1/queues",
    b"/v1/queues/fuzzed",
    b"/v1/queues/fuzzed/messages",
    b"/v1/queues/fuzzed/messages:receive",
    b"/v1/openapi.json",
    b"/problems/invalid-input",
    b"/metrics",
    b"/internal/node/status",
    b"/000000000000/fuzzed",
)
ODD_TARGETS = (
    b"*",
    b"",
    b"http://127.0.0.1/livez",
    b"HTTP://localhost:99999/v1/queues?x=1",
    b"http://",
    b"http:///livez",
    b"https://user:password@[::1]:80/livez#fragment",
    b"ftp://example/livez",
    b"127.0.0.1:80",
    b"//livez",
    b"/../../livez",
    b"/livez?" + b"&" * 100,
    b"/livez#fragment",
    b"/%",
    b"/%2e%2e/%00",
    b"/v1/queues/%ff%fe",
    b"/v1/queues/" + b"%61" * 200,
    b"/\xc3\xa9",
    b"/\xff\xfe",
    b"/a b",
    b"/v1/" + b"/" * 400,
)
VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.1 ",
    b"http/1.1",
    b"HTTP/1.",
    b"HTTP/11",
    b"",
    b"HTTP/1.\xb1",
)
HEADERS = (
    (
        b"Content-Type",
        (b"application/json", b"application/msgpack", b"application/x-amz-json-1.0", b"text/plain; a=\xe9"),
    ),
    (b"Accept", (b"*/*", b"application/msgpack;q=0.5, */*;q=x", b"text/html", b",;,;q=", b"a/b;q=1e999")),
    (b"Connection", (b"close", b"keep-alive", b"Upgrade", b"close, keep-alive", b"\xff", b"TE, trailers")),
    (b"TE", (b"trailers", b"deflate;q=0.5")),
    (b"Trailer", (b"X-After", b"Content-Length, Host")),
    (b"Expect", (b"100-continue", b"100-CONTINUE", b"200-ok", b"", b"100-continue, 100-continue")),
    (b"Upgrade", (b"websocket", b"h2c", b"TLS/1.3", b"a" * 500, b"\xff")),
    (b"HTTP2-Settings", (b"AAMAAABkAAQAAP__",)),
    (b"X-Amz-Target", (b"AmazonSQS.ListQueues", b"AmazonSQS.", b"AmazonSQS.\xe9", b"AmazonSQS.SendMessage")),
    (b"X-Amz-Date", (b"20260101T000000Z", b"\xb2" * 16, b"20261399T999999Z")),
    (
        b"Authorization",
        (b"Basic \xe9", b"Basic Og==", b"Bearer \xff", b"AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request"),
    ),
    (b"Origin", (b"http://evil.example", b"null", b"\xff")),
    (b"Sec-Fetch-Site", (b"cross-site", b"none")),
    (b"Referer", (b"http://evil.example/",)),
    (b"Idempotency-Key", (b"a", b"\xff", b"", b"k" * 300)),
    (b"X-Baton-Signature", (b"00" * 32, b"\xe9", b"")),
    (b"X-Baton-Call", (b"c", b"\xff", b"")),
    (b"X-Forwarded-For", (b"10.0.0.1, \xff",)),
    (b"Range", (b"bytes=0-1,2-3",)),
    (b"Cookie", (b"a=b; " * 50,)),
    (b"Content-Encoding", (b"gzip", b"identity")),
    (b"Date", (b"not a date",)),
    (b"Accept-Encoding", (b"gzip;q=\xb9",)),
)
LENGTHS = (b"-1", b"+1", b"1,1", b"1, 2", b"0x10", b"1 1", b"", b" ", b"9" * 30, b"1e3", b"\xb9", b"00000000005", b"5;")
ENCODINGS = (
    b"Chunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked, gzip",
    b"identity",
    b"\tchunked",
    b"chunked\t",
    b"xchunked",
    b"chunked;q=1",
    b"",
    b"\xffchunked",
    b"chunked,",
)
TRAILER_NAMES = (b"X-After", b"Content-Length", b"Transfer-Encoding", b"Host", b"Authorization", b"X-Amz-Target", b"a")


class Head(NamedTuple):
    method: bytes
    target: bytes
    version: bytes
    lines: list[bytes]

    def encode(self, line_end: bytes = CRLF) -> bytes:
        start = b" ".join(part for part in (self.method, self.target, self.version) if part)
        return line_end.join([start, *self.lines]) + line_end * 2


# --- heads ---------------------------------------------------------------------------------------


def head(chance: Chance) -> Head:
    method = chance.choice(METHODS) if chance.maybe(0.93) else chance.choice(ODD_METHODS)
    version = b"HTTP/1.1" if chance.maybe(0.9) else chance.choice(VERSIONS)
    return Head(method, target(chance), version, header_lines(chance))


def target(chance: Chance) -> bytes:
    kind = chance.random()
    if kind < 0.7:
        return chance.choice(TARGETS)
    if kind < 0.88:
        return chance.choice(ODD_TARGETS)
    if kind < 0.95:
        return chance.damaged(chance.choice(TARGETS))
    return chance.choice(TARGETS) + b"?" + b"a=b&" * chance.count(4, 20_000)


def header_lines(chance: Chance) -> list[bytes]:
    lines = []
    if chance.maybe(0.93):
        lines.append(b"Host: 127.0.0.1")
    for _ in range(chance.count(3, 12)):
        name, values = chance.choice(HEADERS)
        lines.append(name + b": " + chance.choice(values))
    kind = chance.random()
    if kind < 0.03:  # very many
        name = chance.choice((b"X-Many", b"Cookie", b"a"))
        alike = chance.maybe(0.5)
        count = chance.randint(100, 20_000)
        lines += [name + b": vvv"] * count if alike else [name + b"%d: vvv" % number for number in range(count)]
    elif kind < 0.05:  # very long
        lines.append(
            chance.choice((b"X-Long: ", b"Authorization: ", b"Content-Type: ")) + b"a" * chance.randint(0, 150 * KIB)
        )
    elif kind < 0.08:
        lines.append(b"X-Folded: a\r\n" + b" b\r\n" * chance.count(2, 5_000) + b"\tc")
    elif kind < 0.12:
        lines.append(chance.choice(ODD_BYTES) + chance.text(5) + b":" + chance.noise(20))
    elif kind < 0.15:
        lines.append(chance.text(10) + chance.choice((b"", b" :", b"\x00: ", b"::")) + chance.choice(ODD_BYTES))
    elif kind < 0.18 and lines:
        lines += [chance.choice(lines)] * chance.count(2, 500)
    if len(lines) < 100:  # more of them are alike, and it takes time
        chance.shuffle(lines)
    return lines


# --- bodies --------------------------------------------------------------------------------------


def framed(chance: Chance, top: Head, body: bytes) -> bytes:
    """A request with its body, whose length is told in one of many ways."""
    kind = chance.random()
    lines = top.lines
    if kind < 0.35:
        return top._replace(lines=[*lines, b"Content-Length: %d" % len(body)]).encode() + body
    if kind < 0.45:
        return top.encode() + (body if chance.maybe(0.3) else b"")
    if kind < 0.55:
        wrong = chance.choice(
            (*LENGTHS, b"%d" % (len(body) + chance.randint(-3, 3)), b"4194305", b"18446744073709551616")
        )
        lines = [*lines, b"Content-Length: " + wrong]
        if chance.maybe(0.3):
            lines.append(b"Content-Length: %d" % len(body))
        return top._replace(lines=lines).encode() + body
    encoding = b"chunked" if kind < 0.9 else chance.choice(ENCODINGS)
    lines = [*lines, b"Transfer-Encoding: " + encoding]
    if chance.maybe(0.08):
        lines.append(b"Content-Length: %d" % len(body))
    if chance.maybe(0.04):
        lines.append(b"Transfer-Encoding: " + chance.choice(ENCODINGS))
    return top._replace(lines=lines).encode() + chunked(chance, body)


def chunked(chance: Chance, body: bytes) -> bytes:
    step = chance.pick([(3, max(1, len(body))), (2, 1), (2, 2), (2, chance.randint(1, 100))])
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    if len(pieces) > 2_000:  # all but the last alike, since each choice takes time
        last_size = b"%x" % len(pieces[-1])
        size = b"%x" % step
        parts = [
            size + CRLF + (CRLF + size + CRLF).join(pieces[:-1]) + CRLF,
            last_size + CRLF + pieces[-1] + CRLF,
        ]
    else:
        parts = [chunk_size(chance, len(piece)) + CRLF + piece + CRLF for piece in pieces]
    if parts and chance.maybe(0.08):
        at = chance.randrange(len(parts))
        parts[at] = chance.damaged(parts[at])
    last = b"0" if chance.maybe(0.95) else chance.choice((b"", b"00000", b"-0", b"0;x", b"g"))
    return b"".join(parts) + last + CRLF + trailers(chance) + (CRLF if chance.maybe(0.97) else b"")


def chunk_size(chance: Chance, size: int) -> bytes:
    kind = chance.random()
    if kind < 0.94:
        return b"%x" % size
    if kind < 0.96:
        return b"0" * chance.count(5, 50_000) + b"%X" % size
    if kind < 0.99:
        extension = chance.choice(
            (b";a=b", b";a", b';a="\r\nb"', b";" * 50, b"; \xe9=\xff", b";a=" + b"b" * chance.count(10, 90_000))
        )
        return b"%x" % size + extension
    return chance.choice((b"-1", b"0x1", b"ffffffffffffffff", b"10000000000000000", b" 1", b"1 ", b"", b"\xff"))


def trailers(chance: Chance) -> bytes:
    kind = chance.random()
    if kind < 0.6:
        return b""
    if kind < 0.75:
        names = chance.choices(TRAILER_NAMES, k=chance.randint(1, 5))
        return b"".join(name + b": " + chance.text(8) + CRLF for name in names)
    if kind < 0.8:
        return b"X-Large: " + b"a" * chance.randint(0, 200 * KIB) + CRLF
    if kind < 0.85:
        return chance.noise(30) + CRLF
    name = chance.choice((b"a", b"Content-Type", b"x-very-long-name-of-a-trailer"))
    alike = chance.maybe(0.6)
    size = int(16 * KIB * (LARGE_BYTES_MAX / (16 * KIB)) ** chance.random())
    line = len(name) + 4 + (0 if alike else 5)
    if alike:
        return (name + b":\r\n") * (size // line)
    return b"".join([name + b"%d:\r\n" % number for number in range(size // line)])


def plain_body(chance: Chance) -> bytes:
    return chance.made(
        [
            (5, lambda: b""),
            (5, lambda: b"{}"),
            (3, lambda: chance.noise(200)),
            (3, lambda: b'{"body": "' + b"x" * chance.randint(0, 2_000) + b'"}'),
            (1, lambda: b"Action=ListQueues&x=" + chance.text(100)),
            (0.4, lambda: b"x" * chance.randint(0, 60_000)),
            (0.1, lambda: b"x" * chance.randint(0, 1 << 20)),
        ]
    )


# --- connections ---------------------------------------------------------------------------------


def request(chance: Chance) -> bytes:
    return framed(chance, head(chance), plain_body(chance))


def upgrade(chance: Chance) -> bytes:
    kind = chance.choice((b"websocket", b"h2c", b"x"))
    lines = [b"Host: 127.0.0.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + kind]
    lines += [b"X-Extra: " + chance.text(20)] * chance.randint(0, 2)
    top = Head(chance.choice((b"GET", b"GET", b"POST", b"OPTIONS")), chance.choice(TARGETS[:4]), b"HTTP/1.1", lines)
    return framed(chance, top, b"{}") if chance.maybe(0.2) else top.encode()


def connection(chance: Chance) -> bytes:
    """All bytes of one connection."""
    kind = chance.random()
    if kind < 0.5:
        return request(chance)
    if kind < 0.75:
        return b"".join(request(chance) for _ in range(chance.randint(2, 6)))
    if kind < 0.80:
        small = Head(b"GET", chance.choice(TARGETS[:2]), b"HTTP/1.1", [b"Host: 127.0.0.1"]).encode()
        return small * chance.randint(10, 700)
    if kind < 0.85:
        return b"".join(upgrade(chance) for _ in range(chance.randint(1, 5)))
    if kind < 0.86:
        one = upgrade(chance)
        return one * min(chance.randint(10, 1_500), CONNECTION_BYTES_MAX // len(one))
    if kind < 0.90:
        return b"".join(chance.choice((upgrade, request))(chance) for _ in range(chance.randint(2, 8)))
    if kind < 0.92:
        return head(chance).encode(chance.choice((b"\n", b"\r", b"\n\r", b"\r\n ")))
    if kind < 0.94:
        return CRLF * chance.count(3, 30_000) + request(chance)
    if kind < 0.96:
        return chance.noise(600)
    return request(chance)[: chance.randint(0, 400)]


def http_case(chance: Chance, name: str) -> Case:
    data = connection(chance)[:CONNECTION_BYTES_MAX]
    if chance.maybe(0.35):
        data = chance.damaged(data)
    segments = chance.split(data)
    end = chance.pick([(80, End.HALF_CLOSE), (5, End.OPEN), (9, End.RESET), (6, End.STALL)])
    pauses: tuple[float, ...] = ()
    if len(segments) <= 40 and chance.maybe(0.15):
        pauses = tuple(chance.choice((0.0, 0.001, 0.01)) for _ in segments)
    return Case(name=name, segments=segments, end=end, pauses_s=pauses)


def well_formed_case(chance: Chance, name: str) -> Case:
    """Requests that are right, on one connection, however they are cut: each has its answer, in order."""
    parts, statuses = [], []
    for _ in range(chance.count(4, 40) + 1):
        kind = chance.randrange(5)
        lines = [b"Host: 127.0.0.1", b"X-Padding: " + chance.text(40)]
        if kind == 0:
            parts.append(Head(b"GET", b"/livez", b"HTTP/1.1", lines).encode())
        elif kind == 1:
            parts.append(Head(b"GET", b"http://127.0.0.1/livez", b"HTTP/1.1", lines).encode())
        elif kind == 2:
            lines += [b"Connection: Upgrade", b"Upgrade: h2c"]
            parts.append(Head(b"GET", b"/livez", b"HTTP/1.1", lines).encode())
        elif kind == 3:
            lines += [b"Content-Length: 2"]
            parts.append(Head(b"GET", b"/livez", b"HTTP/1.1", lines).encode() + b"{}")
        else:
            lines += [b"Transfer-Encoding: chunked"]
            after = b"X-After: 1\r\n" * chance.randint(0, 2)
            parts.append(
                Head(b"GET", b"/livez", b"HTTP/1.1", lines).encode() + b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\n" + after + CRLF
            )
        statuses.append(200)
    return Case(name=name, segments=chance.split(b"".join(parts)), statuses=tuple(statuses))

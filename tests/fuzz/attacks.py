"""The attacks that were found by hand, each by name. The fuzzer must not be needed to find them again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from tests.fuzz.bounds import CONNECTION_BYTES_MAX, CROWD_MS_MAX, bytes_bound
from tests.fuzz.cases import Case, End
from tests.fuzz.server import Profile

KIB = 1024
MIB = 1024 * KIB
HOST = b"Host: 127.0.0.1\r\n"
LARGE = 4 * MIB - 1_000
BOTH = (Profile.DEVELOPMENT, Profile.SECURED)


class Attack(NamedTuple):
    name: str
    cases: Callable[[], list[Case]]
    profiles: tuple[Profile, ...] = BOTH
    together: bool = False  # all connections at once, and left open
    alone: bool = True  # one connection at a time
    crowd_ms_max: float = inf  # of a turn of the event loop that all of them make together
    peak_bytes_max: int = 48 * MIB
    growth_bytes_max: int = 16 * MIB  # when all connections are closed


# Attacked servers have little room for requests, so that few connections fill it.
REQUESTS_BYTES_MAX = 64 * MIB
FLAGS = ("--requests-bytes-max", str(REQUESTS_BYTES_MAX))


def _chunked_head(target: bytes = b"/v1/queues/fuzzed/messages") -> bytes:
    return (
        b"POST "
        + target
        + b" HTTP/1.1\r\n"
        + HOST
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def _one(name: str, data: bytes, end: End = End.HALF_CLOSE) -> list[Case]:
    return [Case(name=name, segments=(data,), end=end)]


def _waiting(name: str, data: bytes) -> list[Case]:
    """A client that stays for its answer: a receive is given up when its client has said all."""
    return [Case(name=name, segments=(data,), pauses_s=(1.0,), end=End.OPEN)]


def repeated_trailers() -> list[Case]:
    return _one("trailers of one name", _chunked_head() + b"2\r\n{}\r\n0\r\n" + b"a:b\r\n" * (MIB // 5) + b"\r\n")


def distinct_trailers() -> list[Case]:
    lines = b"".join(b"t%d:b\r\n" % number for number in range(100_000))
    return _one("trailers of many names", _chunked_head() + b"2\r\n{}\r\n0\r\n" + lines + b"\r\n")


def long_trailers() -> list[Case]:
    line = b"a: " + b"b" * (60 * KIB) + b"\r\n"
    return _one("long trailers", _chunked_head() + b"2\r\n{}\r\n0\r\n" + line * 40 + b"\r\n")


def repeated_headers() -> list[Case]:
    head = b"GET /livez HTTP/1.1\r\n" + HOST + b"a:b\r\n" * (60 * KIB // 5) + b"\r\n"
    return _one("headers of one name", head * 20)


def tiny_chunks() -> list[Case]:
    """Each chunk is small, and must not cost more than what it carries."""
    data = _chunked_head() + b"2\r\nab\r\n" * MIB
    return [Case(name=f"tiny chunks {number}", segments=(data,), end=End.STALL) for number in range(4)]


def crowded_chunks() -> list[Case]:
    """Small chunks on very many connections in the same moment."""
    data = _chunked_head() + b"1\r\na\r\n" * 16_000
    return [Case(name=f"crowded chunks {number}", segments=(data,), end=End.STALL) for number in range(250)]


def crowded_requests() -> list[Case]:
    """The same of small requests that are sent ahead."""
    data = (b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n") * 1_000
    return [Case(name=f"crowded requests {number}", segments=(data,), end=End.STALL) for number in range(250)]


def idle_bodies() -> list[Case]:
    """Bodies that never end, on more connections than all bodies have room for."""
    head = (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: 4194304\r\n\r\n"
    )
    data = head + bytes(4 * MIB - 1)
    return [Case(name=f"idle body {number}", segments=(data,), end=End.STALL) for number in range(40)]


def idle_heads() -> list[Case]:
    data = b"GET /livez HTTP/1.1\r\n" + HOST + b"X-Long: " + b"a" * (60 * KIB)
    return [Case(name=f"idle head {number}", segments=(data,), end=End.STALL) for number in range(500)]


def _form(body: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Type: application/x-www-form-urlencoded\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def dotted_form() -> list[Case]:
    return _one("a form of dots", _form(b"Action=SendMessage&a" + b"." * (4 * MIB - 100) + b"=1"))


def dotted_fields() -> list[Case]:
    fields = b"&".join(b"a%d" % number + b".b" * 1_000 + b"=1" for number in range(1_900))
    return _one("a form of dotted fields", _form(b"Action=SendMessage&" + fields))


def unlikely_paths() -> list[Case]:
    """Addresses of 50 KiB, each another one, on the way that keeps what it has read."""
    cases = []
    for number in range(200):
        path = b"/v1/queues/q%d/messages:receive" % number
        path = (
            path.replace(b"q", b"q" * (50 * KIB), 1)
            if number % 2
            else path.replace(b"/messages", b"%61" * 16_000 + b"/messages")
        )
        head = (
            b"POST "
            + path
            + b" HTTP/1.1\r\n"
            + HOST
            + b"Content-Type: application/msgpack\r\nContent-Length: 1\r\n\r\n\x80"
        )
        cases += _one(f"unlikely path {number}", head)
    return cases


def unlikely_signatures() -> list[Case]:
    """What raised in the code that reads signatures."""
    long = b"9" * 5_000
    start = b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/d/aws4_request&X-Amz-SignedHeaders=host"
    presigned = start + b"&X-Amz-Date=20260101T000000Z&X-Amz-Signature=0&X-Amz-Expires="
    heads = [
        b"GET /?ZX-Amz-Signature=1 HTTP/1.1\r\n" + HOST,
        b"GET /?" + start + b"&X-Amz-Date=20260101T000000Z&X-Amz-Expires=1&ZX-Amz-Signature=1 HTTP/1.1\r\n" + HOST,
        b"GET /?" + presigned + long + b" HTTP/1.1\r\n" + HOST,
        b"GET /?" + presigned + b"0" * 5_000 + b"1 HTTP/1.1\r\n" + HOST,
        b"GET /v1/queues?" + presigned + long + b" HTTP/1.1\r\n" + HOST,
        b"GET /metrics HTTP/1.1\r\n" + HOST + b"Authorization: Basic \xe9\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Accept: text/html\r\nAuthorization: Basic \xe9\r\n",
        b"POST /v1/keys HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nAuthorization: Basic \xe9\r\n",
        b"POST /v1/keys HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nAuthorization: Bearer \xe9\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"X-Amz-Target: AmazonSQS.ListQueues\r\nAuthorization: Basic \xe9\r\n",
    ]
    return [case for number, head in enumerate(heads) for case in _one(f"unlikely signature {number}", head + b"\r\n")]


def unlikely_calls() -> list[Case]:
    """What raised in the code that reads the signatures of other nodes."""
    cases = []
    for number, name in enumerate((b"X-Baton-Signature", b"X-Baton-Call", b"X-Baton-Time", b"X-Baton-Nonce")):
        for value in (b"\xe9", b"9" * 5_000, b"\xd9\xa1", b""):
            head = (
                b"POST /internal/node/status HTTP/1.1\r\n"
                + HOST
                + name
                + b": "
                + value
                + b"\r\nContent-Length: 0\r\n\r\n"
            )
            cases += _one(f"unlikely call {number} {value[:2]!r}", head)
    return cases


def heavy_forms() -> list[Case]:
    """Forms of the largest size that are slow to decode."""
    fields = b"&".join(b"a%d=" % number + b"%41" * 600 for number in range(1_900))
    bodies = (b"%" * LARGE, b"%41" * (LARGE // 3), b"a%41" * (LARGE // 4), b"%C3%A9" * (LARGE // 6), b"+" * LARGE)
    forms = [b"Action=SendMessage&MessageBody=" + body for body in bodies]
    forms += [b"Action=SendMessage&" + fields, b"&" * LARGE, b"=" * LARGE, b"a&" * (LARGE // 2)]
    return [case for number, body in enumerate(forms) for case in _one(f"heavy form {number}", _form(body))]


def _values() -> list[bytes]:
    """JSON of nearly the largest size, each of many small things or of one large one."""
    return [
        b"[" * LARGE,
        b'{"a":' * (LARGE // 5),
        b"[" + b"1," * (LARGE // 2) + b"1]",
        b"[" + b"1.5," * (LARGE // 4) + b"1]",
        b"[" + b"{}," * (LARGE // 3) + b"{}]",
        b"[" + b'{"Id":"a"},' * (LARGE // 11) + b"{}]",
        b"[" + b'{"x":1},' * (LARGE // 8) + b"{}]",
        b"[" + b'{"body":1},' * (LARGE // 11) + b"{}]",
        b"{" + b",".join(b'"k%d":1' % number for number in range(LARGE // 12)) + b"}",
        b"{" + b'"a":1,' * (LARGE // 6) + b'"a":2}',
        b"1" * LARGE,
        b'"' + b'\\"' * (LARGE // 2) + b'"',
        b'"' + b"\\\\" * (LARGE // 2) + b'"',
    ]


def _post(target: bytes, headers: bytes, body: bytes) -> bytes:
    head = b"POST " + target + b" HTTP/1.1\r\n" + HOST + headers
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def heavy_sqs_documents() -> list[Case]:
    cases = []
    for operation, member in (
        (b"SendMessageBatch", b"Entries"),
        (b"DeleteMessageBatch", b"Entries"),
        (b"SendMessage", b"Unknown"),
    ):
        headers = b"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS." + operation + b"\r\n"
        for number, value in enumerate(_values()):
            data = _post(b"/", headers, b'{"' + member + b'":' + value + b"}")
            cases += _one(f"heavy {operation.decode()} {number}", data)
    return cases


def heavy_rest_documents() -> list[Case]:
    cases = []
    places = (
        (b"/v1/queues/fuzzed/messages", b"body"),
        (b"/v1/queues/fuzzed/messages", b"attributes"),
        (b"/v1/queues/fuzzed/messages:batch", b"messages"),
    )
    for target, member in places:
        for number, value in enumerate(_values()):
            data = _post(target, b"Content-Type: application/json\r\n", b'{"' + member + b'":' + value + b"}")
            cases += _one(f"heavy {member.decode()} {number}", data)
    return cases


def heavy_packed_documents() -> list[Case]:
    cases = []
    size = struct.pack(">I", LARGE)
    bodies = [
        b"\x91" * LARGE,
        b"\xdd" + size + b"\xc0" * LARGE,
        b"\xdd" + size + b"\x80" * LARGE,
        b"\xdd" + size + b"\xa0" * LARGE,
        b"\xdd" + struct.pack(">I", LARGE // 6) + b"\x81\xa4body\x01" * (LARGE // 7),
        b"\xdf" + struct.pack(">I", LARGE // 6) + b"".join(b"\xa4%04x\xc0" % (n % 65_536) for n in range(LARGE // 6)),
    ]
    for target, member in (
        (b"/v1/queues/fuzzed/messages", b"\xa4body"),
        (b"/v1/queues/fuzzed/messages:batch", b"\xa8messages"),
        (b"/v1/queues/fuzzed/messages:ack", b"\xaereceiptHandles"),
    ):
        for number, body in enumerate(bodies):
            data = _post(target, b"Content-Type: application/msgpack\r\n", b"\x81" + member + body)
            cases += _one(f"heavy packed {member[1:].decode()} {number}", data)
    large = struct.pack(">I", LARGE - 100)
    largest = struct.pack(">I", 99_000)  # nearly as many values as a document may have
    bodies = [
        *(b"\xdd" + large + value * (LARGE - 100) for value in (b"\x80", b"\x90", b"\xa0", b"\xc0")),
        b"\xdd" + struct.pack(">I", LARGE // 4 - 100) + b"\x81\xa1a\x01" * (LARGE // 4 - 100),
        b"\xdd" + largest + (b"\xcb" + struct.pack(">d", 1.1234567890123)) * 99_000,
        b"\xdd" + struct.pack(">I", 19_000) + b"\x80" * 19_000,
    ]
    for number, body in enumerate(bodies):
        for more in (b"", b"\x81\xa4body\xa1a"):  # alone, and beside another kind of body
            batch = b"\x81\xa8messages" + (b"\x92" if more else b"\x91") + b"\x81\xa4body" + body + more
            data = _post(b"/v1/queues/fuzzed/messages:batch", b"Content-Type: application/msgpack\r\n", batch)
            cases += _one(f"heavy packed body {number} {len(more)}", data)
    return cases + _repeated_fields()


def _repeated_fields() -> list[Case]:
    """Fields that an object in MessagePack has again and again: of an entry, of the producer, of the whole request."""
    fields = (
        b"\xa4body\xc0",
        b"\xaaattributes\x80",
        b"\xaatracestate\xa1a",
        b"\xaemessageGroupId\xa1a",
        b"\xa2id\xa1a",
    )
    cases = []
    for field in fields:
        count = (LARGE - 100) // len(field)
        repeated = b"\xdf" + struct.pack(">I", count) + field * count
        member = b"\xa8producer" if field.startswith(b"\xa2id") else b"\xa8messages\x91"
        cases += _one(f"repeated {field[1:5]!r}", _packed_batch(b"\x81" + member + repeated))
    entries = b"\xa8messages\xdc\x03\xe8" + b"\x80" * 1_000
    for count in (2, 15, (LARGE - 100) // len(entries)):
        cases += _one(f"repeated messages {count}", _packed_batch(b"\xde" + struct.pack(">H", count) + entries * count))
    some = b"\xde\x00\x32" + b"".join(b"\xa3%03d" % number + b"\xdc\x01\x2c" + b"\x80" * 300 for number in range(50))
    attributes = (b"\x82\xa4body\xa1a\xaaattributes" + some) * 250  # most of the largest size: lists are not attributes
    return cases + _one("packed attributes", _packed_batch(b"\x81\xa8messages\xdc\x00\xfa" + attributes))


def _packed_batch(batch: bytes) -> bytes:
    return _post(b"/v1/queues/fuzzed/messages:batch", b"Content-Type: application/msgpack\r\n", batch)


def heavy_answers() -> list[Case]:
    """Messages in JSON that are slow to put into MessagePack, ten in one answer."""
    cases = []
    packed = b"Content-Type: application/msgpack\r\n"
    receive = _post(b"/v1/queues/fuzzed/messages:receive", packed, b"\x80")
    peek = b"GET /v1/queues/fuzzed/messages?limit=100 HTTP/1.1\r\nAccept: application/msgpack\r\n" + HOST + b"\r\n"
    for number, member in enumerate((b"{},", b"[1],", b"1.12345678,", b'{"a":1},')):
        body = b'{"body": [' + member * 80_000 + b"1]}"
        send = _post(b"/v1/queues/fuzzed/messages", b"Content-Type: application/json\r\n", body)
        cases += _one(f"heavy message {number}", send * 10)
        cases += _one(f"heavy peek {number}", peek)
        cases += _waiting(f"heavy receive {number}", receive)
    return cases


def many_attributes() -> list[Case]:
    """As many attributes as a batch may have, sent and received."""
    attributes = b",".join(b'"a%d": "v"' % number for number in range(49))
    batch = b'{"messages": [' + b",".join([b'{"body": "x", "attributes": {' + attributes + b"}}"] * 1_000) + b"]}"
    json = b"Content-Type: application/json\r\n"
    receive = _post(b"/v1/queues/fuzzed/messages:receive", json, b'{"maxMessages": 1000}')
    return [
        *_one("many attributes sent", _post(b"/v1/queues/fuzzed/messages:batch", json, batch)),
        *_waiting("many attributes received", receive),
    ]


def heavy_redrives() -> list[Case]:
    """Edits that would be written to the log with each step of a job."""
    json = b"Content-Type: application/json\r\n"
    edits = (
        b'{"edit": {"replaceBody": [' + b"{}," * 90_000 + b"1]}}",
        b'{"edit": {"replaceBody": "' + b"x" * (LARGE - 100) + b'"}}',
    )
    return [
        case
        for number, edit in enumerate(edits)
        for case in _one(f"heavy redrive {number}", _post(b"/v1/queues/fuzzed:redrive", json, edit))
    ]


def pipelined_upgrades() -> list[Case]:
    one = b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    return [
        Case(name=f"{count} upgrades", segments=(one * count,), statuses=(200,) * count)
        for count in (2, 16, 400, 3_000)
    ]


def early_leavers() -> list[Case]:
    """Clients that send messages and are gone before the answer."""
    body = b'{"body": "' + b"x" * 1_000 + b'"}'
    one = _post(b"/v1/queues/fuzzed/messages", b"Content-Type: application/json\r\n", body)
    other = _post(b"/", b"Content-Type: application/x-www-form-urlencoded\r\n", b"Action=ListQueues")
    heads = b"HEAD /v1/queues HTTP/1.1\r\n" + HOST + b"\r\n"
    datas = (one, other, one * 3, heads + one, one + heads + other)
    return [
        Case(name=f"leaves early {number}", segments=(datas[number % len(datas)],), end=End.RESET)
        for number in range(200)
    ]


def unread_answers() -> list[Case]:
    """Clients that ask for much and read nothing of it."""
    one = b"GET /v1/openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    return [Case(name=f"unread {n}", segments=(one * 2_000,), end=End.STALL, reads=False) for n in range(20)]


def pipelined_requests() -> list[Case]:
    one = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
    return [
        Case(name=f"{count} requests at once", segments=(one * count,), statuses=(200,) * count)
        for count in (2, 100, 5_000)
    ]


ATTACKS = (
    Attack("repeated trailers", repeated_trailers),
    Attack("distinct trailers", distinct_trailers),
    Attack("long trailers", long_trailers),
    Attack("repeated headers", repeated_headers),
    Attack("tiny chunks", tiny_chunks, together=True),
    Attack("crowded chunks", crowded_chunks, together=True, crowd_ms_max=CROWD_MS_MAX),
    Attack("crowded requests", crowded_requests, together=True, crowd_ms_max=CROWD_MS_MAX),
    Attack("idle bodies", idle_bodies, together=True, peak_bytes_max=bytes_bound(REQUESTS_BYTES_MAX)),
    Attack("idle heads", idle_heads, together=True, peak_bytes_max=bytes_bound(500 * CONNECTION_BYTES_MAX)),
    Attack("dotted form", dotted_form),
    Attack("dotted fields", dotted_fields),
    Attack("heavy forms", heavy_forms, (Profile.DEVELOPMENT,)),
    Attack("heavy SQS documents", heavy_sqs_documents, (Profile.DEVELOPMENT,)),
    Attack("heavy REST documents", heavy_rest_documents, (Profile.DEVELOPMENT,)),
    Attack("heavy packed documents", heavy_packed_documents, (Profile.DEVELOPMENT,)),
    Attack("heavy answers", heavy_answers, (Profile.DEVELOPMENT,), peak_bytes_max=96 * MIB, growth_bytes_max=40 * MIB),
    Attack("many attributes", many_attributes, (Profile.DEVELOPMENT,)),
    Attack("heavy redrives", heavy_redrives, (Profile.DEVELOPMENT,)),
    Attack("unlikely paths", unlikely_paths, alone=False, growth_bytes_max=4 * MIB),
    Attack("unlikely signatures", unlikely_signatures),
    Attack("unlikely calls", unlikely_calls, (Profile.PROCESSES,)),
    Attack("pipelined upgrades", pipelined_upgrades),
    Attack("pipelined requests", pipelined_requests),
    Attack("early leavers", early_leavers, alone=False),
    Attack("unread answers", unread_answers, together=True),
)

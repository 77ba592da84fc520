"""What a client without credentials can take of a server: memory per connection, per address and in all."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

import pytest
import uvloop

from batonq.api.http import HttpLimits
from tests.fuzz.bounds import CONNECTION_BYTES_MAX, IDLE_BYTES_MAX, KIB, MIB, TLS_BYTES_MAX, bytes_bound
from tests.fuzz.cases import Case, End
from tests.fuzz.run import facts_of
from tests.fuzz.server import FuzzedServer, Profile
from tests.fuzz.session import Finding, Session, attacking, tell

HOST = b"Host: 127.0.0.1\r\n"
LIMITS = HttpLimits()


def anonymous() -> list[tuple[str, bytes, int]]:
    """Connections of a client without credentials, and what each may take."""
    head = b"POST / HTTP/1.1\r\n" + HOST
    room = LIMITS.head_bytes_max - 1_000
    body = LIMITS.anonymous_body_bytes_max - 1_000
    count = LIMITS.headers_max - 2
    many = b"".join(b"x%d: " % number + b"a" * (room // count - 10) + b"\r\n" for number in range(count))
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    return [
        ("nothing", b"", IDLE_BYTES_MAX),
        ("answered", b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n", IDLE_BYTES_MAX),
        ("answered large", head + b"Content-Length: %d\r\n\r\n" % body + bytes(body), IDLE_BYTES_MAX),
        ("long header", head + b"X: " + b"a" * room, CONNECTION_BYTES_MAX),
        ("many headers", head + many, CONNECTION_BYTES_MAX),
        ("body", head + b"Content-Length: %d\r\n\r\n" % body + bytes(body - 1), CONNECTION_BYTES_MAX),
        ("small chunks", chunked + b"1\r\na\r\n" * (LIMITS.chunks_max - 10), CONNECTION_BYTES_MAX),
        ("chunks", chunked + (b"100\r\n" + bytes(256) + b"\r\n") * (body // 256), CONNECTION_BYTES_MAX),
        ("trailers", chunked + b"0\r\n" + b"x: y\r\n" * 1_000, CONNECTION_BYTES_MAX),
        (
            "head and body",
            head + many[: room - 10_000] + b"\r\nContent-Length: 60000\r\n\r\n" + bytes(50_000),
            CONNECTION_BYTES_MAX,
        ),
    ]


async def measure_each(
    session: Session, name: str, data: bytes, count: int, bytes_max: float, *, at_peak: bool = False
) -> None:
    """What the server takes for each of so many connections that send this and stay."""
    server = session.server
    await session.judge()
    await asyncio.to_thread(server.trim)
    server.forget_peak()
    handles, before = server.handles, server.memory_bytes
    cases = [Case(name=f"{name} {number}", segments=(data,), end=End.STALL) for number in range(count)]
    await asyncio.gather(*(session.play(case) for case in cases))
    await asyncio.to_thread(server.wait_until_read)
    each = ((server.peak_bytes if at_peak else server.memory_bytes) - before) / count
    print(f"{name}: {each / KIB:.1f} KiB per connection")
    if each > bytes_max:
        text = f"{name}: {each / KIB:.1f} KiB per connection, more than {bytes_max / KIB:.0f}"
        session.findings.append(Finding(text, cases[:1]))
    session.release()
    await asyncio.to_thread(server.settle, handles)


@pytest.mark.parametrize("profile", [Profile.SECURED, Profile.PROCESSES])
def test_memory_per_connection_without_credentials(tmp_path: Path, profile: Profile) -> None:
    """Each kind of connection, many times; in the profile of several processes over TLS."""
    with_tls = profile is Profile.PROCESSES
    kinds = [kind for kind in anonymous() if not with_tls or kind[0] in ("nothing", "long header", "head and body")]

    async def measure(server: FuzzedServer) -> Session:
        async with attacking(server, stall_ms_max=inf) as session:
            for name, data, bytes_max in kinds:
                await measure_each(
                    session, name, data, 60 if with_tls else 200, bytes_max + (TLS_BYTES_MAX if with_tls else 0)
                )
        return session

    with FuzzedServer(tmp_path, profile) as server:
        tell(uvloop.run(measure(server)))


def test_memory_per_connection(tmp_path: Path) -> None:
    """A request of the largest size that waits for messages, and behind it another one that does not end."""
    size = LIMITS.body_bytes_max - 100
    target = b"POST /v1/queues/fuzzed/messages:receive HTTP/1.1\r\n"
    head = target + HOST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
    data = head + b'{"waitSeconds": 2}'.ljust(size) + head + bytes(size - 1)

    async def measure(server: FuzzedServer) -> Session:
        await facts_of(server)
        async with attacking(server, stall_ms_max=inf) as session:
            count = 12
            copied = LIMITS.body_bytes_max / count  # one body at a time is in memory twice: while its parts are joined
            bound = 2 * LIMITS.body_bytes_max + 512 * KIB + copied
            await measure_each(session, "two of the largest", data, count, bound, at_peak=True)
        return session

    with FuzzedServer(tmp_path, Profile.DEVELOPMENT) as server:
        tell(uvloop.run(measure(server)))


@pytest.mark.parametrize("addresses", [1, 4])
def test_memory_per_address_and_in_all(tmp_path: Path, addresses: int) -> None:
    """Bodies that never end, from clients that claim to have credentials, on a server with little room."""
    room, share = 32 * MIB, 0.5
    body = 1 * MIB
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Authorization: claimed\r\nContent-Length: %d\r\n\r\n" % (body + 1)
    bound = bytes_bound(room * share if addresses == 1 else room)

    async def flood(server: FuzzedServer) -> Session:
        async with attacking(server, stall_ms_max=inf) as session:
            cases = [
                Case(
                    name=f"body {number}",
                    segments=(head + bytes(body),),
                    end=End.STALL,
                    address=f"127.0.1.{number % addresses + 1}",
                )
                for number in range(2 * room // body)
            ]
            await asyncio.gather(*(session.play(case) for case in cases))
            await asyncio.to_thread(server.wait_until_read)
        return session

    flags = ("--requests-bytes-max", f"{room}", "--address-share", f"{share}")
    with FuzzedServer(tmp_path, Profile.SECURED, *flags) as server:
        session = uvloop.run(flood(server))
        if session.measured.peak_growth_bytes > bound:
            session.findings.append(Finding(f"more than {bound / MIB:.0f} MiB"))
        tell(session)

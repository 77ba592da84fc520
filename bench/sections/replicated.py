"""Replicated logs: frames appended by Baton's log, one at a time and fenced, compared with a bare client.

The bare client sends the same bytes to the same kind of stream or table, one at a time: JetStream with the expected
sequence, PostgreSQL with one INSERT per transaction.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import nats
import psycopg

from batonq.core.records import ROW_BYTES, Type, word0
from batonq.log import frames
from batonq.log.backend import LogStore
from batonq.log.frames import Frame
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.store import JetStreamStore
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.store import PostgresStore
from batonq.log.replicated_log import MirroredLog
from bench.context import Context
from bench.machine import CpuTimes
from bench.report import Sample
from tests.support.nats import NatsServers, nats_servers
from tests.support.postgres import running_postgres

_FRAME_BYTES = 64 << 10
_RATIO_MIN = 0.7
_ROWS = word0(Type.SENT, 0, 0, 0, 7).to_bytes(8, "little") + bytes(ROW_BYTES - 8)
_BODY = secrets.token_bytes(_FRAME_BYTES - ROW_BYTES - frames.HEADER_BYTES)

Append = Callable[[int], Awaitable[None]]  # this many frames, one after another


@dataclass(slots=True)
class _Contestant:
    name: str
    run: Append


def replicated(context: Context) -> None:
    count = context.size(1_000, 100)
    with nats_servers(3) as servers:
        mirror = context.servers.directory / "mirror-jetstream"
        _compare(context, "JetStream, 3 servers", count, lambda runner: _jetstream(runner, servers, mirror))
    with running_postgres("") as server:
        mirror = context.servers.directory / "mirror-postgres"
        _compare(context, "PostgreSQL", count, lambda runner: _postgres(runner, server.address, mirror))


def _compare(
    context: Context,
    what: str,
    count: int,
    contestants: Callable[[asyncio.Runner], list[_Contestant]],
) -> None:
    title = f"{what}: frames of {_FRAME_BYTES >> 10} KiB, one at a time, synced"
    with asyncio.Runner() as runner:

        def measure(contestant: _Contestant) -> Sample:
            times, cpu_s, started = CpuTimes.now(), time.process_time(), time.perf_counter()
            runner.run(_call(contestant.run, count))
            seconds = time.perf_counter() - started
            return {
                "frames/s": count / seconds,
                "MB/s": count * _FRAME_BYTES / seconds / 1e6,
                "client µs/frame": (time.process_time() - cpu_s) / count * 1e6,
                "steal %": CpuTimes.now().steal_percent_since(times),
            }

        one, other = contestants(runner)
        table = context.report.table("replicated", title, context.interleave([one, other], measure), "MB/s")
    ratio = table.ratio(one.name, other.name, "MB/s")
    context.report.bar("replicated", f"{what}: {one.name} ÷ {other.name}", ratio, _RATIO_MIN, at_least=True)


async def _call(run: Append, count: int) -> None:
    await run(count)


def _jetstream(runner: asyncio.Runner, servers: NatsServers, mirror: Path) -> list[_Contestant]:
    address = NatsAddress(servers.servers, name="bench", monitors=servers.monitor_addresses)

    async def prepare() -> list[_Contestant]:
        ours = await _log(await JetStreamStore.open(address), mirror)
        await (await JetStreamStore.open(address)).backend(1)
        context = (await nats.connect([f"nats://{server}" for server in servers.servers])).jetstream()
        data = secrets.token_bytes(_FRAME_BYTES)
        last = 0

        async def bare(count: int) -> None:
            nonlocal last
            for _ in range(count):
                headers = {"Nats-Expected-Last-Sequence": str(last)}
                last = (await context.publish("baton.bench.shard-0001", data, headers=headers)).seq

        return [_Contestant("Baton's log", ours), _Contestant("nats-py", bare)]

    return runner.run(prepare())


def _postgres(runner: asyncio.Runner, conninfo: str, mirror: Path) -> list[_Contestant]:
    async def prepare() -> list[_Contestant]:
        ours = await _log(await PostgresStore.open(PostgresAddress(conninfo)), mirror)
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        await connection.execute("CREATE TABLE bare (number bigserial PRIMARY KEY, data bytea NOT NULL)")
        await connection.execute("ALTER TABLE bare ALTER COLUMN data SET STORAGE EXTERNAL")
        data = secrets.token_bytes(_FRAME_BYTES)

        async def bare(count: int) -> None:
            for _ in range(count):
                await connection.execute("INSERT INTO bare (data) VALUES (%b)", (data,), prepare=True)

        return [_Contestant("Baton's log", ours), _Contestant("psycopg", bare)]

    return runner.run(prepare())


async def _log(store: LogStore, mirror: Path) -> Append:
    log = await MirroredLog.open(await store.backend(0, store.replicas), str(mirror), cluster=store.cluster)

    async def append(count: int) -> None:
        for _ in range(count):
            committed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            log.append(_next(log, store.cluster), committed.set_result)
            error = await committed
            if error is not None:
                raise error

    return append


def _next(log: MirroredLog, cluster: int) -> Frame:
    return frames.build(
        cluster=cluster,
        region=0,
        shard=log.shard,
        epoch=1,
        number=log.next,
        time_ms=0,
        previous_digest=log.tail_digest,
        rows=_ROWS,
        variable=_BODY,
    )

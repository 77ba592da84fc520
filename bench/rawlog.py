"""The raw log: frames that Baton wrote, appended again by a bare client to streams like its own, in the same servers.

One append per stream is in flight, with the expected last sequence, as in Baton's log; the frames are the same bytes in
the same order. Nothing is parsed, kept or answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, DeliverPolicy

from bench.clients import BenchError

_CLUSTER = "baton"  # the name used by `baton cluster up`
_TIMEOUT_S = 60
_TRIES = 50
_TRY_S = 0.2


class RawLog:
    """One stream per shard with the settings of Baton's, and one connection per server."""

    def __init__(self, servers: Sequence[str], shards: int) -> None:
        self._servers = servers
        self._shards = shards
        self._runner = asyncio.Runner()
        self._clients: list[Client] = []
        self._taken = [0] * shards  # the last frame of each of Baton's streams that was already read
        self._last = [0] * shards  # sequences of the streams here
        self._frames: list[list[bytes]] = [[] for _ in range(shards)]

    def __enter__(self) -> RawLog:
        self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    @property
    def frames(self) -> int:
        return sum(map(len, self._frames))

    @property
    def bytes(self) -> int:
        return sum(len(frame) for frames in self._frames for frame in frames)

    def skip(self) -> None:
        """Skip what Baton has written up to now."""
        self._runner.run(self._skip())

    def take(self) -> None:
        """Load what Baton has written since the last skip, for `append`."""
        self._runner.run(self._take())

    def append(self) -> None:
        """All streams in parallel, each with one append in flight."""
        self._runner.run(self._append())

    def purge(self) -> None:
        self._runner.run(self._purge())

    # --- on the loop ----------------------------------------------------------------------------

    async def _open(self) -> None:
        for server in self._servers:
            self._clients.append(await nats.connect([f"nats://{server}"], allow_reconnect=False))
        for shard in range(self._shards):
            config = (await self._ask(f"STREAM.INFO.{_source(shard)}"))["config"]
            wanted = config | {"name": _name(shard), "subjects": [_name(shard)]}
            await self._ask(f"STREAM.CREATE.{_name(shard)}", wanted)
        await self._skip()

    async def _close(self) -> None:
        for client in self._clients:
            await client.close()

    async def _skip(self) -> None:
        for shard in range(self._shards):
            self._taken[shard] = (await self._ask(f"STREAM.INFO.{_source(shard)}"))["state"]["last_seq"]

    async def _take(self) -> None:
        context = self._clients[0].jetstream(timeout=_TIMEOUT_S)
        for shard in range(self._shards):
            stop = (await self._ask(f"STREAM.INFO.{_source(shard)}"))["state"]["last_seq"]
            start = self._taken[shard] + 1
            frames = self._frames[shard] = []
            if stop < start:
                continue
            config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start)
            reading = await context.subscribe(
                "", stream=_source(shard), ordered_consumer=True, config=config, pending_bytes_limit=1 << 30
            )
            while len(frames) < stop + 1 - start:
                frames.append((await reading.next_msg(_TIMEOUT_S)).data)
            await reading.unsubscribe()
            self._taken[shard] = stop

    async def _append(self) -> None:
        await asyncio.gather(*map(self._append_to, range(self._shards)))

    async def _append_to(self, shard: int) -> None:
        context = self._clients[shard % len(self._clients)].jetstream(timeout=_TIMEOUT_S)
        last, name = self._last[shard], _name(shard)
        for frame in self._frames[shard]:
            headers = {"Nats-Expected-Stream": name, "Nats-Expected-Last-Sequence": str(last)}
            last = (await context.publish(name, frame, headers=headers)).seq
        self._last[shard] = last

    async def _purge(self) -> None:
        for shard in range(self._shards):
            await self._ask(f"STREAM.PURGE.{_name(shard)}")

    async def _ask(self, what: str, body: Any = None) -> dict[str, Any]:
        """A request to JetStream's API. While the servers elect a leader, requests are not answered."""
        data = b"" if body is None else json.dumps(body).encode()
        for _ in range(_TRIES):
            try:
                answer: dict[str, Any] = json.loads((await self._clients[0].request(f"$JS.API.{what}", data)).data)
            except nats.errors.Error:
                await asyncio.sleep(_TRY_S)
                continue
            if "error" not in answer:
                return answer
            if answer["error"].get("code") != 503:
                raise BenchError(f"{what}: {answer['error']}")
            await asyncio.sleep(_TRY_S)
        raise BenchError(f"{what}: no answer")


def _source(shard: int) -> str:
    return f"baton-{_CLUSTER}-shard-{shard:04}"


def _name(shard: int) -> str:
    return f"raw-shard-{shard:04}"

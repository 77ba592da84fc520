"""The NATS servers that keep the logs of a whole cluster; checked when they are connected."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError

from batonq.errors import LogCorrupt
from batonq.log.backend import Unreachable, Unsafe
from batonq.log.jetstream import checks
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.log.jetstream.client import LongClient
from batonq.log.jetstream.connections import Lines
from batonq.log.jetstream.leases import MARKER_S, Bucket, JetStreamLeases
from batonq.log.jetstream.login import connect, tls_context
from batonq.log.jetstream.requests import NO_STREAM, ask
from batonq.log.layout import CATALOG_SHARD

T = TypeVar("T")
TIMEOUT_S = 5.0
CONNECT_S = 10.0  # for the first connection, over all servers
TRIES = 20  # while the servers elect a leader, requests are not answered
TRY_WAIT_S = 0.5
AGAIN_S = 0.1
IN_USE = 10058
NO_PEERS = 10005


class TooFew(Unsafe):
    """There are not enough servers for that many replicas; some may have just started."""


class JetStreamStore:
    """See backend.LogStore. Created by `await JetStreamStore.open(…)`."""

    def __init__(self, address: NatsAddress, client: LongClient, timeout_s: float) -> None:
        self.cluster = 0
        self.where = address.shown
        self._address = address
        self._lines = Lines(address, client, timeout_s)
        self._client, self._context = self._lines.home
        self._timeout_s = timeout_s
        self._bucket = Bucket(f"baton_{address.name}", self._lines.home, timeout_s)
        self._known: list[str] = []  # names of the servers whose settings were checked
        self._away: list[Unreachable] = []  # why others were not

    @classmethod
    async def open(
        cls, address: NatsAddress, *, timeout_s: float = TIMEOUT_S, connect_s: float = CONNECT_S
    ) -> JetStreamStore:
        """Raises Unsafe if the servers could lose acknowledged data, saying what to change; Unavailable."""
        client = await connect(address, connect_s)
        store = cls(address, client, timeout_s)
        try:
            await store._check()
            await store._prepare()
            store._lines.open()
        except BaseException:
            await store.close()
            raise
        return store

    async def _check(self) -> None:
        shown = self._address.shown
        version = self._client.connected_server_version
        checks.check_version(f"{version.major}.{version.minor}.{version.patch}", shown)
        checks.check_payload(self._client.max_payload, shown)
        if self._address.unsafe:
            return
        if not self._address.monitors:
            raise Unsafe(
                "Only a NATS server's monitoring URL shows whether it syncs before it acknowledges. Set http: "
                "host:8222 in the configuration of every server and add each to the log's URL "
                "(monitor=http://host:8222), or add unsafe=yes if you know that sync_interval is always."
            )
        loop = asyncio.get_running_loop()
        secured = any(monitor.startswith("https:") for monitor in self._address.monitors)
        context = tls_context(self._address) if secured else None
        found = [
            loop.run_in_executor(None, checks.fetch_server, monitor, context) for monitor in self._address.monitors
        ]
        answers = await asyncio.gather(*found, return_exceptions=True)
        servers: list[checks.Server] = []
        for answer in answers:
            if isinstance(answer, Unreachable):
                self._away.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                servers.append(answer)
        if len(servers) <= len(self._away):
            raise self._away[0]
        checks.check_servers(servers)
        self._known = [server.name for server in servers]

    async def _prepare(self) -> None:
        """The bucket of leases, with the cluster id in it."""
        wanted = StreamConfig(
            name=self._bucket.stream,
            subjects=[f"{self._bucket.prefix}>"],
            max_msgs_per_subject=1,
            deny_delete=True,
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            subject_delete_marker_ttl=MARKER_S,
            **self._kept(),
        )
        await self._stream(wanted)
        text = await self._cluster_id()
        try:
            self.cluster = int(text, 16)
        except ValueError:
            raise LogCorrupt(f"the cluster id in {self._bucket.where} cannot be read: {text!r}") from None

    async def _cluster_id(self) -> str:
        """The existing cluster id, or a new one."""
        for _ in range(TRIES):
            value = await self._patiently(lambda: self._bucket.get("cluster"))
            if value.text:
                return str(value.text)
            write = partial(self._bucket.put, "cluster", f"{secrets.randbits(64) or 1:016x}", value.revision)
            if await self._patiently(write) is None:  # another node's id was written, and may not be readable yet
                await asyncio.sleep(AGAIN_S)
        raise Unreachable(f"{self._bucket.where}: the cluster id was written but cannot be read yet")

    def _kept(self, replicas: int = 0) -> dict[str, Any]:
        return {
            "retention": RetentionPolicy.LIMITS,
            "discard": DiscardPolicy.NEW,
            "storage": StorageType.FILE,
            "num_replicas": replicas or self._address.replicas,
            "max_msgs": -1,
            "max_age": 0,
            "allow_direct": False,
        }

    @property
    def remarks(self) -> list[str]:
        return [f"{away.message}. Its settings are checked when this node starts again." for away in self._away]

    @property
    def replicas(self) -> int:
        return self._address.replicas

    async def check_kind(self, replicas: int) -> None:
        """Create and remove such a stream: only the servers know whether enough of them have room."""
        part = f"kind-{replicas}-{secrets.token_hex(4)}"
        name, subject = f"baton-{self._address.name}-{part}", f"baton.{self._address.name}.{part}"
        await self._stream(StreamConfig(name=name, subjects=[subject], **self._kept(replicas)))
        await self._patiently(lambda: self._remove(name))

    async def _remove(self, stream: str) -> None:
        try:
            await self._ask(self._context.delete_stream(stream))
        except APIError as refused:
            if refused.err_code != NO_STREAM:  # it was removed, and the answer was lost
                raise Unreachable(f"{self._address.shown}: {refused.description}") from None

    async def backend(self, shard: int, replicas: int = 0) -> JetStreamBackend:
        """Raises Unsafe if a stream of that name exists that would not keep everything, or has another number of
        replicas.
        """
        part = "catalog" if shard == CATALOG_SHARD else f"shard-{shard:04}"
        stream = f"baton-{self._address.name}-{part}"
        subject = f"baton.{self._address.name}.{part}"
        wanted = StreamConfig(
            name=stream,
            subjects=[subject],
            max_bytes=self._address.max_bytes,
            deny_delete=True,
            **self._kept(replicas),
        )
        await self._stream(wanted)
        return JetStreamBackend(
            shard,
            stream=stream,
            subject=subject,
            lines=self._lines,
            timeout_s=self._timeout_s,
        )

    async def _stream(self, wanted: StreamConfig) -> None:
        info = await self._patiently(lambda: self._find_or_make(wanted))
        checks.check_stream(info.config, wanted)
        if self._known and info.cluster is not None:
            keepers = [info.cluster.leader, *(peer.name for peer in info.cluster.replicas or ())]
            checks.check_known([name for name in keepers if name], self._known, str(wanted.name), len(self._away))

    async def _find_or_make(self, wanted: StreamConfig) -> StreamInfo:
        try:
            try:
                return await self._ask(self._context.stream_info(str(wanted.name)))
            except APIError as missing:
                if missing.err_code != NO_STREAM:
                    raise
            try:
                return await self._ask(self._context.add_stream(wanted))
            except APIError as taken:
                if taken.err_code != IN_USE:
                    raise
            return await self._ask(self._context.stream_info(str(wanted.name)))
        except APIError as refused:
            # no leader yet, or another node has just created it
            if refused.code == 503 or refused.err_code == NO_STREAM:
                raise Unreachable(f"{self._address.shown}: {refused.description}") from None
            problem = TooFew if refused.err_code == NO_PEERS else Unsafe
            raise problem(
                f"Stream {wanted.name} cannot be created with {wanted.num_replicas} replicas: "
                f"{refused.description} ({refused.err_code}). The NATS cluster needs at least that many "
                "servers with free space."
            ) from None

    async def _patiently(self, question: Any) -> Any:
        for attempt in range(TRIES):
            try:
                return await question()
            except (Unreachable, TooFew):
                if attempt + 1 == TRIES:
                    raise
            await asyncio.sleep(TRY_WAIT_S)
        raise AssertionError

    def leases(self, node: str, address: str, ttl_s: float) -> JetStreamLeases:
        return JetStreamLeases(self._bucket, node=node, address=address, ttl_s=ttl_s)

    async def close(self) -> None:
        await self._lines.close()

    async def _ask(self, question: Awaitable[T]) -> T:
        return await ask(self._client, self._address.shown, question, self._timeout_s)

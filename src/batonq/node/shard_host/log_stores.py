"""Where a node keeps its logs: in its data directory, or in a store that several nodes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from batonq.errors import BatonError, InvalidInput, OwnershipHeld
from batonq.log import layout
from batonq.log.backend import Backend, LogStore
from batonq.log.disk import Disk
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.intake import MirrorSettings
from batonq.log.interface import Log, Ownership, OwnershipLeases
from batonq.log.opening import OnFrame, Start
from batonq.log.replicated_log import MirroredLog
from batonq.node import events

LEASE_RETRY_S = 0.2


class Logs(Protocol):
    @property
    def cluster(self) -> int: ...
    @property
    def ownership(self) -> Ownership: ...
    @property
    def replicas(self) -> int:
        """Default number of replicas per log."""

    @property
    def kinds(self) -> dict[int, int]:
        """Shard → replicas, set before a shard is opened."""

    async def check_kind(self, replicas: int) -> None:
        """Raises InvalidInput or Unsafe when this store cannot keep logs with this many replicas."""

    async def open(self, shard: int, settings: FileLogSettings, start: Start | None, on_frame: OnFrame) -> Log:
        """Open a log and fold its frames from `start` on. `on_frame` may be called on another thread."""

    async def close(self) -> None:
        """Release ownership. Every log is closed by now."""


class DirectoryLogs:
    """Logs in the data directory: the embedded log."""

    def __init__(
        self,
        data: str,
        *,
        cluster: int,
        ownership: Ownership,
        disk: Disk | None,
        loop: asyncio.AbstractEventLoop | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self.cluster = cluster
        self.ownership = ownership
        self.replicas = 1
        self.kinds: dict[int, int] = {}
        self._data = data
        self._disk = disk
        self._loop = loop  # None: everything on the calling thread, as the simulator needs it
        self._wall_ms = wall_ms

    async def check_kind(self, replicas: int) -> None:
        if replicas != 1:
            raise InvalidInput(
                f"Shards with {replicas} replicas need a log in NATS JetStream (--log-url nats://…). A log in the "
                "data directory has one replica."
            )

    async def open(self, shard: int, settings: FileLogSettings, start: Start | None, on_frame: OnFrame) -> Log:
        if self._loop is None:
            return self._open(shard, settings, start, on_frame)
        return await self._loop.run_in_executor(None, self._open, shard, settings, start, on_frame)

    def _open(self, shard: int, settings: FileLogSettings, start: Start | None, on_frame: OnFrame) -> FileLog:
        log = FileLog.open(
            layout.log_directory(self._data, shard),
            shard=shard,
            cluster=self.cluster,
            settings=settings,
            disk=self._disk,
            start=start,
            on_frame=on_frame,
            call_soon=self._loop.call_soon_threadsafe if self._loop is not None else None,
            now_ms=self._wall_ms,
        )
        if log.torn is not None:
            kept = f"; its bytes are kept in {log.torn.kept_in}" if log.torn.kept_in else ""
            events.warning(
                "torn_write",
                "A crash interrupted a write that had not been acknowledged; its incomplete frame was removed "
                f"({log.torn.what}){kept}",
                shard=log.shard,
                frame=log.torn.number,
                path=log.torn.path,
            )
        return log

    async def close(self) -> None:
        pass


class HeldLeases:
    """Ownership of shards whose lease is already held: gives them a new epoch.

    The leases are released when the node stops.
    """

    def __init__(self, leases: OwnershipLeases) -> None:
        self._leases = leases

    async def acquire(self, shard: int, above: int = 0) -> int:
        return await self._leases.acquire(shard, above)

    async def release(self, shard: int) -> None:
        pass


class StoreLogs:
    """Logs in a store, with mirrors in the data directory. A shard's lease is taken before its log is read."""

    def __init__(
        self, data: str, *, store: LogStore, leases: OwnershipLeases, patience_s: float, disk: Disk | None = None
    ) -> None:
        self.cluster = store.cluster
        self.replicas = store.replicas
        self.kinds: dict[int, int] = {}
        self.ownership = HeldLeases(leases)
        self.opened: dict[int, MirroredLog] = {}  # the latest log per shard
        self._data = data
        self._store = store
        self._disk = disk  # holds the mirrors; None: the real disk
        self._leases = leases
        self._patience_s = patience_s  # how long to wait for a lease that another node holds

    async def check_kind(self, replicas: int) -> None:
        if replicas != self.replicas:  # the store has checked its own number already
            await self._store.check_kind(replicas)

    async def open(self, shard: int, settings: FileLogSettings, start: Start | None, on_frame: OnFrame) -> Log:
        await self._lease(shard)
        before = self.opened.pop(shard, None)
        if before is not None:
            before.close()
            await before.wait_closed()
        log = await MirroredLog.open(
            await self._backend(shard),
            layout.log_directory(self._data, shard),
            cluster=self.cluster,
            settings=MirrorSettings(files=replace(settings, prewrite=False)),
            disk=self._disk,
            start=start,
            on_frame=on_frame,
        )
        self.opened[shard] = log
        for remark in log.remarks:
            events.warning("mirror_rebuilt", f"The mirror was rebuilt: {remark}", shard=shard)
        return log

    async def _backend(self, shard: int) -> Backend:
        return await self._store.backend(shard, self.kinds.get(shard) or self.replicas)

    async def _lease(self, shard: int) -> None:
        """Acquire the shard's lease. Waits for a lease that may expire soon because its node is gone."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        while shard not in self._leases.held():
            try:
                await self._leases.acquire(shard)
            except OwnershipHeld:
                if loop.time() > deadline_s:
                    raise
                await asyncio.sleep(LEASE_RETRY_S)

    async def close(self) -> None:
        for log in self.opened.values():
            log.close()
            await log.wait_closed()
        try:
            for shard in self._leases.held():
                await self._leases.release(shard)
        except BatonError as problem:  # the leases expire without it
            events.warning("release_failed", problem.message)
        await self._store.close()

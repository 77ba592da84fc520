"""Queues for tests: in memory, in this process, with a clock that the test controls. Everything else is the real code.

with memory() as baton:
    queue = baton.create_queue("jobs", visibility=30)
    queue.send("resize picture 7")
    queue.receive()
    baton.clock.advance(31)  # the lease has expired, without a sleep
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from batonq import sync
from batonq.client.aio.baton import Baton
from batonq.embedded import NodeThread, NodeTransport
from batonq.errors import InvalidInput, OwnershipHeld
from batonq.log.file_log import FileLogSettings
from batonq.node.node import Node, World
from batonq.node.settings import MIB, Settings

DATA = "/memory"
SEGMENT_BYTES = 1 * MIB
FREE_BYTES = 1 << 40


class MemoryBaton(sync.Baton):
    """A Baton whose queues are in memory until it is closed."""

    def __init__(self, **settings: Any) -> None:
        self._node_thread = NodeThread(lambda: _node(settings))
        super().__init__("memory:", transport=self._node_thread)
        self.clock = Clock(self._node_thread)


class Clock:
    """The clock of a MemoryBaton. It runs like any clock, and a test can move it forward."""

    def __init__(self, node_thread: NodeThread) -> None:
        self._node_thread = node_thread

    def advance(self, seconds: float) -> None:
        """Move the clock forward. When this returns, everything that is due by then (delays, leases, expiry, redrives)
        is done.
        """
        self._node_thread.run(_advance(self._node_thread.inner.node, seconds))

    def now(self) -> float:
        """The current time of the queues, in seconds since 1970."""
        return self._node_thread.inner.node.clock.now_ms() / 1000


class AsyncMemoryBaton(Baton):
    """The same on the caller's event loop; created by `memory_async`."""

    def __init__(self, transport: NodeTransport) -> None:
        super().__init__("memory:", transport=transport)
        self.clock = AsyncClock(transport.node)


class AsyncClock:
    """See Clock."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def advance(self, seconds: float) -> None:
        """Move the clock forward. When this returns, everything that is due by then is done."""
        await _advance(self._node, seconds)

    def now(self) -> float:
        """The current time of the queues, in seconds since 1970."""
        return self._node.clock.now_ms() / 1000


def memory(**settings: Any) -> MemoryBaton:
    """Queues in memory, for a test: `with batonq.testing.memory() as baton: ...`."""
    return MemoryBaton(**settings)


async def memory_async(**settings: Any) -> AsyncMemoryBaton:
    """The same for asyncio: `async with await batonq.testing.memory_async() as baton: ...`."""
    transport = NodeTransport(_node(settings))
    await transport.start()
    return AsyncMemoryBaton(transport)


async def _advance(node: Node, seconds: float) -> None:
    if seconds < 0:
        raise InvalidInput("The clock can only be moved forward.")
    await node.broker.advance_clock(int(seconds * 1000))


def _node(settings: dict[str, Any]) -> Node:
    disk = MemoryDisk()
    world = World(
        disk=disk,
        ownership=lambda _: MemoryDirectory(),
        threads=False,
        log_settings=FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0, background=False),
    )
    return Node(Settings(data=DATA, secure=False, **settings), world)


class MemoryDirectory:
    """Ownership of a directory that no other process sees (see node.DirectoryOwnership). Within the process, a second
    owner of a shard is refused until the first releases it.
    """

    cluster = 1

    def __init__(self) -> None:
        self._epoch = 0
        self._held: set[int] = set()

    async def acquire(self, shard: int, above: int = 0) -> int:
        if shard in self._held:
            raise OwnershipHeld(f"shard {shard} has an owner in this process")
        self._held.add(shard)
        self._epoch = max(self._epoch, above) + 1
        return self._epoch

    async def release(self, shard: int) -> None:
        self._held.discard(shard)

    def take(self) -> None:
        pass

    def set_address(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk:
    """Files in memory (see log.disk.Disk). Syncing does nothing, because nothing survives a power failure."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._open: dict[int, bytearray] = {}
        self._next = 1

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        if create and path in self._files:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        if create:
            self._files[path] = bytearray()
        handle = self._next
        self._next += 1
        self._open[handle] = self._file(path)
        return handle

    def close(self, handle: int) -> None:
        del self._open[handle]

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        return bytes(self._open[handle][offset : offset + length])

    def is_cold(self, handle: int, length: int, offset: int) -> bool:
        return False

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        data = b"".join(buffers)
        file = self._open[handle]
        if offset > len(file):
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(data)] = data

    def fdatasync(self, handle: int) -> None:
        pass

    def fsync_directory(self, path: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        self._files[target] = self._file(source)
        del self._files[source]

    def unlink(self, path: str) -> None:
        self._file(path)
        del self._files[path]

    def size(self, path: str) -> int:
        return len(self._file(path))

    def exists(self, path: str) -> bool:
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files) or path == "/"

    def listdir(self, path: str) -> list[str]:
        start = f"{path}/"
        return sorted({name[len(start) :].partition("/")[0] for name in self._files if name.startswith(start)})

    def make_directory(self, path: str) -> None:
        pass

    def free(self, path: str) -> int:
        return FREE_BYTES

    def _file(self, path: str) -> bytearray:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None

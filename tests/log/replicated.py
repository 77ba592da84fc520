"""What the tests of replicated logs share: a far side that is opened by several, and their mirrors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from batonq.errors import Unavailable
from batonq.log.backend import Backend
from batonq.log.fencing import Pauses
from batonq.log.file_log import FileLogSettings
from batonq.log.intake import MirrorSettings
from batonq.log.interface import Log
from batonq.log.mirror import UnsyncedDisk
from batonq.log.replicated_log import MirroredLog
from tests.log.conformance import SEGMENT_BYTES
from tests.support.doubles import double
from tests.support.driven import DrivenLog, Loop
from tests.support.logs import CLUSTER

T = TypeVar("T")
WAIT_S = 120.0
SMALL = MirrorSettings(
    files=FileLogSettings(
        segment_bytes=SEGMENT_BYTES, free_floor_bytes=0, open_files_max=2, background=False, prewrite=False
    ),
    pauses=Pauses(0.001, 0.05),
    open_s=WAIT_S,
)


async def patiently(opening: Callable[[], Awaitable[T]]) -> T:
    """A store gives up soon where a test is about answers that do not come; here the machine may only be slow."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await opening()
            except Unavailable:
                await asyncio.sleep(0.05)


@double("fail")
class FailingDisk(UnsyncedDisk):
    """A disk that takes nothing while `fail` is set."""

    fail = False

    def pwrite(self, handle: int, buffers: object, offset: int) -> None:
        if self.fail:
            raise OSError(errno.EIO, "input/output error")
        super().pwrite(handle, buffers, offset)  # type: ignore[arg-type]


class Far(Protocol):
    """One shard's log at its far side."""

    async def backend(self) -> Backend:
        """A way to it, of its own."""


class MirroredMaker:
    """See conformance.Maker."""

    durable = True

    def __init__(self, loop: Loop, far: Far, directory: Path) -> None:
        self.disk = FailingDisk()
        self._loop = loop
        self._far = far
        self._directory = directory
        self.opened: list[DrivenLog] = []

    def open(self) -> Log:
        log = DrivenLog(self._loop, self._loop.run(self._open()))
        self.opened.append(log)
        return log

    async def _open(self) -> MirroredLog:
        backend = await self._far.backend()
        return await MirroredLog.open(
            backend, str(self._directory / "mirror"), cluster=CLUSTER, settings=SMALL, disk=self.disk
        )

    def reopen(self, log: Log) -> Log:
        log.close()
        return self.open()

    def fail_next(self, log: Log) -> None:
        self.disk.fail = True

    def close(self) -> None:
        self.disk.fail = False
        for log in self.opened:
            log.close()

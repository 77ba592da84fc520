"""When a snapshot of a shard is written, and the process that writes it (snapshot_process.py)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from batonq.core.shard.machine import Shard
from batonq.log.disk import Disk
from batonq.log.interface import Log
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.settings import Settings
from batonq.node.shard_host.recovery import snapshot_store
from batonq.node.shard_host.snapshot_process import NOTHING_NEW

ERROR_TEXT_MAX = 500
TIMEOUT_S = 3_600
SNAPSHOT_SHARE = 20  # up to this many living messages per frame, a snapshot is faster to read and write than the frames

MakeSnapshot = Callable[[int], Awaitable[None]]  # makes a snapshot of a shard; reports its own errors


@dataclass(slots=True)
class _Newest:
    """The newest snapshot of one shard."""

    log: Log
    frame: int  # a failed snapshot is retried after as much more log
    since_s: float  # when it was written, or when the log was opened


class SnapshotSchedule:
    """Starts a snapshot when it is due, one at a time for all shards."""

    def __init__(
        self, settings: Settings, clock: Clock, make_snapshot: MakeSnapshot | None, disk: Disk | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._make_snapshot = make_snapshot
        self._disk = disk
        self._newest: dict[int, _Newest] = {}
        self._task: asyncio.Task[None] | None = None
        self._shard = -1  # the shard of that task

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reads(self, number: int) -> bool:
        """Whether a snapshot of this shard is in progress. It reads segments, which must not be deleted meanwhile."""
        return self._running() and self._shard == number

    def _running(self) -> bool:
        return self._task is not None and not self._task.done()

    def consider(self, number: int, shard: Shard, log: Log) -> None:
        """Start a snapshot if it is due.

        The time to read a log grows with its bytes, and with its frames when they are short.
        """
        newest = self._newest.get(number)
        if newest is None or newest.log is not log:
            numbers = snapshot_store(self._settings.data, number, self._disk).numbers()
            newest = _Newest(log, numbers[-1] if numbers else 0, self._clock.monotonic())
            self._newest[number] = newest
        if self._make_snapshot is None or self._running():
            return
        sealed = sum(segment.bytes for segment in log.segments() if segment.sealed and segment.stop - 1 > newest.frame)
        frames = log.next - 1 - newest.frame
        if sealed < self._settings.snapshot_bytes:
            if frames < self._settings.snapshot_frames:
                return
            if self._clock.monotonic() - newest.since_s < self._settings.snapshot_every_s:
                return
            if frames * SNAPSHOT_SHARE < sum(queue.messages for queue in shard.queues.values()):
                return
        log.note()
        self._shard = number
        work = self._make_one(self._make_snapshot, number, newest, log.next - 1)
        self._task = asyncio.get_running_loop().create_task(work)

    async def _make_one(self, make: MakeSnapshot, number: int, newest: _Newest, frame_number: int) -> None:
        await make(number)
        newest.frame = frame_number
        newest.since_s = self._clock.monotonic()


class SnapshotProcess:
    """Makes snapshots in a child process, one at a time."""

    def __init__(self, data_directory: str) -> None:
        self._data_directory = os.path.abspath(data_directory)

    async def make(self, shard: int) -> None:
        paths = [path for path in sys.path if path]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "batonq.node.shard_host.snapshot_process",
            self._data_directory,
            str(shard),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            said = f"it took longer than {TIMEOUT_S} s".encode()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode not in (0, NOTHING_NEW):
            text = said.decode(errors="replace").strip()[-ERROR_TEXT_MAX:]
            events.warning("snapshot_failed", f"The snapshot of shard {shard} failed: {text}", shard=shard)

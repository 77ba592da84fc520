"""A pool of worker processes that replaces processes that die."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from batonq.worker.shutdown import POOL_VARIABLE

DRAIN_S = 30.0
KILL_AFTER_S = 10.0  # in addition to the drain time, in which a worker ends by itself
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 10.0
HEALTHY_S = 10.0  # a process that lived this long did not fail at its start
_log = logging.getLogger("batonq.worker")


def worker_command(app: str, *options: str) -> list[str]:
    """The command line of one `baton worker` process."""
    return [sys.executable, "-m", "batonq", "worker", app, *options]


class Pool:
    """`async with Pool(command, 4) as pool: await pool.resize(8)`. At the end of the block all processes are stopped;
    they finish the messages that they hold.

    A process that exits without being stopped is replaced, whatever its exit code. If it repeatedly dies soon after its
    start, it is restarted with backoff.
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int = 1,
        *,
        drain_seconds: float = DRAIN_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if size < 0:
            raise ValueError(f"the size of a pool must be 0 or more, not {size}")
        self._command = list(command)
        self._size = size
        self._drain_s = drain_seconds
        self._environment = {**os.environ, **(environment or {}), POOL_VARIABLE: str(os.getpid())}
        self._keepers: list[_Keeper] = []
        self._leaving: dict[asyncio.Task[None], _Keeper] = {}

    @property
    def size(self) -> int:
        """The target number of processes, not counting those that are finishing their last messages."""
        return self._size

    @property
    def pids(self) -> list[int]:
        """The running processes, without those that are being stopped."""
        return [keeper.process.pid for keeper in self._keepers if keeper.process is not None]

    async def resize(self, workers: int) -> None:
        """Start or stop processes, the youngest first. Stopped processes finish the messages that they hold."""
        if workers < 0:
            raise ValueError(f"the size of a pool must be 0 or more, not {workers}")
        self._size = workers
        while len(self._keepers) > workers:
            keeper = self._keepers.pop()
            leaving = asyncio.create_task(keeper.stop(self._drain_s + KILL_AFTER_S))
            self._leaving[leaving] = keeper
            leaving.add_done_callback(self._leaving.pop)
        while len(self._keepers) < workers:
            self._keepers.append(_Keeper(self))

    async def close(self) -> None:
        """Stop all processes and wait until they have ended."""
        await self.resize(0)
        await asyncio.gather(*list(self._leaving))

    def release(self) -> None:
        """Send a second signal to the processes that are stopping: they release their leases and end at once."""
        for keeper in self._leaving.values():
            keeper.signal(signal.SIGTERM)

    async def start_process(self) -> asyncio.subprocess.Process:
        # In its own session: Ctrl-C goes to the pool, which signals its workers once.
        return await asyncio.create_subprocess_exec(*self._command, env=self._environment, start_new_session=True)

    async def __aenter__(self) -> Pool:
        await self.resize(self._size)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Keeper:
    """One place in the pool: a process, and after its death the next one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._stopping = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep())

    async def stop(self, kill_after: float) -> None:
        self._stopping.set()
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._task), kill_after)
        except TimeoutError:
            _log.warning("a worker process did not stop; killing it")
            self.signal(signal.SIGKILL)
            await self._task

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            try:
                self.process.send_signal(number)
            except ProcessLookupError:
                pass  # it has just ended

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = 0.0
        while not self._stopping.is_set():
            started = clock()
            try:
                how = f"exited with code {await self._one()}"
            except OSError as problem:  # the system is out of processes or memory at the moment
                how = f"could not be started: {problem}"
            if self._stopping.is_set():
                return
            pause = 0.0 if clock() - started >= HEALTHY_S else min(pause * 2 or PAUSE_FIRST_S, PAUSE_MAX_S)
            _log.warning("a worker process %s; starting another one", how)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pass

    async def _one(self) -> int:
        """Run one process until it exits. Returns the exit code."""
        self.process = await self._pool.start_process()
        try:
            if self._stopping.is_set():  # it was stopped before the process existed
                self.signal(signal.SIGTERM)
            return await self.process.wait()
        finally:
            self.process = None

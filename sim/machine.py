"""The machine that a node runs on: its disk and clock, its crashes and restarts, and its current faults.

A crash takes the disk as it is at that instant, decides at random which unsynced data survives, and ends the node's
life. The next start is a new node on the surviving data.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from batonq.core.commands import Arrival
from batonq.errors import BatonError, LogCorrupt, LogError, Unavailable
from batonq.log import layout
from batonq.log.disk import create_directory
from batonq.log.file_log import FileLogSettings
from batonq.log.ownership import EpochFile
from batonq.node.node import Node, World
from batonq.node.routing.channels import Transport
from batonq.node.settings import Settings
from batonq.node.shard_host.snapshot_process import make_snapshot
from sim.breaks import BrokenOff
from sim.disk import SimulatedDisk, Step, Survival
from sim.history import History
from sim.log import SlowLog, Witness
from sim.loop import Life, SimLoop

DATA = "/data"
START_S = 1_700_000_000.0
RESTARTS_MAX = 200  # failed starts in a row
STOP_S = 60.0

Value = TypeVar("Value")


class Gone(Exception):
    """The node's life ended before it answered."""


class SimOwnership:
    """A data directory in one process: epochs on the simulated disk, without a lock, since a crash would release it."""

    def __init__(self, disk: SimulatedDisk, cluster: int) -> None:
        self._disk = disk
        self._epochs = EpochFile(disk, f"{DATA}/{layout.EPOCH}")
        self.cluster = cluster

    def take(self) -> None:
        create_directory(self._disk, DATA)
        self._epochs.load()

    async def acquire(self, shard: int, above: int = 0) -> int:
        try:
            return self._epochs.raise_(above)
        except OSError as error:
            raise LogError(f"cannot write the epoch: {error.strerror}") from error

    async def release(self, shard: int) -> None:
        pass

    def set_address(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


class LossyTransport:
    """The transport between shards, which loses requests and answers (see channels.Transport)."""

    def __init__(self, inner: Transport, machine: Machine) -> None:
        self._inner = inner
        self._machine = machine

    async def deliver(self, destination: int, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        if self._machine.loses():
            raise Unavailable("The request was lost.")
        results = await self._inner.deliver(destination, arrivals)
        if self._machine.loses():
            raise Unavailable("The answer was lost.")
        return results


class Machine:
    """`node` is the node while it serves, else None. Faults are set from outside (see chaos.py)."""

    snapshot_errors: tuple[type[Exception], ...] = (BatonError, OSError)  # of the data directory, which are expected

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        history: History,
        settings: Settings,
        log_settings: FileLogSettings,
        sync_s: float,
        name: str = "node",
    ) -> None:
        self.name = name
        self.loop = loop
        self.history = history
        self.settings = settings
        self.witness = Witness()
        self.disk = SimulatedDisk()
        self.node: Node | None = None
        self.life = Life(f"{name} 0")
        self.life.alive = False
        self.lives = 0
        self.crashes = 0
        self.wall_offset_s = 0.0
        self.sync_s = sync_s  # how long a sync takes, on average
        self.slow = 1.0
        self.fail_rate = 0.0  # of syncs and writes
        self.loss_rate = 0.0  # of requests and answers between shards
        self.crash_in_steps = -1  # of the disk; negative: never
        self.crash_at_sync = False  # of a segment, when an append is written and not yet synced
        self.broken: str = ""  # why no node starts any more
        self._random = random
        self._log_settings = log_settings
        self._cluster = random.getrandbits(64) or 1
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._outside = contextvars.copy_context()
        self._ended = asyncio.Event()

    # --- what the node's world is like ----------------------------------------------------------

    def wall_s(self) -> float:
        return START_S + self.loop.time() + self.wall_offset_s

    def latency_s(self) -> float:
        return self._random.expovariate(1.0) * self.sync_s * self.slow

    def loses(self) -> bool:
        return bool(self.loss_rate) and self._random.random() < self.loss_rate

    def _on_step(self, step: Step) -> None:
        if self.crash_in_steps >= 0:
            self.crash_in_steps -= 1
            if self.crash_in_steps < 0:
                self.crash(f"before {step.kind} of {step.path}")
                return
        if self.crash_at_sync and step.kind == "sync" and "/segment-" in step.path:
            self.crash(f"before {step.kind} of {step.path}", Survival.SOME)
            return
        if self.fail_rate and step.kind in ("sync", "write") and self._random.random() < self.fail_rate:
            self.history.say(self.loop.time(), "disk", f"{step.kind} of {step.path} fails")
            raise OSError(errno.EIO, "input/output error", step.path)

    def _bare_world(self, life: Life) -> World:
        """The node's world, without ownership of its data directory."""
        disk = self.disk

        async def snapshot(shard: int) -> None:
            await asyncio.sleep(self.latency_s() * 10)
            try:
                frame = make_snapshot(self.settings.data, shard, disk)
            except self.snapshot_errors as problem:
                self.history.say(self.loop.time(), life.name, f"no snapshot of shard {shard}: {problem}")
                return
            self.history.say(self.loop.time(), life.name, f"snapshot of shard {shard} after frame {frame}")

        return World(
            monotonic=self.loop.time,
            wall=self.wall_s,
            random_bytes=Random(self._random.getrandbits(64)).randbytes,
            disk=disk,
            threads=False,
            log_settings=self._log_settings,
            make_snapshot=snapshot,
        )

    def _world(self, life: Life) -> World:
        disk = self.disk
        return replace(
            self._bare_world(life),
            ownership=lambda _: SimOwnership(disk, self._cluster),
            adapt_log=lambda log: SlowLog(log, self.loop, life, self.latency_s, self.witness),
            adapt_transport=lambda transport: LossyTransport(transport, self),
        )

    # --- life and death -------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a node. A start that fails because of the disk is retried after a while."""
        for _ in range(RESTARTS_MAX):
            if await self._start_once() or self.broken:
                return
            await asyncio.sleep(0.5 + self._random.random())
        self.broken = f"no node starts: {RESTARTS_MAX} attempts"

    async def supervise(self) -> None:
        """Restart the node after a while, whatever ended it."""
        while not self.broken:
            if self.life.alive:
                self._ended.clear()
                await self._ended.wait()
            await asyncio.sleep(self._random.choice((0.0, 0.1, 1.0, 5.0)) * self._random.random())
            await self.start()

    async def _start_once(self) -> bool:
        assert not self.life.alive
        self.lives += 1
        life = self.life = Life(f"{self.name} {self.lives}")
        self.disk.on_step = self._on_step
        node = self._make_node(life)
        self._say("starts")
        try:
            await self.run(node.start())
        except Gone:
            return False
        except Exception as problem:
            self._say(f"does not start: {type(problem).__name__}: {problem}")
            if isinstance(problem, LogCorrupt) or not isinstance(problem, BatonError | OSError):
                self.broken = f"{type(problem).__name__}: {problem}"
            self._end(life)
            return False
        if not life.alive:
            return False  # it crashed before it was reported as started
        self.node = node
        self._say(f"serves {len(node.shards)} shards")
        return True

    def _make_node(self, life: Life) -> Node:
        return Node(self.settings, self._world(life))

    async def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine as part of the node, and wait for it. Raises Gone when the node's life ends first.

        Cancelling this call cancels the coroutine, as the node's server does when a client disconnects.
        """
        if not self.life.alive:
            work.close()
            raise Gone
        task = self.loop.create_task(work, context=self.life.context)
        answer: asyncio.Future[Value] = self.loop.create_future()
        life = self.life

        def answered(task: asyncio.Task[Value]) -> None:
            self._waiting.pop(answer, None)
            problem = asyncio.CancelledError() if task.cancelled() else task.exception()
            if answer.done() or not life.alive:
                return
            if isinstance(problem, asyncio.CancelledError):
                answer.cancel()
            elif problem is not None:
                answer.set_exception(problem)
            else:
                answer.set_result(task.result())

        self._waiting[answer] = None
        task.add_done_callback(answered)
        try:
            return await answer
        except asyncio.CancelledError:
            if life.alive:
                life.context.run(task.cancel)
            raise

    def crash(self, why: str = "", survival: Survival | None = None) -> None:
        """Cut the power now. When called from within the node, the node ends after the running callback."""
        life = self.life
        if not life.alive:
            return
        survival = survival or self._random.choice(list(Survival))
        self.crashes += 1
        self.crash_in_steps = -1
        self.crash_at_sync = False
        self._say(f"crashes {why}; of what was not synced, {survival.value} survives")
        self.disk.on_step = None
        self.disk = self.disk.after_crash(survival, self._random)
        self._end(life)

    async def stop(self) -> None:
        """Stop cleanly, as on SIGTERM. If that takes too long or fails, cut the power."""
        node = self.node
        if node is None:
            return
        self._say("is asked to stop")
        self.node = None
        try:
            await asyncio.wait_for(self.run(self._stop_node(node)), STOP_S)
        except Gone:
            return
        except asyncio.CancelledError:
            self.crash("while it stops")
            raise
        except Exception as problem:
            self._say(f"does not stop: {problem!r}")
            self.crash("instead")
            return
        self._say("has stopped")
        self._end(self.life)

    async def _stop_node(self, node: Node) -> None:
        await node.stop()

    def _end(self, life: Life) -> None:
        self.node = None
        life.alive = False
        self._ended.set()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(Gone())
        self.loop.call_soon(self.loop.end_life, life, context=self._outside)

    def times_ms(self) -> tuple[int, int]:
        """The lowest and the highest time that a shard can have now."""
        assert self.node is not None
        now_ms = self.node.clock.now_ms()
        return now_ms, now_ms

    def _say(self, text: str) -> None:
        self.history.say(self.loop.time(), self.life.name, text)


class Faults(logging.Handler):
    """Receives the node's log output and discards it, but reports errors that appear only there."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        expected = isinstance(problem, BrokenOff | BatonError | OSError) and not isinstance(problem, LogCorrupt)
        if problem is not None and not expected:
            self._report(f"{record.getMessage()}: {''.join(traceback.format_exception(problem))}")


@contextlib.contextmanager
def quiet_logging(report: Callable[[str], None]) -> Iterator[None]:
    """Silence the log of simulated nodes, and report unexpected errors in it."""
    logger = logging.getLogger("batonq")
    handler = Faults(report)
    before = logger.level, logger.propagate, logger.handlers[:]
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers[:] = before
        logger.setLevel(level)

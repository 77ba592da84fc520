"""One log that a node follows, and owns at times.

    FOLLOWING ──take──▶ TAKING ──▶ SERVING ──▶ (stepped down, lease lost, fenced, log failed) ──▶ FOLLOWING

To take a log, a node reads to its end, acquires the lease, reads to the end once more, and commits the record of a new
owner there. That commit proves that nothing was missed. Uncommitted decisions of an owner must not survive its
ownership: unless it stepped down with everything committed, its state is dropped and folded again from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from batonq.core.catalog.machine import Catalog
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, Fenced, LogCorrupt, OwnershipHeld, Unavailable
from batonq.log.cancellation import end
from batonq.log.frames import Frame
from batonq.log.interface import OwnershipLeases
from batonq.log.replicated_log import MirroredLog
from batonq.node import events
from batonq.node.cluster.pause_detector import Awake
from batonq.node.context import NodeContext
from batonq.node.shard_host.keeper import KeeperState
from batonq.node.shard_host.recovery import LogReplay, take_ownership

Machine = Shard | Catalog
NOT_OWNER = "Another node is the owner. Retry."
LEADERLESS_TERMS = 4  # lease terms that an owner waits for a log that accepts appends from no node


class Follower:
    """Follows one log, and serves it while this node owns it.

    `serve` creates a host for the machine and commits its first frame. `stop` ends the host and returns whether all its
    decisions are committed.
    """

    def __init__(
        self,
        number: int,
        name: str,
        context: NodeContext,
        *,
        leases: OwnershipLeases,
        read: Callable[[], Awaitable[tuple[Machine, MirroredLog]]],
        serve: Callable[[Machine, MirroredLog, int], Awaitable[None]],
        stop: Callable[[], Awaitable[bool]],
        on_frame: Callable[[], None],
        on_state: Callable[[KeeperState, str], None],
        awake: Awake,
    ) -> None:
        self.number = number
        self.name = name
        self.state = KeeperState.OPENING
        self.why = "The log is being read. Retry."
        self._loop = context.loop
        self._clock = context.clock
        self._settings = context.settings
        self._alarms = context.alarms
        self._leases = leases
        self._read = read
        self._serve = serve
        self._stop = stop
        self._on_frame = on_frame
        self._on_state = on_state
        self._awake = awake
        self._machine: Machine | None = None
        self._log: MirroredLog | None = None
        self._folder: LogReplay
        self._restarting: asyncio.Task[None] | None = None
        self.leased_s = float("-inf")  # when the current lease was requested
        self.heard_s = float("-inf")  # when the last frame of another node arrived

    @property
    def machine(self) -> Machine | None:
        """The state folded so far; None while the log is read from the beginning."""
        return self._machine

    @property
    def log(self) -> MirroredLog | None:
        return self._log

    @property
    def trouble(self) -> str:
        """Why the log makes no progress; empty: it does, or is being read."""
        return "" if self._log is None else self._log.trouble

    @property
    def leased(self) -> bool:
        """Whether the lease is certain to be valid.

        A node that was asleep does not know whether its lease was lost meanwhile. The log refuses what such a node
        appends, but nothing checks what it only answers.
        """
        return self._loop.time() < self.leased_s + self._settings.lease_s

    @property
    def holds(self) -> bool:
        """Whether the node may continue as the owner.

        It may while its lease is valid. It also may when the lease could not be renewed, but the node was awake all the
        time, and its log accepted its appends or, for some terms, accepts appends from no node. A commit then proves
        that no other node owns the log yet, and requests that need no commit are not answered.
        """
        if self.leased or not self._awake.since(self.leased_s):
            return self.leased
        log = self._log
        if log is None or not log.trouble:
            return True
        return log.leaderless and self._loop.time() < self.leased_s + LEADERLESS_TERMS * self._settings.lease_s

    async def open(self) -> None:
        """Read the log and follow it. Raises the error that prevents it."""
        machine, log = await self._read()
        self._begin(machine, log)

    def open_in_time(self) -> None:
        """Like `open`, retried until it succeeds."""
        self._restarting = self._loop.create_task(self._read_again(0.0))

    def _begin(self, machine: Machine, log: MirroredLog) -> None:
        self._machine, self._log = machine, log
        self._folder = LogReplay(machine, from_snapshot=True)
        self._set(KeeperState.FOLLOWING, NOT_OWNER)
        log.follow(self._folded, self._problem)
        self._on_frame()

    def _set(self, state: KeeperState, why: str) -> None:
        self.state, self.why = state, why
        self._on_state(state, why)

    def _folded(self, frame: Frame) -> None:
        self.heard_s = self._loop.time()
        self._folder(frame)
        self._on_frame()

    def _problem(self, problem: BaseException) -> None:
        """Called when following ended."""
        if self.state is KeeperState.FOLLOWING:
            self._restart(problem)

    # --- taking ownership -----------------------------------------------------------------------

    async def take(self, released_ms: int = 0) -> None:
        """Become the owner. `released_ms`: when the previous owner stepped down.

        Raises OwnershipHeld, or whatever else prevents it. The log is then followed again.
        """
        if self.state is not KeeperState.FOLLOWING:
            raise Unavailable(self.why)
        machine, log = self._machine, self._log
        assert machine is not None and log is not None
        self._set(KeeperState.TAKING, "This node is taking over. Retry.")
        decided = False
        try:
            await log.catch_up(self._folder)
            asked_s = self._loop.time()
            epoch = await self._leases.acquire(self.number, log.tail_epoch)
            self.leased_s = asked_s
            await log.catch_up(self._folder)
            self._folder.finish(log)
            self._on_frame()
            if epoch <= log.tail_epoch:
                raise OwnershipHeld(f"{self.name} was taken by another node before this node had read its whole log")
            decided = True
            outage_ms = self._own(machine, log, epoch, released_ms)
            await self._serve(machine, log, outage_ms)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as problem:
            if not decided and isinstance(problem, OwnershipHeld | Unavailable):
                self._begin(machine, log)
                await self._release()
            else:
                self._restart(problem)
            raise
        self._set(KeeperState.SERVING, "")

    def _own(self, machine: Machine, log: MirroredLog, epoch: int, released_ms: int) -> int:
        """Returns how long the log had no owner: since its last frame, or since the previous owner stepped down."""
        grace_ms = int(self._settings.grace_max_s * 1000)
        if not released_ms:
            return take_ownership(machine, log, epoch, self._clock, grace_ms, self._settings.dev)
        since_ms = max(0, self._clock.now_ms() - released_ms)
        grace_ms = min(grace_ms, since_ms)
        return min(since_ms, take_ownership(machine, log, epoch, self._clock, grace_ms, self._settings.dev))

    # --- giving up ownership --------------------------------------------------------------------

    async def step_down(self) -> None:
        """Commit all decisions, stop serving, release the lease, and follow."""
        if self.state is not KeeperState.SERVING:
            raise Unavailable(self.why)
        machine, log = self._machine, self._log
        assert machine is not None and log is not None
        self._set(KeeperState.LEAVING, "Ownership is being handed over to another node. Retry.")
        clean = await self._stop()
        if clean:
            self._begin(machine, log)
        else:
            self._restart(Unavailable("not everything was committed before the handover"))
        await self._release()

    def lost(self, problem: BaseException) -> None:
        """The host has ended: its log failed, or another node owns the log now."""
        if self.state is KeeperState.SERVING:
            self._restart(problem)

    async def _release(self) -> None:
        """Release the lease, if there is one: while it is held, no other node can serve the log."""
        if self.number in self._leases.held():
            try:
                await self._leases.release(self.number)
            except BatonError as problem:  # the lease expires without it
                events.warning("release_failed", f"{self.name}: {problem.message}")

    def _restart(self, problem: BaseException) -> None:
        """Drop all state, and fold it again."""
        if self.state in (KeeperState.CLOSED, KeeperState.OPENING):
            return
        self._set(KeeperState.OPENING, f"{self.name} is being read again ({problem}). Retry.")
        level = events.info if isinstance(problem, Fenced) else events.warning
        level("following_anew", f"{self.name} is followed again from the stored log: {problem}")
        self._machine = None
        pause_s = 0.0 if isinstance(problem, Fenced) else self._settings.reopen_first_s
        self._restarting = self._loop.create_task(self._read_again(pause_s))

    async def _read_again(self, pause_s: float) -> None:
        await self._release()
        while self.state is KeeperState.OPENING:
            await asyncio.sleep(pause_s)
            pause_s = min(max(pause_s, self._settings.reopen_first_s) * 2, self._settings.reopen_max_s)
            try:
                await self.open()
                self._alarms.clear("following-stopped", self.number)
            except LogCorrupt as damage:
                self._set(KeeperState.BROKEN, f"{self.name} is stopped: {damage.message}")
                self._alarms.put("following-stopped", self.why, of=self.number)
            except Exception as again:  # whatever the error is, retrying is all that is left to do
                self._set(KeeperState.OPENING, f"{self.name} could not be read: {again}")
                self._alarms.put("following-stopped", self.why, of=self.number)

    async def close(self) -> None:
        """Stop following. The host, if any, was ended before; the log is closed with all others."""
        self._set(KeeperState.CLOSED, "The node is stopping. Retry.")
        await end(self._restarting)
        if self._log is not None:
            self._log.close()

"""Which shards this node owns: renews leases in time, takes free shards, and hands shards over one at a time.

All of this is for liveness only: the log provides safety. A node leaves a free shard alone for a while, longer the more
shards it has, so that shards spread over the nodes. A node that is named as the next owner takes the shard at once. A
shard is kept for some time before it is moved for balance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from random import Random
from typing import Any, NamedTuple, Protocol

from batonq.errors import BatonError, Fenced, InvalidInput, NotFound, OwnershipHeld, Unavailable
from batonq.log.backend import NameTaken
from batonq.log.cancellation import end
from batonq.log.interface import Lease, Member, OwnershipLeases
from batonq.log.layout import CATALOG_SHARD
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.clock import Clock
from batonq.node.cluster import balance
from batonq.node.cluster.admission import Credentials
from batonq.node.cluster.balance import Load
from batonq.node.cluster.follower import Follower
from batonq.node.cluster.members import Known, Members
from batonq.node.cluster.moves import Moves
from batonq.node.cluster.pause_detector import Awake
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import KeeperState

TERMS = 3  # renewals per lease term
LOOK_EVERY_S = 0.05
LONG_AGO_MS = 60_000  # a log that seems older than this may only look so, because the clock is unconfirmed and wrong
WATCH_AGAIN_S = 0.2
RENEW_AGAIN_S = 0.2
LOOK_AGAIN_S = 0.2
LOOK_MAX_S = 3.0  # with long leases, the catalog's owner is asked more often than leases are renewed


class Owned(Protocol):
    """A shard, or the catalog, as something that a node can own."""

    @property
    def follower(self) -> Follower: ...
    def load(self) -> Load: ...
    def abandon(self, problem: BaseException) -> None: ...


# Asks another node to take a shard now. The last argument is when the shard was released.
AskToTake = Callable[[Member, int, int], Awaitable[None]]


class Handed(NamedTuple):
    """A shard that another node has taken, and may not have published yet."""

    target: str
    weight: float
    until_s: float


class OwnershipLoop:
    def __init__(
        self,
        node: str,
        *,
        leases: OwnershipLeases,
        awake: Awake,
        owned: Mapping[int, Owned],
        settings: Settings,
        alarms: AlarmBook,
        random: Random,
        clock: Clock,
        wall_ms: Callable[[], int],
        ask_to_take: AskToTake,
        on_term: Callable[[], Awaitable[bool]],
        credentials: Credentials,
        on_name_taken: Callable[[NameTaken], None],
    ) -> None:
        self.node = node
        self.owners: dict[int, Lease] = {}
        self.draining = False
        self.leaves = False  # an operator drained this node: nobody misses it when it stops
        self.complete = False  # whether this node can take all existing shards
        self._leases = leases
        self._awake = awake
        self._owned = owned
        self._settings = settings
        self._alarms = alarms
        self._random = random
        self._clock = clock
        self._ask_to_take = ask_to_take
        self._on_term = on_term
        self._on_name_taken = on_name_taken
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._disturbed_s = float("-inf")  # when the leases were last unreachable
        self._free_since: dict[int, float] = {}
        self._held_since: dict[int, float] = {}
        self._busy: set[int] = set()  # shards being taken or handed over
        self._handed: dict[int, Handed] = {}
        self._noted_s: dict[int, float] = {}  # per shard: when its owner was last reported
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._works: dict[asyncio.Task[Any], None] = {}
        self.others = Members(
            node,
            leases=leases,
            alarms=alarms,
            wall_ms=wall_ms,
            steady_ms=lambda: int(clock.monotonic() * 1000),
            term_s=settings.lease_s / TERMS,
            address=settings.advertise,
            credentials=credentials,
            format_in_use=self.format_in_use,
        )
        clock.follow(self.others.time_s)
        self.moves = Moves(clock.now_ms, lambda: self.members)

    @property
    def members(self) -> dict[str, Known]:
        return self.others.known

    def start(self) -> None:
        self._tasks = [
            self._loop.create_task(work()) for work in (self._watch, self._renew, self._meet, self._look, self._take)
        ]

    async def stop(self) -> None:
        """Stop taking shards. This releases none: see `hand_over`."""
        await end(*self._tasks, *self._works)

    async def next_change(self, timeout_s: float) -> None:
        """Return when an owner changes, or after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def owner(self, shard: int) -> Lease | None:
        return self.owners.get(shard)

    def format_in_use(self) -> int:
        """The newest version of the log format in the logs, as far as this node has read them."""
        machines = [each.follower.machine for each in self._owned.values()]
        return max((machine.format for machine in machines if machine is not None), default=0)

    def serving(self) -> list[int]:
        return [number for number, each in self._owned.items() if each.follower.state is KeeperState.SERVING]

    # --- who owns what ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                await self.refresh()
                async with aclosing(self._leases.watch()) as changes:
                    async for lease in changes:
                        self._note(lease)
            except BatonError as problem:
                events.info("owners_unknown", f"The shard owners cannot be read: {problem.message}")
            await asyncio.sleep(WATCH_AGAIN_S)

    def _note(self, lease: Lease) -> None:
        if lease.node:
            self._owned_by(lease)
        else:
            self._noted_free(lease.shard)
        self._noted_s[lease.shard] = self._loop.time()
        self._tell()

    def _owned_by(self, lease: Lease) -> None:
        self.owners[lease.shard] = lease
        if lease.shard != CATALOG_SHARD:
            self.moves.note(lease.shard, lease.node, lease.epoch)
        self._yield_to(lease)

    def _noted_free(self, shard: int) -> None:
        """Handle a lease that expired or was released.

        If this node still serves the shard and could not renew the lease, it renews the lease before others take it.
        Other nodes leave time for that, see `_take`.
        """
        self.owners.pop(shard, None)
        if shard in self.serving() and shard not in self._busy:
            self._spawn(self._renew_one(shard))

    def _yield_to(self, lease: Lease) -> None:
        """Stop serving a shard that another node owns under a higher epoch: this node was asleep, or cut off."""
        each = self._owned.get(lease.shard)
        machine = each.follower.machine if each is not None else None
        if lease.node != self.node and machine is not None and lease.epoch > machine.epoch:
            self._lose(lease.shard, Fenced(f"node {lease.node} owns it now, with epoch {lease.epoch}"))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def refresh(self) -> None:
        """Read who owns what, because a node said that an owner has changed. Changes reported meanwhile are newer."""
        began_s = self._loop.time()
        holders = await self._leases.holders()
        for shard in self.owners.keys() | holders.keys():
            if self._noted_s.get(shard, 0.0) >= began_s:
                continue
            if shard in holders:
                self._owned_by(holders[shard])
            else:
                self._noted_free(shard)
        self._tell()

    # --- keeping leases --------------------------------------------------------------------------

    async def _renew(self) -> None:
        pause_s = self._settings.lease_s / TERMS
        while True:
            self._give_up_what_is_lost()
            renewed = await asyncio.gather(*map(self._renew_one, filter(self._uses, self._leases.held())))
            await asyncio.sleep(pause_s if all(renewed) else RENEW_AGAIN_S)

    def _give_up_what_is_lost(self) -> None:
        """Stop serving shards without a lease.

        If this node was asleep while it took a shard, the lease may have expired before the shard was served.
        """
        held = self._leases.held()
        for shard in self.serving():
            if shard not in held:
                self._lose(shard, Fenced("its lease expired while it was being taken over"))

    def _uses(self, shard: int) -> bool:
        """Whether a held lease is in use. A lease that is not could not be released, and expires."""
        each = self._owned.get(shard)
        used = (KeeperState.TAKING, KeeperState.SERVING, KeeperState.LEAVING)
        return each is not None and each.follower.state in used

    async def _meet(self) -> None:
        """Publish this node's note and read the others'. Lease renewals run separately, and do not wait for this."""
        pause_s = self._settings.lease_s / TERMS
        while True:
            try:
                await self.announce()
                await self.others.hear()
                self._alarms.clear("lease-store")
                self._consider_moving()
            except NameTaken as problem:
                self._on_name_taken(problem)
            except BatonError as problem:
                self._disturbed_s = self._loop.time()
                self._alarms.put("lease-store", f"The leases of the cluster cannot be read: {problem.message}")
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        while True:
            is_well = await self._on_term()
            await asyncio.sleep(min(self._settings.lease_s / TERMS, LOOK_MAX_S) if is_well else LOOK_AGAIN_S)

    async def _renew_one(self, shard: int) -> bool:
        """Renew a lease, and return whether that succeeded.

        The request is repeated when there is no answer soon: it may have reached no server.
        """
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(self._settings.lease_s / TERMS):
                await self._leases.renew(shard)
            self._owned[shard].follower.leased_s = began_s
            return True
        except Fenced as problem:
            self._lose(shard, problem)
        except (BatonError, TimeoutError) as problem:
            if not self._owned[shard].follower.holds:
                self._lose(shard, Unavailable(f"the lease could not be renewed in time: {problem}"))
        return False

    def _lose(self, shard: int, problem: BatonError) -> None:
        each = self._owned.get(shard)
        if each is not None and each.follower.state is KeeperState.SERVING:
            events.warning("lease_lost", f"{each.follower.name}: {problem.message}", shard=shard)
            each.abandon(problem)

    def _my_weights(self) -> dict[int, float]:
        return {shard: self._owned[shard].load().weight for shard in self.serving()}

    # --- taking shards ---------------------------------------------------------------------------

    async def _take(self) -> None:
        while True:
            self._awake.beat()
            now_s = self._loop.time()
            for shard, each in list(self._owned.items()):
                lease = self.owners.get(shard)
                taken = lease is not None and lease.node != self.node  # a lease of this node is from before a restart
                if taken or each.follower.state is not KeeperState.FOLLOWING or shard in self._busy:
                    self._free_since.pop(shard, None)
                    continue
                since_s = self._free_since.setdefault(shard, now_s + self._let_be_s(each))
                owned = len(self.serving()) + len(self._busy)
                may = not self.draining and self.node in self.members and not self.others.clock_is_off()
                may = may and not self._waits_for_others(each)
                if may and now_s - since_s >= balance.backoff_s(owned, 0.0):
                    self._spawn(self._take_one(shard, each, 0))
                    break  # the shard counts as owned when the next one is considered
            await asyncio.sleep(LOOK_EVERY_S)

    def _let_be_s(self, each: Owned) -> float:
        """How long a free shard is left to other nodes.

        The time is longer if the shard's owner was heard of recently, and only could not renew its lease.
        """
        alive = self._loop.time() - each.follower.heard_s < self._settings.lease_s / 2
        return 0.2 * self._random.random() + (self._settings.lease_s / 2 if alive else 0.0)

    def _waits_for_others(self, each: Owned) -> bool:
        """Whether to wait for other nodes after a start.

        When the log seems old, either all nodes were down for long, or this node's clock is wrong. Within a lease term
        other nodes appear and show which.
        """
        machine = each.follower.machine
        if machine is None or len(self.members) > 2 or self._loop.time() - self._started_s > self._settings.lease_s:
            return False
        return bool(machine.last_time_ms) and self._clock.now_ms() - machine.last_time_ms > LONG_AGO_MS

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._works[task] = None
        task.add_done_callback(self._works.pop)

    async def _take_one(self, shard: int, each: Owned, released_ms: int) -> None:
        if shard in self._busy:
            return
        with self._at_work(shard):
            if self._busy == {shard} and not self.serving():
                self._clock.set()  # no shard has its time from the clock yet, so the clock may jump instead of slewing
            try:
                await each.follower.take(released_ms)
            except OwnershipHeld:
                return
            except Exception as problem:
                events.warning("take_failed", f"{each.follower.name} could not be taken: {problem}", shard=shard)
                return
            self._held_since[shard] = self._loop.time()

    @contextmanager
    def _at_work(self, shard: int) -> Iterator[None]:
        self._busy.add(shard)
        self._free_since.pop(shard, None)
        try:
            yield
        finally:
            self._busy.discard(shard)

    async def take_now(self, shard: int, released_ms: int) -> None:
        """Take a shard whose owner stepped down in favour of this node. Raises the error that prevents it."""
        each = self._find(shard)
        if self.draining:
            raise Unavailable(f"Node {self.node} is being drained.")
        if self.others.clock_is_off():
            raise Unavailable(
                f"The clock of node {self.node} differs from the other nodes' clocks, so it takes no shards."
            )
        while shard in self._busy:  # this node may be about to take the shard anyway
            await self.next_change(LOOK_EVERY_S)
        if each.follower.state is not KeeperState.SERVING:
            await self._take_one(shard, each, released_ms)
        if each.follower.state is not KeeperState.SERVING:
            raise Unavailable(f"{each.follower.name} could not be taken: {each.follower.why}")

    # --- handing shards over ---------------------------------------------------------------------

    async def move(self, shard: int, target: str, reason: str = "an operator moved it") -> None:
        """Hand a shard over to another node: step down, and have that node take it at once."""
        each = self._find(shard)
        if target not in self.members:
            await self.others.look()
        known = self.members.get(target)
        if known is None:
            raise InvalidInput(f"Node {target!r} does not exist. Nodes: {', '.join(sorted(self.members)) or 'none'}.")
        if target == self.node or each.follower.state is not KeeperState.SERVING:
            raise InvalidInput(f"Node {self.node} cannot hand {each.follower.name} over to {target}.")
        with self._at_work(shard):
            began_s = self._loop.time()
            weight = each.load().weight
            self.moves.hands_over(shard, reason)
            await each.follower.step_down()
            self._note(Lease(shard, "", "", 0))
            released_ms = self._clock.now_ms()
            try:
                await self._ask_to_take(known.member, shard, released_ms)
            except BatonError:
                self.moves.hands_over(shard, f"node {target} could not take it over")
                await self._take_back(shard, each, released_ms)
                raise
            self._handed[shard] = Handed(target, weight, self._loop.time() + self._settings.lease_s)
            events.info(
                "handed_over",
                f"{each.follower.name} was handed over to node {target}",
                shard=shard,
                target=target,
                ms=round((self._loop.time() - began_s) * 1000),
            )

    async def _take_back(self, shard: int, each: Owned, released_ms: int) -> None:
        """Take a shard back when the other node is gone or cannot take it, so that clients do not wait for an owner."""
        if self.draining:
            return
        try:
            await each.follower.take(released_ms)
        except BatonError as problem:  # the other node has it after all; or it is free, and any node takes it
            events.info("not_taken_back", f"{each.follower.name}: {problem.message}", shard=shard)
            return
        self._held_since[shard] = self._loop.time()

    def _find(self, shard: int) -> Owned:
        each = self._owned.get(shard)
        if each is None:
            raise NotFound(f"Shard {shard} does not exist.")
        return each

    def _weights(self) -> dict[str, dict[int, float]]:
        """The shards of every node, as last published, and the shards that this node has handed over since."""
        weights = {name: dict(known.weights) for name, known in self.members.items()}
        weights[self.node] = self._my_weights()
        now_s = self._loop.time()
        for shard, handed in list(self._handed.items()):
            if now_s > handed.until_s or any(shard in shards for shards in weights.values()):
                del self._handed[shard]
            elif handed.target in weights:
                weights[handed.target][shard] = handed.weight
        return weights

    def _full(self) -> list[str]:
        """Nodes that take no more shards from this one."""
        return [name for name, known in self.members.items() if known.draining or name == self.node]

    async def announce(self) -> None:
        """Publish this node's note. Raises NameTaken if another process has this node's name; Unavailable."""
        away = self.draining or not self.complete or self.others.clock_is_off()
        await self.others.announce(self._my_weights(), away, self._in_trouble())

    def _in_trouble(self) -> bool:
        """Whether one of the logs makes no progress. Then no shard is moved to or from this node for balance."""
        return any(each.follower.trouble for each in self._owned.values())

    async def set_complete(self) -> None:
        """Record that this node can take all existing shards, and tell the other nodes at once."""
        self.complete = True
        with suppress(BatonError):  # the note is published again soon
            await self.announce()

    async def hand_over(self) -> None:
        """Hand all shards over to other nodes, if there are any: before a stop, or for a drain."""
        self.draining = True
        await self.others.look()
        for shard in self.serving():
            target = balance.lightest(self._weights(), self._full())
            if target is None:
                return
            try:
                await self.move(shard, target, f"{self.node} is being stopped or drained")
            except BatonError as problem:  # the shard is free now, or stays: other nodes take it when its lease expires
                events.warning("hand_over_failed", f"Node {target} did not take shard {shard}: {problem.message}")

    def _consider_moving(self) -> None:
        """Move one shard for balance, if this node has too much load."""
        if self._busy or self.draining or len(self.members) < 2 or self._in_trouble():
            return
        if self._loop.time() - self._disturbed_s < self._settings.lease_s:
            return  # the published notes may be out of date
        full = [name for name, known in self.members.items() if known.draining or known.in_trouble]
        move = balance.next_move(self._weights(), full)
        if move is None or move.source != self.node:
            return
        held_s = self._loop.time() - self._held_since.get(move.shard, 0.0)
        if held_s >= self._settings.hold_s:
            self._spawn(self._move_for_balance(move.shard, move.target))

    async def _move_for_balance(self, shard: int, target: str) -> None:
        try:
            await self.move(shard, target, "to balance the load")
        except BatonError as problem:
            events.warning("hand_over_failed", f"Node {target} did not take shard {shard}: {problem.message}")

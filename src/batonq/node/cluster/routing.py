"""Routes calls to a shard that another node serves: to the known owner, and again when the shard has moved.

Calls are repeated only here (peers.py writes each call once). A call carries an id that stays the same when the call is
repeated. An owner answers a call that it has already executed from its memory (node_server.py). So a call whose answer
was lost is repeated to the same owner only. When the owner has changed meanwhile, or says that it is not the owner,
nobody can tell whether the call was executed, and the client is told so. The id goes together with the epoch of the
owner that is meant. A node that died and came back has no memory, but it has another epoch, and does not execute what
was meant for the owner before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from batonq.errors import BatonError, NotOwner, Unavailable
from batonq.log.interface import Lease
from batonq.log.layout import CATALOG_SHARD
from batonq.node import events
from batonq.node.cluster.node_server import CANCELLED, call_name
from batonq.node.cluster.peers import PREFIX, Asking, ClosedUnanswered, NoAnswer, NotSent
from batonq.node.routing import wire
from batonq.node.routing.forwarding import RemoteShard
from batonq.node.routing.ports import ShardPort
from batonq.node.tasks import Tasks

OWNER_WAIT_S = 4.0  # how long a request waits until the shard has an owner that answers
CALL_S = 10.0  # how long an owner may take, beside the time that the call itself waits
AGAIN_S = 0.05
AGAIN_MAX_S = 0.4  # the pause grows up to this, and ends at once when an owner changes
WATCH_S = 0.25  # how often to check whether an owner that is being asked is still the owner
MOVED_S = 0.5  # a former owner may still answer for this long
GIVE_UP_S = 2.0
UNKNOWN = "The shard's owner did not answer. It may or may not have executed the request. Retry."
UNREACHED = "cannot be reached right now, so the request was not executed. Retry."
LOOK_S = 0.3  # a request that waits for an owner reads the leases this often, beside being notified
Here = Callable[[], Awaitable[bytes | None] | None]  # the answer of this node itself, if it serves the shard by now


class Owners(Protocol):
    """Who owns what, as far as this node knows: by leases, or because a supervisor says so."""

    @property
    def node(self) -> str: ...

    def owner(self, shard: int) -> Lease | None: ...

    async def refresh(self) -> None:
        """Read the owners again, because a node said that an owner has changed. Raises BatonError."""

    async def next_change(self, timeout_s: float) -> None:
        """Return when an owner changes, or after the timeout."""


@dataclass(slots=True, eq=False)
class Asked:
    """A call that an owner has not answered yet, and its time limit once that node is no longer the owner."""

    shard: int
    lease: Lease
    moved: asyncio.Timeout


class Routing:
    """Finds the owner of a shard or of the catalog, and calls it.

    `local` gives the port of a shard that this node serves by now. `catalog` gives the answer of a catalog that this
    node hosts by now. Otherwise both give None.
    """

    def __init__(
        self,
        *,
        owners: Owners,
        peers: Asking,
        local: Callable[[int], ShardPort | None],
        catalog: Callable[[str, bytes], Awaitable[bytes | None]],
        new_call: Callable[[], str],
    ) -> None:
        self._owners = owners
        self._peers = peers
        self._local = local
        self._catalog = catalog
        self._new_call = new_call
        self._ports: dict[tuple[int, bool], RemoteShard] = {}
        self._loop = asyncio.get_running_loop()
        self._works = Tasks()
        self._asked: dict[Asked, None] = {}  # in the order in which they were asked
        self._watching: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def port(self, shard: int) -> ShardPort:
        return self._port(shard, at_once=False)

    def port_at_once(self, shard: int) -> ShardPort:
        return self._port(shard, at_once=True)

    def _port(self, shard: int, at_once: bool) -> ShardPort:
        """`at_once`: do not wait for an owner.

        A call that no owner can have executed then raises NotOwner, and may be made to another shard.
        """
        port = self._ports.get((shard, at_once))
        if port is None:

            def call(operation: str, data: bytes, wait_ms: int) -> Awaitable[bytes]:
                def here() -> Awaitable[bytes] | None:
                    local = self._local(shard)
                    return None if local is None else wire.answer(local, operation, data)

                return self._call(shard, f"{PREFIX}shards/{shard}/{operation}", data, wait_ms, here, at_once)

            port = self._ports[shard, at_once] = RemoteShard(call)
        return cast(ShardPort, port)

    async def ask_catalog(self, name: str, data: bytes, wait_ms: int) -> bytes:
        def here() -> Awaitable[bytes | None]:
            return self._catalog(name, data)

        return await self._call(CATALOG_SHARD, f"{PREFIX}catalog/{name}", data, wait_ms, here)

    async def _call(self, shard: int, path: str, data: bytes, wait_ms: int, here: Here, at_once: bool = False) -> bytes:
        """Call the owner of a shard.

        Raises Unavailable when no node serves the shard for too long, or when it is unknown whether the call was
        executed.
        """
        call = self._new_call()
        deadline_s = self._loop.time() + OWNER_WAIT_S
        look_s = self._loop.time() + LOOK_S
        asked: Lease | None = None  # the owner that did not answer, and may have executed the call
        tried: Lease | None = None
        pause_s = AGAIN_S
        why = "No node owns the shard right now. Retry."
        while True:
            lease = self._owners.owner(shard)
            if asked is not None and (lease is None or lease != asked):
                raise Unavailable(UNKNOWN)
            again = False
            if asked is None and (answering := here()) is not None:
                answer = await answering
                if answer is not None:
                    return answer
            if lease is not None and lease.node != self._owners.node:
                try:
                    name = call_name(call, lease.epoch)
                    return await self._ask(shard, lease, path, name, data, CALL_S + wait_ms / 1000)
                except NotOwner as problem:
                    why = problem.message if asked is None else UNKNOWN
                    await self._look_again()
                except NotSent as problem:
                    # Its address is for operators only, who find it in the log and in `baton cluster status`.
                    events.debug("owner_unreachable", problem.message, node=lease.node)
                    why = f"Node {lease.node} {UNREACHED}" if asked is None else UNKNOWN
                except NoAnswer as problem:
                    why = UNKNOWN
                    again = asked is None and isinstance(problem, ClosedUnanswered)
                    asked = lease
            if at_once and asked is None:
                raise NotOwner(why)
            now_s = self._loop.time()
            if now_s >= deadline_s:
                raise Unavailable(why)
            if again:
                continue
            if now_s >= look_s:
                look_s = now_s + LOOK_S
                await self._look_again()
            # Many requests may wait for one owner, at a node that also has other requests to answer.
            pause_s = min(pause_s * 2, AGAIN_MAX_S) if lease == tried else AGAIN_S
            tried = lease
            await self._owners.next_change(pause_s)

    async def _ask(self, shard: int, lease: Lease, path: str, call: str, data: bytes, timeout_s: float) -> bytes:
        """Ask an owner for as long as it is the owner: a former owner may never answer."""
        try:
            async with asyncio.timeout(None) as moved:
                asked = Asked(shard, lease, moved)
                self._asked[asked] = None
                if self._watching is None:
                    self._watching = self._loop.call_later(WATCH_S, self._watch)
                try:
                    return await self._peers.ask(lease.address, path, call, data, timeout_s)
                finally:
                    del self._asked[asked]
        except TimeoutError:
            raise NoAnswer(f"Node {lease.node} no longer owns the shard and has not answered.") from None
        except asyncio.CancelledError:
            if path.endswith(CANCELLED):
                self._works.spawn(self._give_up(lease, call))
            raise

    def _watch(self) -> None:
        """Check all owners that are being asked with one timer: most have answered long before it fires."""
        self._watching = self._loop.call_later(WATCH_S, self._watch) if self._asked else None
        for asked in self._asked:
            if asked.moved.when() is None and self._owners.owner(asked.shard) != asked.lease:
                asked.moved.reschedule(self._loop.time() + MOVED_S)

    async def _give_up(self, lease: Lease, call: str) -> None:
        """Tell the owner that no client waits for a receive any more. The answer may already be on its way."""
        with suppress(BatonError):  # if that fails, the leases expire
            await self._peers.ask(lease.address, f"{PREFIX}node/give_up", "", msgspec.msgpack.encode(call), GIVE_UP_S)

    async def _look_again(self) -> None:
        """Read the owners once, for all requests that wait."""
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            await self._owners.refresh()
        except BatonError:
            return  # the watch reports changes

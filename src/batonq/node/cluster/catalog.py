"""The catalog of a cluster: one node decides on changes, all others follow, and each answers from its own replica.

A command that another node has to run is forwarded by its name. The answer has the catalog's version, and the asking
node waits until its own replica has reached that version. Before a queue is reported as missing, the owner is asked for
its version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from batonq.core.catalog.machine import Catalog, Rules
from batonq.core.records import PACING_VERSION, RETAINING_VERSION, ROLES_VERSION, SPREAD_VERSION
from batonq.errors import BatonError, InvalidInput, Unavailable
from batonq.log.interface import Log, OwnershipLeases
from batonq.log.layout import CATALOG_SHARD
from batonq.log.replicated_log import MirroredLog
from batonq.node import events
from batonq.node.catalog.catalog_host import CatalogHost, Changed, take_changes
from batonq.node.cluster.balance import Load
from batonq.node.cluster.follower import Follower, Machine
from batonq.node.cluster.pause_detector import Awake
from batonq.node.context import NodeContext
from batonq.node.shard_host.keeper import KeeperState
from batonq.node.shard_host.recovery import Recovery
from batonq.queue_attributes import RESTRICTIONS, RETAIN

T = TypeVar("T")
REACH_S = 10.0  # how long a replica may take to reach a version
REFRESH_S = 2.0  # how long to wait for the owner before a queue is reported as missing
CUT_OFF_S = 10.0  # after this long without an answer from the owner, signed requests are refused

# Commands that one node may ask another to run, and how their result is encoded there and decoded here.
_Told = tuple[Callable[[Any], Any], Callable[[Catalog, Any], Any]]
_NOTHING: _Told = (lambda result: None, lambda catalog, told: None)
_QUEUE: _Told = (lambda entry: entry.number, lambda catalog, told: catalog.queue_by_number(told))
_TOPIC: _Told = (lambda entry: entry.number, lambda catalog, told: catalog.topic_by_number(told))
_SUBSCRIPTION: _Told = (lambda entry: entry.number, lambda catalog, told: catalog.tables.subscriptions.get(told))
_KEY: _Told = (lambda key: key.id, lambda catalog, told: catalog.access_keys.get(told))
COMMANDS: dict[str, _Told] = {
    "create_queue": _QUEUE,
    "set_attributes": _QUEUE,
    "settle_spread": _QUEUE,
    "set_tags": _NOTHING,
    "set_permission": _NOTHING,
    "delete_queue": _NOTHING,
    "purge_queue": _NOTHING,
    "open_shards": _NOTHING,
    "put_key": _KEY,
    "disable_key": _KEY,
    "create_topic": _TOPIC,
    "delete_topic": _NOTHING,
    "set_topic_attributes": _TOPIC,
    "tag_topic": _NOTHING,
    "subscribe": _SUBSCRIPTION,
    "unsubscribe": _NOTHING,
    "set_subscription_attributes": _SUBSCRIPTION,
}

SPREADING = {"create_queue": 2, "set_attributes": 1}  # commands that may spread a queue → which argument says so
NEW = {"Baton.Spread", "Baton.Durability"}  # attributes that the previous log format does not have


class Answer(NamedTuple):
    version: int
    shards: list[int]
    told: Any


# Asks the catalog's owner: name of the question, arguments, maximum time in milliseconds.
AskOwner = Callable[[str, bytes, int], Awaitable[bytes]]
TooOld = Callable[[int], Awaitable[str]]  # which nodes cannot read a version of the log format, see members.py
_answer = msgspec.msgpack.Decoder(Answer)
_arguments = msgspec.msgpack.Decoder(tuple[list[Any], dict[str, Any]])
_version = msgspec.msgpack.Decoder(int)


class SharedCatalog(CatalogHost):
    """What all followed catalogs share: versions, and commands from other nodes or processes."""

    def __init__(self, context: NodeContext, *, ask: AskOwner, **same: Any) -> None:
        super().__init__(context, **same)
        self._ask = ask
        self._seen: Catalog | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._heard_s = self._loop.time()
        self._was_heard = False  # since the start
        self._silence = "No node owns the catalog right now."  # why the owner was not heard last time

    def replica(self) -> Catalog | None:
        """The replica folded so far of a catalog that another node or process hosts."""
        raise NotImplementedError

    def current(self) -> Catalog:
        catalog = self._catalog or self.replica()
        if catalog is None:
            raise Unavailable(self.why)
        return catalog

    @property
    def serving(self) -> bool:
        return self._catalog is not None or self.replica() is not None

    def _folded(self) -> None:
        """Tell the shards on this node about new changes in the replica."""
        catalog = self.replica()
        if self._commit is not None or catalog is None:
            return
        changes = take_changes(catalog)
        if catalog is not self._seen:
            self._seen = catalog
            if self._on_open is not None:
                self._on_open(catalog)
        elif self._on_change is not None:
            self._on_change(changes)
        self._wake()

    # --- versions -----------------------------------------------------------------------------------

    async def reached(self, version: int) -> None:
        if self._commit is not None:
            await super().reached(version)
            return
        if self.current().version >= version:
            return
        future = self._loop.create_future()
        self._waiting.append((version, future))
        try:
            async with asyncio.timeout(REACH_S):
                await future
        except TimeoutError:
            raise Unavailable("This node's copy of the catalog is out of date. Retry.") from None
        finally:
            self._waiting.remove((version, future))

    def _wake(self) -> None:
        version = self.current().version
        for wanted, future in self._waiting:
            if wanted <= version and not future.done():
                future.set_result(None)

    async def refresh(self) -> bool:
        if self.owned:
            return False
        before = self.current().version
        try:
            async with asyncio.timeout(REFRESH_S):
                await self.reached(await self._owner_version())
        except TimeoutError:
            raise Unavailable("The catalog's owner does not answer. Retry.") from None
        return self.current().version > before

    async def _owner_version(self) -> int:
        version = _version.decode(await self._ask("version", b"", int(REFRESH_S * 1000)))
        self._heard_s = self._loop.time()
        self._was_heard = True
        return version

    async def hear(self) -> None:
        """Ask the owner for its version, to confirm that this node is not cut off."""
        if self.owned:
            self._heard_s = self._loop.time()
            self._was_heard = True
            return
        try:
            await self._owner_version()
        except BatonError as problem:  # `check_heard` reports it if it lasts
            self._silence = problem.message

    def check_heard(self) -> None:
        if not self.owned and self._loop.time() - self._heard_s > CUT_OFF_S:
            raise Unavailable("This node cannot reach the catalog, so it cannot check permissions. Retry.")

    def unheard(self) -> str:
        """Why the catalog's owner has not been heard for too long, or never since the start; empty: it has been."""
        if self.owned or (self._was_heard and self._loop.time() - self._heard_s <= CUT_OFF_S):
            return ""
        return f"this node cannot reach the owner of the catalog: {self._silence}"

    # --- commands -----------------------------------------------------------------------------------

    async def run(self, command: Callable[..., T], *arguments: Any, **named: Any) -> Changed[T]:
        name = command.__name__
        if self.owned:
            return await self._run_here(name, command, *arguments, **named)
        if name not in COMMANDS:
            raise Unavailable(f"Only the catalog's owner can do this ({name}).")
        data = msgspec.msgpack.encode((arguments, named))
        answer = _answer.decode(await self._ask(name, data, 0))
        await self.reached(answer.version)
        result = COMMANDS[name][1](self.current(), answer.told)
        return Changed(cast(T, result), answer.version, frozenset(answer.shards))

    async def _run_here(self, name: str, command: Callable[..., T], /, *arguments: Any, **named: Any) -> Changed[T]:
        """Run a command at the catalog's owner, which is this node."""
        del name
        return await super().run(command, *arguments, **named)

    async def answer(self, name: str, data: bytes) -> bytes:
        """Answer another node's question to the owner. Raises BatonError."""
        if not self.owned:
            raise Unavailable(self.why or "This node no longer owns the catalog. Retry.")
        if name == "version":
            return msgspec.msgpack.encode(self.committed_version)
        if name not in COMMANDS:
            raise InvalidInput(f"Unknown catalog command {name!r}: the calling node may run a newer release.")
        try:
            arguments, named = _arguments.decode(data)
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The arguments of {name} cannot be read: {problem}") from None
        changed: Changed[Any] = await self._run_here(name, getattr(Catalog, name), *arguments, **named)
        told = COMMANDS[name][0](changed.result)
        return msgspec.msgpack.encode(Answer(changed.version, sorted(changed.shards), told))


class ClusterCatalog(SharedCatalog):
    """A catalog that this node always follows, and hosts while it owns it."""

    def __init__(
        self,
        context: NodeContext,
        *,
        rules: Rules,
        recovery: Recovery,
        leases: OwnershipLeases,
        too_old: TooOld,
        awake: Awake,
        **same: Any,
    ) -> None:
        async def read() -> tuple[Catalog, Log]:
            return await recovery.read_catalog(rules)

        super().__init__(context, opener=read, **same)
        self.follower = Follower(
            CATALOG_SHARD,
            "The catalog",
            self._context,
            leases=leases,
            read=self._read_replica,
            serve=self._serve_machine,
            stop=self._stop,
            on_frame=self._folded,
            on_state=self._set_state,
            awake=awake,
        )
        self.state = KeeperState.OPENING
        self._too_old = too_old

    async def too_old(self, version: int) -> str:
        return await self._too_old(version)

    @property
    def owned(self) -> bool:
        return self._commit is not None and self.follower.leased

    def _set_state(self, state: KeeperState, why: str) -> None:
        self.state, self.why = state, why

    def replica(self) -> Catalog | None:
        return cast("Catalog | None", self.follower.machine)

    async def open(self) -> None:
        await self.follower.open()

    async def _read_replica(self) -> tuple[Machine, MirroredLog]:
        catalog, log = await self._opener()
        return catalog, cast(MirroredLog, log)

    async def _serve_machine(self, machine: Machine, log: MirroredLog, outage_ms: int) -> None:
        await self._serve(cast(Catalog, machine), log)
        self._wake()

    async def _stop(self) -> bool:
        commit = self._commit
        if commit is None:
            return False
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self.drain()
        except (TimeoutError, BatonError) as problem:
            events.warning("drain_failed", f"The catalog could not be drained: {problem}")
        clean = commit.idle and not commit.failed
        self._catalog = self._log = self._commit = None
        commit.stop("The catalog is being handed over to another node. Retry.")
        return clean

    async def _run_here(self, name: str, command: Callable[..., T], /, *arguments: Any, **named: Any) -> Changed[T]:
        """Run a command at the owner.

        A command that spreads a queue over shards, gives a shard another kind, or creates a key with a role needs a log
        format that all nodes can read.
        """
        catalog = self.current()
        refused = ""
        if name == "put_key" and named and catalog.format < ROLES_VERSION:
            older = await self._too_old(ROLES_VERSION)
            if older:
                raise InvalidInput(f"Keys cannot have a name, a role or an expiry yet. {older}")
        restricts = name in SPREADING and not arguments[SPREADING[name]].keys().isdisjoint(RESTRICTIONS)
        if restricts and catalog.format < PACING_VERSION:
            older = await self._too_old(PACING_VERSION)
            if older:
                raise InvalidInput(f"Queues cannot be paused, paced or limited to some messages yet. {older}")
        if name in SPREADING and arguments[SPREADING[name]].get(RETAIN, "") not in ("", "0"):
            older = await self._too_old(RETAINING_VERSION)
            if older:
                raise InvalidInput(f"Queues cannot retain their history yet. {older}")
        if catalog.format < SPREAD_VERSION:
            asked = name in SPREADING and (catalog.rules.spread > 1 or NEW & arguments[SPREADING[name]].keys())
            if asked or named.get("replicas", 0) not in (0, catalog.own_replicas):
                refused = await self._too_old(SPREAD_VERSION)
        if not self.owned:
            raise Unavailable(self.why or "This node no longer owns the catalog. Retry.")
        self.current().spread_refused = (
            refused and f"Queues cannot have several shards or durability classes yet. {refused}"
        )
        return await super()._run_here(name, command, *arguments, **named)

    def _lost(self, problem: BaseException, log: Log) -> None:
        self._alarms.clear(
            "catalog-stopped"
        )  # this node follows the catalog; whether any node hosts it is another question
        self.follower.lost(problem)

    async def close(self) -> None:
        self._closed = True
        if self._commit is not None:
            self._commit.stop("The node is stopping. Retry.")
        self._catalog = self._log = self._commit = None
        await self.follower.close()

    def load(self) -> Load:
        return Load()

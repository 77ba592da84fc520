"""Queues and keys, which the catalog holds: finds them, changes them, and tells the shards.

A change of a queue is committed in the catalog, then told to the shard and committed there, and then answered. A shard
that was not served meanwhile is told when it is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from batonq.attribute_formats.arns import QueueName
from batonq.core.catalog.entries import AccessKey, QueueEntry
from batonq.core.catalog.machine import Catalog
from batonq.core.catalog.queue_warnings import queue_warnings
from batonq.core.catalog.topic_entries import TopicEntry
from batonq.core.policy import QueuePolicy
from batonq.errors import BatonError, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.cancellation import heard
from batonq.node import events
from batonq.node.catalog.access_keys import list_keys
from batonq.node.catalog.catalog_host import CatalogHost, Changed, Changes
from batonq.node.catalog.subscriptions import Missed, missed_subscriptions, tell_missed, tell_subscription
from batonq.node.routing.ports import ShardPort
from batonq.node.shard_host.host import ShardHost, committed
from batonq.node.shard_host.keeper import ShardKeeper

T = TypeVar("T")

Queue = QueueEntry
PURGE_S = 10.0  # how long a purge waits for a shard that is busy, or that no node serves
AGAIN_S = 0.1
TELL_AGAIN_S = 1.0


class Control:
    """The part of the broker that manages queues."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        catalog: CatalogHost,
        shards: Sequence[ShardKeeper],
        port: Callable[[int], ShardPort],
    ) -> None:
        self._loop = loop
        self._catalog = catalog
        self._shards = shards  # the shards on this node, for operations that must not wait
        self._port = port
        self._control: set[asyncio.Task[Any]] = set()
        self._ahead: set[int] = set()  # shards that know a newer version than this node's catalog
        self._behind: set[int] = set()  # shards that refused what they were told; they are told again

    def port(self, shard: int) -> ShardPort:
        """One shard, on this node or another one."""
        return self._port(shard)

    # --- finding queues and keys ----------------------------------------------------------------

    def queue(self, account: str, name: str) -> Queue:
        entry = self._catalog.current().by_name.get(QueueName(account, name))
        if entry is None:
            raise QueueDoesNotExist
        return entry

    def queue_by_number(self, number: int) -> Queue | None:
        """The queue of this number, if it still exists."""
        return self._catalog.current().queues.get(number)

    def queues(self, account: str, prefix: str = "") -> list[Queue]:
        return self._catalog.current().list_queues(account, prefix)

    def dead_letter_sources(self, queue: Queue) -> list[Queue]:
        return self._catalog.current().dead_letter_sources(queue.number)

    def warnings(self, queue: Queue) -> list[str]:
        """Settings of the queue that lose good messages or hide dead letters, one sentence each."""
        return queue_warnings(self._catalog.current(), queue)

    def find_key(self, access_key: str) -> AccessKey | None:
        """An access key; None if it does not exist or is disabled. It may have expired."""
        self._catalog.check_heard()
        return self._catalog.current().find_key(access_key)

    def access_keys(self) -> list[AccessKey]:
        """All access keys, oldest first."""
        return list_keys(self._catalog.current())

    async def disable_key(self, key_id: str, disabled: bool) -> AccessKey:
        """Disable an access key, or enable it again. Raises NotFound."""
        return await self._catalog.change(Catalog.disable_key, key_id, disabled=disabled)

    def session_keys(self) -> dict[int, bytes]:
        """Keys for sealing what clients keep for the server, by id; the highest id is the newest. All nodes and
        processes derive them from the receipt keys in the catalog.
        """
        return {
            id: blake2b(key=key.key, person=b"baton sessions", digest_size=32).digest()
            for id, key in self._catalog.current().receipt_keys.items()
        }

    # --- queues ---------------------------------------------------------------------------------

    async def create_queue(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        rest: bool = False,
        chains: bool | None = None,
    ) -> Queue:
        """Create a queue, or return the existing one.

        `rest`: a FIFO queue may have any name, and dead-letter queues must not form a chain, unless `chains` says so.
        """
        chained = not rest if chains is None else chains

        async def create() -> Queue:
            changed = await self._change(
                Catalog.create_queue, account, name, attributes, tags, any_name=rest, chains=chained
            )
            entry = changed.result
            await self._reach_all(entry, changed.version)
            self._warn(entry)
            return entry

        return await self._uncancelled(create())

    async def set_attributes(self, queue: Queue, changes: Mapping[str, str], rest: bool = False) -> None:
        """Change attributes. `rest`: dead-letter queues must not form a chain."""

        async def change() -> None:
            changed = await self._change(Catalog.set_attributes, queue.number, changes, chains=not rest)
            await self._reach_all(changed.result, changed.version)
            self._warn(changed.result)

        await self._uncancelled(change())

    def _warn(self, queue: Queue) -> None:
        for text in self.warnings(queue):
            events.warning("queue_settings", text, queue=queue.name)

    async def set_tags(self, queue: Queue, add: Mapping[str, str], remove: Sequence[str]) -> None:
        await self._catalog.change(Catalog.set_tags, queue.number, add, remove)

    async def set_permission(self, queue: Queue, label: str, statement: dict[str, Any] | None) -> None:
        await self._catalog.change(Catalog.set_permission, queue.number, label, statement)

    async def delete_queue(self, queue: Queue) -> None:
        """Delete the queue. Its messages are removed gradually afterwards."""

        async def delete() -> None:
            await self._change(Catalog.delete_queue, queue.number)

        await self._uncancelled(delete())

    async def purge_queue(self, queue: Queue) -> None:
        """Remove all messages that the queue has now, on all of its shards, even if a shard changes its owner."""

        async def purge() -> None:
            await self._catalog.change(Catalog.purge_queue, queue.number)
            shards = self._now(queue).shards
            await asyncio.gather(*(self._purge_shard(queue.number, shard) for shard in shards))

        await self._uncancelled(purge())

    async def _purge_shard(self, queue: int, shard: int) -> None:
        """Remove the messages that were there at the start, and no later ones, even if the owner dies in between."""
        give_up_s = self._loop.time() + PURGE_S
        through: int | None = None
        while True:
            try:
                port = self._port(shard)
                if through is None:
                    through = await port.purge_point(queue)
                await port.purge(queue, through)
                return
            except QueueDoesNotExist:
                if self.queue_by_number(queue) is None:
                    raise
                return  # the shard has not heard of the queue yet, so it has no messages of it
            except (Unavailable, OverLimit):
                if self._loop.time() >= give_up_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _now(self, queue: Queue) -> Queue:
        """The current state of the queue: it may have grown since it was looked up."""
        return self.queue_by_number(queue.number) or queue

    async def _reach_all(self, queue: Queue | TopicEntry, version: int) -> None:
        """Wait until the shards of the queue or topic know its current state.

        Of several shards, one that no node serves is not waited for: it is told when it is opened.
        """
        ports = [self._port(shard) for shard in queue.shards]
        told = await asyncio.gather(
            *(port.reach(queue.number, version) for port in ports), return_exceptions=len(ports) > 1
        )
        failed = [problem for problem in told if problem is not None]
        if len(failed) == len(ports) or not all(isinstance(problem, BatonError) for problem in failed):
            raise failed[0]

    async def _change(self, command: Callable[..., T], *arguments: Any, **named: Any) -> Changed[T]:
        """Change queues: commit in the catalog, then in the shards that are concerned and served."""
        changed = await self._catalog.run(command, *arguments, **named)
        for shard in changed.shards:
            try:
                await self._port(shard).reach(0, changed.version)
            except (BatonError, IndexError):
                continue  # the shard is told when it is opened
        return changed

    def tell(self, changes: Changes) -> None:
        """Tell the shards on this node about committed changes of the catalog, each in order."""
        for number in sorted(self._ahead):
            self._ahead.discard(number)
            self._tell_again(number)
        for number, (entry, shards) in changes.queues.items():
            for shard in shards:
                if shard in self._ahead or shard >= len(self._shards) or not self._shards[shard].serving:
                    continue  # the shard is told later, or when it is opened
                try:
                    host = self._shards[shard].host()
                    self._tell(host, number, entry, changes.version)
                    for subscription, policy in changes.subscriptions.get(number, {}).items():
                        tell_subscription(host, number, subscription, policy, changes.version)
                except BatonError:
                    self._tell_again_later(shard)

    def _tell_again(self, shard: int) -> None:
        """Tell a shard all that it missed, as soon as it accepts that."""
        self._behind.discard(shard)
        if self._shards[shard].serving:
            self.reconcile(self._shards[shard])

    def _tell_again_later(self, shard: int) -> None:
        if shard not in self._behind:
            self._behind.add(shard)
            self._loop.call_later(TELL_AGAIN_S, self._tell_again, shard)

    @staticmethod
    def _tell(host: ShardHost, number: int, entry: Queue | TopicEntry | None, version: int) -> None:
        """Update one queue or topic on one shard to the catalog's state at that version."""
        held = host.shard.queues.get(number)
        if entry is not None and host.shard.number in entry.shards:
            if held is None or held.policy.version < entry.policy_version:
                host.set_policy(entry.policy)
        elif held is not None and not held.closed:
            host.close_queue(number, version)

    async def reach(self, host: ShardHost, queue: int, version: int) -> None:
        """Wait until the catalog's changes up to this version are told here.

        Also makes sure that this shard knows this queue, even if the shard was just opened, and that all of it is
        committed there.
        """
        await self._catalog.reached(version)
        if queue and self._is_behind(host, queue, version):
            point = self._catalog.point()
            if point is not None:
                await point
            catalog = self._catalog.current()
            self._tell(host, queue, catalog.placed(queue), catalog.version)
            tell_missed(host, missed_subscriptions(host, catalog, queue), catalog.version)
        await committed(host)

    def _is_behind(self, host: ShardHost, queue: int, version: int) -> bool:
        """Whether a shard has not applied what it was told up to this version."""
        held, catalog = host.shard.queues.get(queue), self._catalog.current()
        entry = catalog.placed(queue)
        if held is None or (entry is not None and held.policy.version < entry.policy_version <= version):
            return True
        return held.policy.topic and bool(missed_subscriptions(host, catalog, queue))

    def reconcile(self, keeper: ShardKeeper) -> None:
        """Tell a shard that was opened what it missed. These changes are committed with the shard's next frame.

        Only changes committed in the catalog are told. Uncommitted decisions wait for their commit. If that fails, the
        catalog is reopened, and then this method is called for every shard.
        """
        if not self._catalog.serving:
            return
        host = keeper.host()
        held = {number: state.policy.version for number, state in host.shard.queues.items() if not state.closed}
        if max(held.values(), default=0) > self._catalog.current().version:
            self._ahead.add(keeper.number)  # the shard knows more than this node's catalog: it is told later
            return
        to_set, to_close = self._catalog.current().reconcile(keeper.number, held)
        missed = missed_subscriptions(host, self._catalog.current())
        point = self._catalog.point()
        if point is None:
            self._tell_missed(host, held, to_set, to_close, missed)
            return

        async def tell_when_committed() -> None:
            await point
            if host.serving:
                self._tell_missed(host, held, to_set, to_close, missed)

        task = self._loop.create_task(tell_when_committed())
        self._control.add(task)
        task.add_done_callback(self._told)

    def _tell_missed(
        self,
        host: ShardHost,
        held: Mapping[int, int],
        to_set: Sequence[QueuePolicy],
        to_close: Sequence[int],
        missed: Sequence[Missed],
    ) -> None:
        """Tell a shard what it missed since these versions, unless it has been told something newer."""
        catalog = self._catalog.current()
        states = host.shard.queues
        try:
            for policy in to_set:
                state = states.get(policy.queue)
                version = state.policy.version if state is not None and not state.closed else None
                if catalog.placed(policy.queue) is not None and version == held.get(policy.queue):
                    host.set_policy(policy)
            for number in to_close:
                if catalog.placed(number) is None and number in states and not states[number].closed:
                    host.close_queue(number, catalog.version)
            tell_missed(host, missed, catalog.version)
        except BatonError:
            self._tell_again_later(host.shard.number)
        host.commit.kick()

    def _told(self, task: asyncio.Task[Any]) -> None:
        """After a failure the catalog or the shard is reopened, and the shard is told again."""
        self._control.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, BatonError):
            events.logger.error("a shard did not receive the catalog changes that it missed", exc_info=problem)

    def _uncancelled(self, work: Awaitable[T]) -> Awaitable[T]:
        """Complete a change even though the client that requested it has disconnected."""
        task = self._loop.create_task(_run(work))
        self._control.add(task)
        task.add_done_callback(self._control.discard)
        task.add_done_callback(heard)
        return asyncio.shield(task)

    async def finish_control(self) -> None:
        """Wait for changes in progress."""
        if self._control:
            await asyncio.gather(*self._control, return_exceptions=True)


async def _run(work: Awaitable[T]) -> T:
    return await work

"""The catalog's host: the control plane's state machine over a log of its own, committed like a shard's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.machine import Catalog
from batonq.core.catalog.topic_entries import TopicEntry
from batonq.core.limits import ROLL_ROWS
from batonq.core.topics.subscription import Subscription
from batonq.errors import BatonError, LogCorrupt, Unavailable
from batonq.log.cancellation import end
from batonq.log.interface import Log
from batonq.node import events
from batonq.node.context import NodeContext
from batonq.node.shard_host.group_commit import CommitStatistics, GroupCommit

T = TypeVar("T")


class Changes(NamedTuple):
    """The changes of one catalog frame: the queues and topics after it (None: deleted) with the shards concerned, and
    the subscriptions of each topic (None: removed).
    """

    version: int
    queues: dict[int, tuple[QueueEntry | TopicEntry | None, frozenset[int]]]
    subscriptions: dict[int, dict[int, Subscription | None]]


def take_changes(catalog: Catalog) -> Changes:
    """What has changed in the catalog since the last call."""
    changed, catalog.changed = catalog.changed, {}
    subscribed, catalog.changed_subscriptions = catalog.changed_subscriptions, {}
    entries = catalog.tables.subscriptions
    return Changes(
        catalog.version,
        {number: (catalog.placed(number), shards) for number, shards in changed.items()},
        {
            topic: {number: entries[number].policy if number in entries else None for number in sorted(numbers)}
            for topic, numbers in subscribed.items()
        },
    )


class Changed(NamedTuple, Generic[T]):
    """The result of a command, and the version to wait for until shards know of the change."""

    result: T
    version: int
    shards: frozenset[int]


OpenCatalog = Callable[[], Awaitable[tuple[Catalog, Log]]]
STOPPED = "The catalog's log failed and is being reopened. Retry."


class CatalogHost:
    """Keeps the catalog served. `current()` is the state decided so far; `change` returns after its commit."""

    def __init__(
        self,
        context: NodeContext,
        *,
        opener: OpenCatalog,
        on_open: Callable[[Catalog], None] | None = None,
        on_change: Callable[[Changes], None] | None = None,
    ) -> None:
        self.statistics = CommitStatistics()
        self.why = "The catalog is being opened. Retry."
        self._context = context
        self._loop = context.loop
        self._clock = context.clock
        self._settings = context.settings
        self._alarms = context.alarms
        self._opener = opener
        self._on_open = on_open
        self._on_change = on_change
        self.committed_version = 0
        self._sealed: Changes | None = None  # the changes in the frame in flight
        self._catalog: Catalog | None = None
        self._log: Log | None = None
        self._commit: GroupCommit | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._closed = False

    def current(self) -> Catalog:
        catalog = self._catalog
        if catalog is None:
            raise Unavailable(self.why)
        return catalog

    @property
    def serving(self) -> bool:
        return self._catalog is not None

    def point(self) -> asyncio.Future[None] | None:
        """The future to wait for until every decision so far is committed; None: all are."""
        return self._commit.point() if self._commit is not None else None

    async def change(self, command: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a command of the catalog, and return its result once it is committed.

        Example: `change(Catalog.set_tags, number, …)`. The current time is added after the positional arguments. A
        command is a named function with plain values as arguments, so that another node can be asked to run it.
        """
        return (await self.run(command, *arguments, **named)).result

    async def too_old(self, version: int) -> str:
        """Which nodes cannot read this version of the log format yet, as a sentence; empty if all can."""
        return ""

    async def run(self, command: Callable[..., T], *arguments: Any, **named: Any) -> Changed[T]:
        """Like `change`, for a change that shards have to learn of."""
        catalog = self.current()
        commit, log = self._commit, self._log
        assert commit is not None and log is not None
        frame = catalog.frame
        if frame.row_count > ROLL_ROWS or frame.size > log.frame_bytes_max // 2:
            frame.roll()  # one change is far smaller than half a frame
        try:
            result = command(catalog, *arguments, self._clock.now_ms(), **named)
        except Exception as problem:
            if not isinstance(problem, BatonError):
                events.logger.exception("catalog: a command failed")
                commit.abandon(problem)  # a partial change may be there, and must not be committed
            raise
        shards = frozenset[int]().union(*catalog.changed.values())
        changed = Changed(result, catalog.version, shards)
        point = commit.point()
        if point is not None:
            await point
        return changed

    @property
    def owned(self) -> bool:
        """Whether this node decides on changes."""
        return self._commit is not None

    async def reached(self, version: int) -> None:
        """Wait until the catalog's changes up to this version are committed, and the shards on this node were told."""
        point = self.point() if version > self.committed_version else None
        if point is not None:
            await point

    async def refresh(self) -> bool:
        """Make sure that `current` is up to date. Returns whether it was outdated."""
        return False

    def check_heard(self) -> None:
        """Raises Unavailable when this node has been cut off from the catalog for too long to trust its keys."""

    def log_here(self) -> Log | None:
        """The catalog's log, if this node decides on changes."""
        return self._log

    async def open(self) -> None:
        catalog, log = await self._opener()
        await self._serve(catalog, log)

    async def _serve(self, catalog: Catalog, log: Log) -> None:
        # Drop what was read from the log: shards learn of it when they are opened, and by `on_open`.
        catalog.changed.clear()
        catalog.changed_subscriptions.clear()
        commit = GroupCommit(
            loop=self._loop,
            machine=catalog,
            log=log,
            cluster=self._context.cluster,
            region=0,
            before_seal=lambda: self._seal(catalog),
            after_commit=self._committed,
            on_failure=self._failed,
            statistics=self.statistics,
            inline_max_s=self._settings.inline_sync_us / 1e6,
            clock=self._clock.monotonic,
        )
        try:
            point = commit.point()
            if point is not None:
                await point
        except BaseException:
            log.close()
            raise
        self._catalog, self._log, self._commit = catalog, log, commit
        self.committed_version = catalog.version
        self._alarms.clear("catalog-stopped")
        events.debug(
            "catalog_opened",
            f"The catalog is served, with {len(catalog.queues)} queues",
            epoch=catalog.epoch,
            version=catalog.version,
            queues=len(catalog.queues),
        )
        if self._on_open is not None:
            self._on_open(catalog)

    async def maintain(self) -> None:
        """Maintain the log: prepare the next segment, and replace a long front by a Base."""
        catalog, log, commit = self._catalog, self._log, self._commit
        if catalog is None or log is None or commit is None:
            return
        log.tick()
        if not catalog.wants_base:
            return
        first = catalog.frame.number
        await self.change(Catalog.write_base, first, log.frame_bytes_max)
        log.drop_front(self._context.holds.limit(log, first))

    def abandon(self, problem: BaseException) -> None:
        """The log is no longer ours: drop all state and reopen the log."""
        if self._commit is not None:
            self._commit.abandon(problem)

    async def drain(self) -> None:
        commit = self._commit
        while commit is not None and not commit.idle and not commit.failed:
            point = commit.point()
            if point is not None:
                await point

    async def close(self) -> None:
        self._closed = True
        self.why = "The node is stopping. Retry."
        await end(self._reopening)
        if self._commit is not None:
            self._commit.stop(self.why)
        if self._log is not None:
            self._log.close()
        self._catalog = self._log = self._commit = None

    def _seal(self, catalog: Catalog) -> None:
        """Collect the changes that shards are told of after the commit.

        Only committed changes are told, as of that frame: later decisions may still be lost.
        """
        if catalog.frame.finished:
            return  # a part of a Base goes first; the changes in the open frame are told with that frame
        self._sealed = take_changes(catalog)

    def _committed(self) -> None:
        sealed, self._sealed = self._sealed, None
        if sealed is not None:
            self.committed_version = sealed.version
            if self._on_change is not None:
                self._on_change(sealed)

    def _failed(self, problem: BaseException) -> None:
        log = self._log
        if self._catalog is None or log is None:
            return  # while opening, `open` raises the error
        self._catalog = self._log = self._commit = None
        self.why = f"{STOPPED} ({problem})"
        self._alarms.put("catalog-stopped", f"The catalog stopped: {problem}. It is being reopened.")
        self._lost(problem, log)

    def _lost(self, problem: BaseException, log: Log) -> None:
        """The host has ended. Its log may be in the middle of the append that failed."""
        self._loop.call_soon(log.close)
        if not self._closed:
            self._reopening = self._loop.create_task(self._reopen())

    async def _reopen(self) -> None:
        pause_s = self._settings.reopen_first_s
        while self._catalog is None and not self._closed:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._settings.reopen_max_s)
            try:
                await self.open()
            except LogCorrupt as problem:
                self.why = f"The catalog is stopped: {problem.message}"
                self._alarms.put("catalog-stopped", self.why)
                return
            except Exception as problem:  # whatever the error is, retrying is all that is left to do
                self.why = f"The catalog could not be opened: {problem}"
                self._alarms.put("catalog-stopped", self.why)

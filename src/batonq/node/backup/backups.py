"""A backup's point: for each log, the frame at which the backup ends, chosen so that no message is lost or doubled.

Within one process all shards are cut in one turn of the event loop. Only committed entries travel between shards, so
such a cut is consistent: an entry that has arrived is owed in its source's part, and an entry that is settled has
arrived in its destination's part. Several processes cannot be cut in one turn. They first stop delivering and settling
entries, then each is cut, and then they go on. The catalog is cut last, because shards must not know more than it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from batonq.errors import BatonError, InvalidInput, LogGap, NotFound, Unavailable
from batonq.log.interface import Log, Piece
from batonq.log.layout import CATALOG_SHARD
from batonq.node.backup.front_holds import IDLE_S, FrontHolds
from batonq.node.catalog.catalog_host import CatalogHost
from batonq.node.monitoring.everywhere import Others
from batonq.node.operations.history import BYTES_MAX, FRAMES_MAX, Served, check
from batonq.node.routing.channels import Channels
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import ShardKeeper

COMMAND = "backup"  # the internal call between processes
ASK_S = 5.0
ID_BYTES = 8
_asked = msgspec.msgpack.Decoder(tuple[str, str, int, int])
encode = msgspec.msgpack.encode


class Cut(NamedTuple):
    """Where a log is cut: frames `first` up to `next` (exclusive) belong to the backup."""

    shard: int
    first: int
    next: int
    digest: str  # of the last frame, in hexadecimal
    bytes: int  # approximate size


class Point(NamedTuple):
    backup: str
    at_ms: int
    cluster: int
    held_s: float
    shards: list[Cut]
    catalog: Cut


_cuts = msgspec.msgpack.Decoder(list[Cut])
_cut = msgspec.msgpack.Decoder(Cut | None)
_served = msgspec.msgpack.Decoder(Served | None)
_yes = msgspec.msgpack.Decoder(bool)


class Backups:
    def __init__(
        self,
        *,
        settings: Settings,
        shards: Sequence[ShardKeeper],
        catalog: CatalogHost,
        channels: Channels,
        holds: FrontHolds,
        others: Callable[[], Others],
        cluster: int,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._settings = settings
        self._shards = shards
        self._catalog = catalog
        self._channels = channels
        self._holds = holds
        self._others = others
        self._cluster = cluster
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._creating = asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()
        holds.tell = self._tell_others

    async def create(self) -> Point:
        """Choose the point of a new backup, and keep the logs' fronts for it. Raises InvalidInput, Unavailable."""
        if self._settings.advertise:
            raise InvalidInput(
                "The nodes of a cluster share their log and cannot be backed up through one node. Back up the log with "
                "the tools of its store: `nats stream backup` for NATS JetStream, `pg_dump` for PostgreSQL."
            )
        if not self._settings.history_rate_bytes:
            raise InvalidInput(
                "History reads are disabled (--history-rate-bytes 0), so a backup could not be read. Set another "
                "value, or stop the server and copy its data directory."
            )
        async with self._creating:
            backup = self._random_bytes(ID_BYTES).hex()
            try:
                return await self._create(backup)
            except BaseException:
                await self._all(backup, "release", _yes, patient=True)
                raise

    async def _create(self, backup: str) -> Point:
        others = len(self._others().names())
        alone = not others
        try:
            if not alone and not all(await self._all(backup, "pause", _yes)):
                raise Unavailable("Another backup is being prepared. Retry.")
            at_ms = self._now_ms()
            cuts = [cut for part in await self._all(backup, "cut", _cuts) for cut in part]
            catalog = next((cut for cut in await self._all(backup, "catalog", _cut) if cut is not None), None)
        finally:
            resumed = [] if alone else await self._all(backup, "resume", _yes, patient=True)
        in_effect = alone or (len(resumed) == others + 1 and all(resumed))  # the pause, until all were cut
        if not in_effect or catalog is None:
            raise Unavailable("The processes of the server could not be stopped at one point in time. Retry.")
        missing = {keeper.number for keeper in self._shards} - {cut.shard for cut in cuts}
        if missing:
            raise Unavailable(f"Shard {min(missing)} is not served at the moment. Retry when /readyz answers 200.")
        return Point(backup, at_ms, self._cluster, IDLE_S, sorted(cuts), catalog)

    async def finish(self, backup: str) -> None:
        """The backup is complete, or given up: its frames need not be kept any longer. Raises NotFound."""
        if not any(await self._all(backup, "release", _yes, patient=True)):
            raise _unknown(backup)

    async def read_catalog(self, backup: str, start: int, stop: int) -> Served:
        """Frames of the catalog's log, like those of a shard's history. Raises NotFound, LogGap, Unavailable."""
        if not self._holds.knows(backup):
            raise _unknown(backup)
        parts: list[Served | None] = await self._all(backup, "frames", _served, start, stop)
        for part in parts:
            if part is not None:
                return part
        raise Unavailable("The catalog is not served at the moment. Retry.")

    # --- in every process ------------------------------------------------------------------------

    async def _all(
        self,
        backup: str,
        what: str,
        decoder: msgspec.msgpack.Decoder[Any],
        start: int = 0,
        stop: int = 0,
        *,
        patient: bool = False,
    ) -> list[Any]:
        """The answers of this process and all others. `patient`: processes that do not answer are left out."""
        others, body = self._others(), encode((what, backup, start, stop))

        async def there(name: str) -> Any:
            return decoder.decode(await others.ask(name, COMMAND, body, ASK_S))

        works: list[Awaitable[Any]] = [self.here(what, backup, start, stop), *map(there, others.names())]
        answers = await asyncio.gather(*works, return_exceptions=True)
        problems = [answer for answer in answers if isinstance(answer, BaseException)]
        for problem in problems:
            if not (patient and isinstance(problem, BatonError)):
                raise problem
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _tell_others(self, backup: str) -> None:
        """Let the other processes keep their parts of a backup, while this process's part is read."""
        if self._others().names():
            task = asyncio.get_running_loop().create_task(self._keep_everywhere(backup))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _keep_everywhere(self, backup: str) -> None:
        await self._all(backup, "keep", _yes, patient=True)

    async def answer(self, body: bytes) -> Any:
        """Answer another process. Raises BatonError."""
        return await self.here(*_asked.decode(body))

    async def here(self, what: str, backup: str, start: int, stop: int) -> Any:
        if what == "pause":
            return self._channels.pause(backup)
        if what == "resume":
            return self._channels.resume(backup)
        if what == "cut":
            return self._cut(backup)
        if what == "catalog":
            return self._cut_catalog(backup)
        if what == "frames":
            return await self._read_catalog_here(start, stop)
        if what == "keep":
            return self._holds.keep(backup)
        if what == "release":
            return self._holds.release(backup)
        raise InvalidInput(f"Unknown step {what!r} of a backup: another process runs another release.")

    def _cut(self, backup: str) -> list[Cut]:
        """Cut the logs of the shards that this process serves, in this turn of the event loop."""
        if self._others().names() and not self._channels.paused_for(backup):
            raise Unavailable("A process was restarted, or was too slow, while the backup was prepared. Retry.")
        cuts = [_cut_of(keeper.host().log) for keeper in self._shards if keeper.serving]
        self._holds.hold(backup, {cut.shard: (cut.first, cut.next) for cut in cuts})
        return cuts

    def _cut_catalog(self, backup: str) -> Cut | None:
        log = self._catalog.log_here()
        if log is None:
            return None
        cut = _cut_of(log)
        self._holds.hold(backup, {CATALOG_SHARD: (cut.first, cut.next)})
        return cut

    async def _read_catalog_here(self, start: int, stop: int) -> Served | None:
        log = self._catalog.log_here()
        if log is None:
            return None
        if not log.first <= start < log.next:
            raise LogGap(f"Frame {start} of the catalog is not retained. Start a new backup.")
        self._holds.used(CATALOG_SHARD, start)
        piece = log.piece(start, BYTES_MAX, min(FRAMES_MAX, max(stop - start, 1)))
        data = await asyncio.to_thread(_read, piece)
        if start < log.first:
            raise LogGap(f"Frame {start} of the catalog is not retained. Start a new backup.")
        return Served(data, start, piece.stop, log.first, log.next)


def _read(piece: Piece) -> bytes:
    try:
        data = piece.read()
    except OSError as problem:
        raise Unavailable(f"The catalog's log cannot be read: {problem.strerror}.") from None
    check(data, CATALOG_SHARD, piece.start, piece.stop)
    return data


def _cut_of(log: Log) -> Cut:
    return Cut(log.shard, log.first, log.next, log.tail_digest.hex(), log.bytes_retained())


def _unknown(backup: str) -> NotFound:
    return NotFound(
        f"Backup {backup[:64]!r} is not in progress: it has finished, or nobody has read from it for {IDLE_S:g} s. "
        "Start a new one."
    )

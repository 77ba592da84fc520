"""What a reader group does on one shard that this node serves; see core/shard/commands/readers.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from batonq.core.shard.state.readers import GroupSettings, Reader, Start
from batonq.errors import NotRetained
from batonq.node.messages.retained_reader import RetainedPage, RetainedReader
from batonq.node.shard_host.host import ShardHost, committed


class ReaderView(NamedTuple):
    """A reader group on one shard, and how far behind it is."""

    reader: Reader
    shard: int
    lag_messages: int
    lag_ms: int  # age of the oldest message that is not done; 0: everything is done
    last: int  # position of the newest retained message


class Fetched(NamedTuple):
    view: ReaderView
    page: RetainedPage


def view_of(host: ShardHost, queue: int, reader: Reader) -> ReaderView:
    retained = host.shard.queue_state(queue).retained
    if retained is None or not len(retained):
        return ReaderView(reader, host.shard.number, 0, 0, 0)
    now_ms = host.now_ms()
    retained.end_old(now_ms)
    index = retained.index_after(reader.position)
    behind = len(retained) - index
    lag_ms = max(now_ms - retained.time_at(index), 0) if behind else 0
    return ReaderView(reader, host.shard.number, behind, lag_ms, retained.last)


async def fetch(
    current: Callable[[], ShardHost],
    pages: RetainedReader,
    queue: int,
    group: str,
    member: str,
    epoch: int,
    after_position: int,
    limit_messages: int,
    limit_bytes: int,
    wait_ms: int,
) -> Fetched:
    """Messages that the group has not committed, or that are after a position, if that is further."""
    host = current()
    reader = await _begin(host, queue, group, member, epoch)
    after = max(after_position, reader.position)
    page = await pages.read(host, queue, after, limit_messages, limit_bytes, senders=False)
    if not page and wait_ms > 0:
        await host.reader_waits.wait(queue, after, wait_ms)
        host = current()
        reader = await _begin(host, queue, group, member, epoch)  # another member may have taken over meanwhile
        after = max(after_position, reader.position)
        page = await pages.read(host, queue, after, limit_messages, limit_bytes, senders=False)
    return Fetched(view_of(host, queue, reader), page)


async def _begin(host: ShardHost, queue: int, group: str, member: str, epoch: int) -> Reader:
    reader = host.run(host.shard.begin_fetch, queue, group, member, epoch, host.admit())
    await committed(host)
    return reader


# --- queues that leave a shard ---------------------------------------------------------------------


class GroupPort(Protocol):
    async def reader_set(
        self,
        queue: int,
        group: str,
        created_ms: int,
        settings: GroupSettings,
        start: Start,
        epoch: int,
        only_new: bool,
        /,
    ) -> ReaderView: ...


async def hand_over_groups(host: ShardHost, queue: int, others: Sequence[GroupPort]) -> None:
    """Make sure that the shards that a queue stays on have its reader groups, before it leaves this one. The history
    here has ended, so the positions here are no longer needed. A group that a shard has already keeps its position.
    """
    for reader in host.shard.readers(queue):
        for port in others:
            with suppress(NotRetained):  # the queue keeps no history any more
                await port.reader_set(
                    queue, reader.group, reader.created_ms, reader.settings, Start("start"), reader.reset_epoch, True
                )

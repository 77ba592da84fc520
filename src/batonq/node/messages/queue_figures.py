"""What one shard knows about why messages of a queue wait. Reading it changes nothing, and its cost does not depend on
the number of messages: at most EXAMINED of them are looked at.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from batonq.core.commands import Counters, MessageView
from batonq.core.ids import message_id
from batonq.core.payload import decode
from batonq.core.records import State, part_of
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.views import BusyGroup
from batonq.errors import LogError, Unavailable
from batonq.log.frames import Frame
from batonq.node.messages.peek import read_view
from batonq.node.shard_host.host import ShardHost, committed

EXAMINED = 200  # the oldest messages of the queue
GROUPS = 10  # of the busiest
FAILING_RECEIVES = 3  # a message that was received so often and is still there fails again and again


class GroupFigures(NamedTuple):
    name: str
    share: float  # of the messages that the shard got for the queue lately
    waiting: int  # messages of the group in the queue
    sent: int = 0  # for merging: the messages that the share is of


class LockedGroup(NamedTuple):
    """A FIFO group whose first message keeps the others waiting."""

    name: str
    waiting: int
    state: int
    holder: str
    until_ms: int
    message_id: str


class FailingMessage(NamedTuple):
    """The message that was received most often, of those that were examined."""

    message_id: str
    receives: int
    error_class: str
    reason: str


class ShardFigures(NamedTuple):
    counters: Counters
    deliverable: int  # messages that a receive would get now; only zero or not is exact
    paced: bool  # the queue's cap holds messages back now
    waiting_receives: int
    examined: int
    failing: int  # of the examined messages, those that were received FAILING_RECEIVES times or more
    worst: FailingMessage | None
    locked: LockedGroup | None
    groups: list[GroupFigures]
    next_visible_ms: int  # when the first of the examined delayed messages becomes visible; 0: none was found


async def read_figures(host: ShardHost, queue: int) -> ShardFigures:
    """Raises QueueDoesNotExist, Unavailable."""
    counters = host.counters(queue)
    shard = host.shard
    deliverable = shard.hint(queue).visible
    paced = shard.is_paced(queue)
    views = shard.oldest(queue, EXAMINED)
    busy = shard.busiest_groups(queue, GROUPS)
    sent = shard.counted_groups(queue)
    locked_view = _first_locked(host, views) if shard.queues[queue].fifo and not deliverable else None
    locked_waiting = shard.group_waiting(locked_view.slot) if locked_view is not None else 0
    first_views = [shard.view(group.slot) if group.slot != NIL else None for group in busy]
    waiting_receives = host.polls.waiting(queue)
    await committed(host)
    if not host.serving:
        raise Unavailable(host.why)
    groups = [
        GroupFigures(await _group_name(host, group, view), group.share, group.waiting, sent)
        for group, view in zip(busy, first_views, strict=True)
    ]
    locked = None
    if locked_view is not None:
        peeked = await read_view(host, locked_view)
        locked = LockedGroup(
            peeked.group,
            locked_waiting,
            locked_view.state,
            locked_view.holder,
            locked_view.until_ms,
            message_id(shard.number, locked_view.sequence),
        )
    failing = [view for view in views if view.epoch >= FAILING_RECEIVES]
    delayed = [view.until_ms for view in views if view.state == State.DELAYED]
    return ShardFigures(
        counters,
        deliverable,
        paced,
        waiting_receives,
        len(views),
        len(failing),
        _worst(shard.number, failing),
        locked,
        [group for group in groups if group.name],
        min(delayed, default=0),
    )


def _worst(shard: int, failing: list[MessageView]) -> FailingMessage | None:
    if not failing:
        return None
    view = max(failing, key=lambda each: (each.epoch, -each.sequence))
    return FailingMessage(message_id(shard, view.sequence), view.epoch, view.error_class, view.reason)


def _first_locked(host: ShardHost, views: list[MessageView]) -> MessageView | None:
    """Of the examined messages, the first of a group that has others waiting behind it."""
    for view in views:
        if view.state in (State.IN_FLIGHT, State.DELAYED, State.OWED) and host.shard.group_waiting(view.slot) > 1:
            return view
    return None


async def _group_name(host: ShardHost, group: BusyGroup, view: MessageView | None) -> str:
    """The name of a group: from its first message, or from a record while the log has it. Empty if it is not known."""
    if view is not None:
        peeked = await read_view(host, view)
        if peeked.group:
            return peeked.group
    number = group.position >> 16
    if host.log.is_cold(number):
        await asyncio.get_running_loop().run_in_executor(None, host.log.warm, [number])
    try:
        frame: Frame = host.log.frame(number)
    except LogError:
        return ""
    w6 = frame.words()[(group.position & 0xFFFF) * 8 + 6]
    return decode(part_of(frame.variable, w6)).group

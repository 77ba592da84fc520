"""What an operator does to one message on the shard that has it: delete, edit, retry."""

from __future__ import annotations

import asyncio

from batonq.core.payload import encode_payload
from batonq.core.records import State
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.state.columns import NIL
from batonq.errors import InvalidInput, LogError, MessageGone, Unavailable
from batonq.node.jobs.redrive_filter import EditImpossible, decode_pick
from batonq.node.messages.log_reader import read_message
from batonq.node.messages.peek import first_after, warm
from batonq.node.shard_host.host import ShardHost, committed

MOVES_MAX = 8
SETTLED_S = 2.0
LOOK_S = 0.02
READS_MAX = 3  # a message may be carried forward in the log while it is read


async def delete_message(host: ShardHost, queue: int, sequence: int) -> None:
    """Raises MessageGone, MessageHeld."""
    slot = await _slot_of(host, queue, sequence)
    host.run(host.shard.delete_message, queue, slot, sequence, host.admit())
    await _done(host)


async def retry_message(host: ShardHost, queue: int, sequence: int, to: Destination | None) -> None:
    """Raises MessageGone, MessageHeld, JobConflict, InvalidInput, OverLimit, and Unavailable if the message was to be
    moved and has come back.
    """
    for _ in range(MOVES_MAX):
        slot = await _slot_of(host, queue, sequence)
        moves = to is not None or host.shard.state_at(slot) == State.DEAD
        host.run(host.shard.retry_message, queue, slot, sequence, to, host.admit(adds=True))
        await _done(host)
        if not moves or not await _came_back(host, slot, sequence):
            return
    raise Unavailable(
        "The queue that the message would return to has refused it: it is full, or has been changed or deleted. Retry "
        "later."
    )


async def _came_back(host: ShardHost, slot: int, sequence: int) -> bool:
    """Whether a message that was moved is here again. A FIFO queue that grows refuses messages whose group another of
    its shards has by now, and the next attempt goes there. A move that takes long is not waited for.
    """
    for _ in range(round(SETTLED_S / LOOK_S)):
        if not host.serving or not host.shard.has(slot, sequence):
            return False
        if host.shard.state_at(slot) != State.OWED:
            return True
        await asyncio.sleep(LOOK_S)
    return False


async def edit_message(host: ShardHost, queue: int, sequence: int, edit: str) -> None:
    """`edit` is as redrive_filter.py encodes it. Raises MessageGone, MessageHeld, InvalidInput."""
    pick = decode_pick(edit)
    for _ in range(READS_MAX):
        slot = await _slot_of(host, queue, sequence)
        await committed(host)
        await warm(host, host.shard.view(slot))
        if not host.shard.has(slot, sequence):
            continue
        try:
            payload = read_message(host.shard, host.log, host.shard.view(slot))
        except LogError:
            continue
        try:
            changed = encode_payload(pick.changed(payload))
        except EditImpossible as problem:
            raise InvalidInput(f"The message cannot be changed like this: {problem}.") from None
        host.run(host.shard.edit_message, queue, slot, sequence, changed, host.admit(adds=True))
        await _done(host)
        return
    raise Unavailable("The message cannot be read at the moment. Retry.")


async def _slot_of(host: ShardHost, queue: int, sequence: int) -> int:
    slot = await first_after(host, queue, sequence - 1)
    if slot == NIL or host.shard.sequence_at(slot) != sequence:
        raise MessageGone
    return slot


async def _done(host: ShardHost) -> None:
    if host.shard.woken:
        host.polls.woken()
    await committed(host)

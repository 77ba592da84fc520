"""What an operator does to one message on the shard that has it: delete, edit, retry."""

from __future__ import annotations

from batonq.core.payload import encode_payload
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.state.columns import NIL
from batonq.errors import InvalidInput, LogError, MessageGone, Unavailable
from batonq.node.jobs.redrive_filter import EditImpossible, decode_pick
from batonq.node.messages.log_reader import read_message
from batonq.node.messages.peek import first_after, warm
from batonq.node.shard_host.host import ShardHost, committed

READS_MAX = 3  # a message may be carried forward in the log while it is read


async def delete_message(host: ShardHost, queue: int, sequence: int) -> None:
    """Raises MessageGone, MessageHeld."""
    slot = await _slot_of(host, queue, sequence)
    host.run(host.shard.delete_message, queue, slot, sequence, host.admit())
    await _done(host)


async def retry_message(host: ShardHost, queue: int, sequence: int, to: Destination | None) -> None:
    """Raises MessageGone, MessageHeld, JobConflict, InvalidInput, OverLimit."""
    slot = await _slot_of(host, queue, sequence)
    host.run(host.shard.retry_message, queue, slot, sequence, to, host.admit(adds=True))
    await _done(host)


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

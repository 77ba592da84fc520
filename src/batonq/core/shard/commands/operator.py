"""Commands of an operator, who names messages instead of holding receipts: delete, edit, retry.

A message that a consumer holds, or that is being moved to another queue, is left alone.
"""

from __future__ import annotations

from typing import NamedTuple

from batonq.core.records import CARRIED_PREFIX, EDITED_PREFIX, EDITING_VERSION, Reason, State, Type, skip
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.returns import Returns
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_search import QueueSearch
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import InvalidInput, MessageGone, MessageHeld, OverLimit, QueuePaused

_DELAYED, _IN_FLIGHT, _OWED, _DEAD = map(int, (State.DELAYED, State.IN_FLIGHT, State.OWED, State.DEAD))


class Destination(NamedTuple):
    """The queue that a dead letter returns to."""

    queue: int
    shard: int
    spread: str = ""  # its shards if it has several, see spread.py


class OperatorCommands:
    def __init__(
        self,
        messages: Messages,
        expiry: Expiry,
        search: QueueSearch,
        records: MessageRecords,
        returns: Returns,
        arrivals: Arrivals,
        transfers: Transfers,
        jobs: JobBook,
    ) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.expiry = expiry
        self.search = search
        self.records = records
        self.returns = returns
        self.arrivals = arrivals
        self.transfers = transfers
        self.jobs = jobs

    def delete_message(self, number: int, slot: int, sequence: int, now: int) -> None:
        """Raises MessageGone, MessageHeld."""
        now = self.expiry.begin(now)
        queue = self._queue_of(number, slot, sequence)
        self.delete(queue, slot, now)

    def edit_message(self, number: int, slot: int, sequence: int, payload: bytes, now: int) -> None:
        """Replace the content of a message. `payload` is the whole new payload, with the message's lineage.

        Raises MessageGone, MessageHeld.
        """
        now = self.expiry.begin(now)
        queue = self._queue_of(number, slot, sequence)
        if self.columns.state[slot] == _DELAYED:
            self.journal.use_format(EDITING_VERSION)
        self.edit(queue, slot, payload, 0, now)

    def retry_message(self, number: int, slot: int, sequence: int, to: Destination | None, now: int) -> None:
        """Let a message be delivered now.

        With a destination, the message is moved there: a dead letter returns to its source queue. A DEAD message
        starts again in its own queue. A delay ends; if the message is delayed because its dead-letter queue refused
        it, the transfer is tried again. Raises MessageGone, MessageHeld, JobConflict, InvalidInput, OverLimit.
        """
        now = self.expiry.begin(now)
        queue = self._queue_of(number, slot, sequence)
        columns = self.columns
        state = columns.state[slot]
        if to is not None:
            self._move(queue, slot, self.transfers.place_of(slot, to.queue, to.shard, to.spread), to.queue, now)
        elif state == _DEAD:
            # A FIFO group stays on this shard while it has a message here.
            own = self.journal.number
            shard = own if queue.fifo else self.transfers.place_of(slot, number, own, queue.policy.spread)
            self._move(queue, slot, shard, number, now)
        elif state == _DELAYED and columns.doomed[slot]:
            self.returns.retry_one(slot, now)
        elif state == _DELAYED:
            position = self.messages.write(Type.RETURNED, number, slot, now, until=now, reason=Reason.OPERATOR)
            self.records.on_returned(queue, slot, now, now, Reason.OPERATOR, position, "", "")

    def _queue_of(self, number: int, slot: int, sequence: int) -> QueueState:
        """The queue of a message that nothing else is done to now."""
        queue = self.messages.queue_state(number)
        if not self.search.stands(queue, slot, sequence):
            raise MessageGone
        state = self.columns.state[slot]
        if state == _IN_FLIGHT:
            holder = self.messages.holders.get(slot, "") or "A consumer"
            raise MessageHeld(f"{holder} holds the message. Retry when the lease has ended.")
        if state == _OWED:
            raise MessageHeld("The message is being moved to another queue. Retry when the move has ended.")
        return queue

    def _move(self, queue: QueueState, slot: int, shard: int, to: int, now: int) -> None:
        self.jobs.require_none_on(queue.number)
        if shard == self.journal.number and to != queue.number:
            size = self.columns.extent[slot] >> 32
            verdict = self.arrivals.acceptance(self.queues.get(to), queue.fifo, size)
            if verdict == Reason.REFUSED_PAUSED:
                raise QueuePaused("Sends to the queue that the message would return to are paused. Resume them first.")
            if verdict == Reason.REFUSED_FULL:
                raise OverLimit("The queue that the message would return to is full. Retry later.")
            if verdict == Reason.REFUSED_NO_QUEUE:
                raise InvalidInput("The queue that the message would return to does not exist.")
            if verdict == Reason.REFUSED_TYPE:
                raise InvalidInput("The message can only return to a queue of the same type (standard or FIFO).")
        self.transfers.owe(slot, shard, to, Reason.REDRIVE, now)

    # --- records, for jobs too ---------------------------------------------------------------------------

    def delete(self, queue: QueueState, slot: int, now: int) -> None:
        self.messages.write(Type.DELETED, queue.number, slot, now, reason=Reason.OPERATOR)
        self.records.on_deleted(queue, slot, now, Reason.OPERATOR)

    def edit(self, queue: QueueState, slot: int, payload: bytes, key: int, now: int) -> None:
        """Write the new payload of a message. `key` is that of the job that changes it; 0: no job."""
        w6 = self.frame.put(EDITED_PREFIX.pack(key) + self.messages.carried_prefix(slot) + payload)
        columns = self.columns
        position = self.messages.write(
            Type.EDITED, queue.number, slot, now, until=columns.until[slot], w6=w6, auxiliary=columns.expires[slot]
        )
        extent = skip(w6, EDITED_PREFIX.size + CARRIED_PREFIX.size)
        self.messages.on_edited(queue, slot, key, position, extent, payload)

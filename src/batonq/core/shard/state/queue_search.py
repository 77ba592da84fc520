"""Finding a message in a queue's arrival order without walking there from the head."""

from __future__ import annotations

from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState

SEEK_STEP = 10_000  # messages per step of a walk, about a millisecond
PROBES = 512
FAR = 2 * PROBES  # distance above which probing for a nearer start pays off
_GOLDEN = 0x9E3779B1  # 2**32 divided by the golden ratio: its multiples spread evenly, whatever pattern slots have


class QueueSearch:
    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.columns = messages.columns

    def stands(self, queue: QueueState, slot: int, sequence: int) -> bool:
        """Whether the message that was seen in this slot is still there."""
        columns = self.columns
        return (
            slot < columns.used
            and columns.sequence[slot] == sequence
            and columns.queue[slot] == queue.number
            and bool(columns.state[slot])
        )

    def near(self, queue: QueueState, sequence: int) -> int:
        """A message of the queue with `sequence` or a slightly lower one; the head if no probe finds any.

        The search probes PROBES slots spread over all slots, so about 1 in PROBES of the messages remains to be walked.
        """
        columns = self.columns
        best = queue.head
        if best == NIL or queue.messages <= PROBES or columns.sequence[best] >= sequence:
            return best
        sequences, queues, states, used = columns.sequence, columns.queue, columns.state, columns.used
        newest = 0
        for probe in range(PROBES):
            slot = (probe * _GOLDEN & 0xFFFFFFFF) * used >> 32
            if newest < sequences[slot] <= sequence and queues[slot] == queue.number and states[slot]:
                best, newest = slot, sequences[slot]
        return best

    def seek(self, number: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> tuple[int, bool]:
        """Do one step towards the first message after `after_sequence`. Returns (its slot or NIL, True) when found,
        otherwise (the slot reached, False).

        To continue a walk, pass the slot that the last step reached and the sequence in it.
        """
        queue = self.messages.queue_state(number)
        columns = self.columns
        sequences, following = columns.sequence, columns.queue_next
        if queue.tail == NIL or sequences[queue.tail] <= after_sequence:
            return NIL, True
        if not self.stands(queue, slot, sequence):
            slot = self.near(queue, after_sequence)
        elif after_sequence - sequence > FAR:
            nearer = self.near(queue, after_sequence)
            slot = nearer if sequence < sequences[nearer] <= after_sequence else slot
        for _ in range(SEEK_STEP):
            if slot == NIL or sequences[slot] > after_sequence:
                break
            slot = following[slot]
        return slot, slot == NIL or sequences[slot] > after_sequence

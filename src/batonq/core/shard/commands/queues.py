"""Commands about a queue or the whole shard: its owner, a queue's policy, closing and purging a queue."""

from __future__ import annotations

from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, State, Type
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.fanout import FanOut
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.schedule_book import ScheduleBook


class QueueCommands:
    def __init__(self, messages: Messages, expiry: Expiry, schedules: ScheduleBook, fanout: FanOut) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.expiry = expiry
        self.schedules = schedules
        self.fanout = fanout

    def take_ownership(self, epoch: int, base_ms: int, grace_ms: int) -> None:
        """Write the first record of a new owner. Running leases are extended by `grace_ms`."""
        assert epoch > self.journal.epoch, "an owner's epoch is above every one before"
        base_ms = max(base_ms, self.journal.last_time_ms)
        self.frame.add(Type.EPOCH, epoch, base_ms, base_ms, grace_ms, 0, 0, self.journal.format)
        self.messages.on_epoch(epoch, base_ms, grace_ms)
        self.fanout.unlock_all()

    def set_policy(self, policy: QueuePolicy, now: int) -> None:
        now = self.expiry.begin(now)
        w6 = self.frame.put(policy.encode())
        self.frame.add(Type.POLICY_SET | policy.queue << 32, policy.version, now, 0, 0, 0, w6, 0)
        self.messages.on_policy(policy, now)

    def close_queue(self, number: int, version: int, now: int) -> None:
        """Close a deleted queue: it accepts no more commands. `purge` then removes its messages."""
        now = self.expiry.begin(now)
        queue = self.messages.queue_state(number)
        self.frame.add(Type.QUEUE_CLOSED | number << 32, version, now, 0, 0, 0, 0, 0)
        self.messages.on_closed(queue)
        self.schedules.queue_closed(number)

    def purge(self, number: int, now: int, through: int | None = None) -> tuple[int, bool]:
        """Do one step of a purge: remove a bounded number of messages, up to sequence `through` (None: all
        messages).

        Returns the number of removed messages and whether the purge is complete; call again until it is. If the queue
        had no messages when its purge began, `through` is 0: nothing is removed, and the purge is complete.
        """
        now = self.expiry.begin(now)
        queue = self.queues[number]
        columns = self.columns
        if through is None:
            through = self.journal.next_sequence - 1
        slot = queue.head
        survivor = steps = 0
        while slot != NIL and columns.sequence[slot] <= through and steps < self.journal.limits.purge_step_max:
            survivor = columns.sequence[slot] + 1
            if columns.state[slot] != State.OWED:  # OWED messages stay, so they must not use up the step
                steps += 1
            slot = columns.queue_next[slot]
        final = slot == NIL or columns.sequence[slot] > through
        before = queue.deleted
        w0 = Type.QUEUE_PURGED | Reason.PURGED << 24 | number << 32
        self.frame.add(w0, survivor, now, int(final), steps, through + 1, 0, 0)
        self.messages.on_purged(queue, survivor, now, final, through + 1)
        return queue.deleted - before, final

"""What all parts of a shard share: the open frame, the time, the next sequence, the owner's epoch."""

from __future__ import annotations

from batonq.core.limits import ShardLimits
from batonq.core.open_frame import OpenFrame
from batonq.core.policy import QueuePolicy
from batonq.core.records import PACING_VERSION, PLAIN_VERSION, SPREAD_VERSION


class Journal:
    def __init__(self, number: int, limits: ShardLimits) -> None:
        self.number = number  # of the shard
        self.limits = limits
        self.frame = OpenFrame()
        self.epoch = 0
        self.format = PLAIN_VERSION  # format version of the frames that this shard writes, see records.py
        self.next_sequence = 1
        self.last_time_ms = 0
        self.before_base = 0  # recovery: records of unknown messages are skipped until the Base of this first frame

    def use_format(self, version: int) -> None:
        """Write the frames from now on in this version or a later one."""
        self.format = max(self.format, version)

    def note_format(self, spread: str) -> None:
        """Raise the frame format if the state now concerns a queue on several shards, that is if `spread` is not
        empty.
        """
        if spread:
            self.use_format(SPREAD_VERSION)

    def note_policy(self, policy: QueuePolicy) -> None:
        """Raise the frame format if a queue's policy needs that."""
        self.note_format(policy.spread or policy.dead_letter_spread)
        if policy.is_restricted:
            self.use_format(PACING_VERSION)

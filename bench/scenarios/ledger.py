"""The sent and received messages, one by one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Numbers are assigned from 0; each is acknowledged once by the server, and received at least once."""

    sent: int = 0  # acknowledged by the server
    received: int = 0  # for the first time
    doubled: int = 0
    disordered: int = 0
    strange: int = 0  # never sent
    bytes: int = 0
    seen: bytearray = field(default_factory=bytearray)
    steps: dict[int, int] = field(default_factory=dict)  # entity → its last received event
    sends_s: array[float] = field(default_factory=lambda: array("d"))  # from due to acknowledged, one per request
    waits_s: dict[int, array[float]] = field(default_factory=dict)  # level → from due to received, one per message

    @property
    def lost(self) -> int:
        return self.sent - self.received

    def number(self, count: int) -> int:
        """Reserve new numbers and return the first."""
        first = len(self.seen)
        self.seen.extend(bytes(count))
        return first

    def take(self, number: int, level: int, wait_s: float) -> bool:
        """Whether it is the first time."""
        if not 0 <= number < len(self.seen):
            self.strange += 1
            return False
        if self.seen[number]:
            self.doubled += 1
            return False
        self.seen[number] = 1
        self.received += 1
        waits = self.waits_s.get(level)
        if waits is None:
            waits = self.waits_s[level] = array("d")
        waits.append(wait_s)
        return True

    def step(self, entity: int, event: int) -> None:
        """The events of an entity arrive one after another, without gaps."""
        if event != self.steps.get(entity, -1) + 1:
            self.disordered += 1
        self.steps[entity] = event


def quantile_ms(seconds: array[float], share: float) -> float:
    if not seconds:
        return 0.0
    ordered = sorted(seconds)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3

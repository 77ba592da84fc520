"""The checkers: each reads a history and the ledger, and reports what must not have happened."""

from __future__ import annotations

from sim.checks import conservation, delay, fifo, leases, pausing, schedules, total
from sim.checks.evidence import Evidence, QueueFacts
from sim.history import Violation

CHECKERS = {
    "total-queue": total.check,
    "lease-exclusivity": leases.check,
    "fifo": fifo.check,
    "conservation": conservation.check,
    "delay": delay.check,
    "pausing": pausing.check,
    "schedules": schedules.check,
}


def check_all(evidence: Evidence) -> list[Violation]:
    return [Violation(name, text, words) for name, checker in CHECKERS.items() for text, words in checker(evidence)]


__all__ = ["CHECKERS", "Evidence", "QueueFacts", "check_all"]

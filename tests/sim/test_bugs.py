"""Planted bugs: each is found within a few seeds, by the checker that is there for it."""

from __future__ import annotations

import pytest

from batonq.sim.bugs import BUGS, planted
from batonq.sim.disk import SimulatedDisk
from batonq.sim.mended_bugs import MENDED_BUGS
from batonq.sim.run import simulate

SEEDS_MAX = 30

# The first seed that is tried, and the checkers that must find the bug in some seed. A log that lost what it had
# committed often refuses to open, which is a finding of its own.
FOUND_BY = {
    "no-fsync": (20, {"total-queue"}),
    "release-before-commit": (2, {"total-queue"}),
    "epoch-not-compared": (1, {"lease-exclusivity"}),
    "cursor-not-advanced": (7, {"conservation"}),
    "delay-ignored": (1, {"delay"}),
    "keys-forgotten": (2, {"delay", "total-queue"}),
    "numbers-forgotten": (1, {"total-queue"}),
    "group-not-locked": (1, {"fifo"}),
    "group-moved-early": (1, {"fifo"}),
    "numbers-begin-anew": (1, {"fifo"}),
}

# Bugs that were in the product, put back: a seed that finds each, and the checkers that do.
MENDED = {
    "poll-wedges-shard": (12, {"exception"}),
    "full-tables-stay-full": (9, {"liveness"}),
    "refusals-forgotten": (7, {"conservation", "total-queue"}),
    "waiters-overflow-frame": (64, {"exception"}),
    "committed-replies-not-told": (2, {"liveness"}),
    "failed-host-hangs": (69, {"liveness"}),
    "woken-queue-forgotten": (4, {"liveness"}),
    "duplicates-not-remembered": (4, {"total-queue"}),
    "purge-of-nothing-is-of-all": (2, {"total-queue"}),
    "deleted-queues-leak": (9, {"audit"}),
}


def test_every_bug_has_a_checker() -> None:
    assert FOUND_BY.keys() == BUGS.keys() - MENDED_BUGS.keys()
    assert MENDED.keys() == MENDED_BUGS.keys()


@pytest.mark.parametrize("bug", sorted(MENDED))
def test_a_bug_that_was_mended_is_found_when_it_is_put_back(bug: str) -> None:
    seed, checkers = MENDED[bug]
    assert not simulate(seed).violations
    assert checkers <= simulate(seed, bug=bug).checkers


@pytest.mark.parametrize("bug", sorted(FOUND_BY))
def test_a_planted_bug_is_found(bug: str) -> None:
    first, checkers = FOUND_BY[bug]
    missing = set(checkers)
    for seed in range(first, first + SEEDS_MAX):
        missing -= simulate(seed, bug=bug).checkers
        if not missing:
            return
    pytest.fail(f"{bug} was not found by {', '.join(sorted(missing))} in {SEEDS_MAX} seeds")


def test_a_bug_is_gone_after_its_run() -> None:
    before = SimulatedDisk.fdatasync
    with planted("no-fsync"):
        assert SimulatedDisk.fdatasync is not before
    assert SimulatedDisk.fdatasync is before

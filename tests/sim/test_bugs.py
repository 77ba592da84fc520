"""Planted bugs: each is found within a few seeds, by the checker that is there for it."""

from __future__ import annotations

import pytest

from sim.bugs import BUGS, planted
from sim.disk import SimulatedDisk
from sim.mended_bugs import MENDED_BUGS
from sim.run import simulate

SEEDS_MAX = 30

# The first seed that is tried, and the checkers that must find the bug in some seed. A log that lost what it had
# committed often refuses to open, which is a finding of its own.
FOUND_BY = {
    "no-fsync": (253, {"total-queue"}),
    "release-before-commit": (2, {"total-queue"}),
    "epoch-not-compared": (3, {"lease-exclusivity"}),
    "cursor-not-advanced": (4, {"conservation"}),
    "delay-ignored": (3, {"delay"}),
    "pause-ignored": (8, {"pausing"}),
    "firing-in-two-frames": (6, {"schedules"}),
    "replay-without-numbers": (41, {"replays"}),
    "reader-commit-not-awaited": (40, {"readers"}),
    "reader-positions-forgotten": (5, {"readers"}),
    "retained-front-dropped": (5, {"audit"}),
    "objects-of-moved-messages-swept": (31, {"payloads"}),
    "failed-writes-count-as-stored": (31, {"payloads"}),
    "nothing-swept": (31, {"payloads"}),
    "keys-forgotten": (4, {"delay", "total-queue"}),
    "numbers-forgotten": (3, {"total-queue"}),
    "group-not-locked": (3, {"fifo"}),
    "group-moved-early": (3, {"fifo"}),
    "numbers-begin-anew": (3, {"fifo"}),
    # In the way of a command to its shard and back:
    "outcomes-permuted": (3, {"total-queue"}),
    "group-left-half-done": (2, {"liveness"}),
    "arrivals-during-an-append-forgotten": (2, {"liveness"}),
    "failed-commit-told-as-success": (2, {"total-queue"}),
    "splitter-drops-a-message": (3, {"total-queue"}),
    "splitter-sends-a-message-twice": (32, {"total-queue"}),
    "splitter-permutes-answers": (3, {"total-queue"}),
    "joined-results-in-the-wrong-places": (3, {"total-queue"}),
    "refused-messages-acknowledged": (3, {"total-queue"}),
    "numbers-of-batches-begin-anew": (3, {"fifo"}),
}

# Bugs that were in the product, put back: a seed that finds each, and the checkers that do.
MENDED = {
    "poll-wedges-shard": (12, {"exception"}),
    "full-tables-stay-full": (4, {"liveness"}),
    "refusals-forgotten": (7, {"conservation", "total-queue"}),
    "waiters-overflow-frame": (34, {"exception"}),
    "committed-replies-not-told": (69, {"liveness"}),
    "failed-host-hangs": (19, {"liveness"}),
    "woken-queue-forgotten": (4, {"liveness"}),
    "duplicates-not-remembered": (7, {"total-queue"}),
    "purge-of-nothing-is-of-all": (7, {"total-queue"}),
    "deleted-queues-leak": (21, {"audit"}),
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

"""Bugs planted into a cluster: each is found within a hundred seeds, by a checker that is there for it."""

from __future__ import annotations

import pytest

from sim.cluster.bugs import CLUSTER_BUGS
from sim.cluster.run import simulate_cluster

SEEDS_MAX = 100

# The first seed that is tried, and the checkers of which one must find the bug in some seed. An owner that takes
# another's frame for its own has a log that fits no other: that it cannot be read is a finding too.
FOUND_BY = {
    "append-epoch-not-checked": (77, {"owners", "total-queue", "recovery", "liveness"}),
    "release-before-commit": (5, {"total-queue"}),
    "lease-epoch-ignored": (17, {"owners"}),
    "epoch-not-compared": (2, {"lease-exclusivity"}),
    # When a shard gets a new owner:
    "waiting-copies-forgotten": (16, {"copies"}),
    "schedules-fire-again": (40, {"schedules"}),
    "reader-positions-lost": (50, {"readers"}),
    # In large payloads:
    "objects-of-moved-messages-swept": (13, {"payloads"}),
    # In calls between nodes:
    "forwarded-outcomes-permuted": (1, {"exception"}),
    "forwarded-priorities-lost": (9, {"total-queue"}),
    "forwarded-delays-lost": (2, {"delay"}),
    "forwarded-names-lost": (1, {"total-queue"}),
    "forwarded-epochs-lost": (2, {"total-queue"}),
    "gathered-commands-lost": (2, {"liveness"}),
    "answers-not-remembered": (15, {"total-queue"}),
    "retry-goes-home": (1279, {"total-queue"}),
}

# Bugs that were in the product, put back: a seed that finds each, and the checkers that do.
MENDED = {
    "reconnect-counts-as-not-sent": (35, {"total-queue"}),
    "restarted-node-counts-as-not-asked": (15, {"total-queue"}),
}


def test_every_bug_has_a_checker() -> None:
    assert FOUND_BY.keys() | MENDED.keys() == CLUSTER_BUGS.keys()


@pytest.mark.parametrize("bug", sorted(MENDED))
def test_a_bug_that_was_mended_is_found_when_it_is_put_back_into_a_cluster(bug: str) -> None:
    seed, checkers = MENDED[bug]
    assert not simulate_cluster(seed).violations
    assert checkers <= simulate_cluster(seed, bug=bug).checkers


@pytest.mark.parametrize("bug", sorted(FOUND_BY))
def test_a_bug_planted_into_a_cluster_is_found(bug: str) -> None:
    first, checkers = FOUND_BY[bug]
    for seed in range(first, first + SEEDS_MAX):
        if simulate_cluster(seed, bug=bug).checkers & checkers:
            return
    pytest.fail(f"{bug} was not found in {SEEDS_MAX} seeds")

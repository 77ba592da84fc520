"""Bugs planted into a cluster: each is found within the first hundred seeds, by a checker that is there for it."""

from __future__ import annotations

import pytest

from batonq.sim.cluster.bugs import CLUSTER_BUGS
from batonq.sim.cluster.run import simulate_cluster

SEEDS_MAX = 100

# An owner that takes another's frame for its own has a log that fits no other: that it cannot be read is a finding too.
FOUND_BY = {
    "append-epoch-not-checked": {"owners", "total-queue", "recovery", "liveness"},
    "release-before-commit": {"total-queue"},
    "lease-epoch-ignored": {"owners"},
    "epoch-not-compared": {"lease-exclusivity"},
}

# Bugs that were in the product, put back: a seed that finds each, and the checkers that do.
MENDED = {
    "reconnect-counts-as-not-sent": (35, {"total-queue"}),
    "restarted-node-counts-as-not-asked": (21, {"total-queue"}),
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
    for seed in range(1, SEEDS_MAX + 1):
        if simulate_cluster(seed, bug=bug).checkers & FOUND_BY[bug]:
            return
    pytest.fail(f"{bug} was not found in {SEEDS_MAX} seeds")

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


def test_every_bug_has_a_checker() -> None:
    assert FOUND_BY.keys() == CLUSTER_BUGS.keys()


@pytest.mark.parametrize("bug", sorted(CLUSTER_BUGS))
def test_a_bug_planted_into_a_cluster_is_found(bug: str) -> None:
    for seed in range(1, SEEDS_MAX + 1):
        if simulate_cluster(seed, bug=bug).checkers & FOUND_BY[bug]:
            return
    pytest.fail(f"{bug} was not found in {SEEDS_MAX} seeds")

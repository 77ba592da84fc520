"""Simulations of topics: some seeds find nothing, and each planted bug is found within a few seeds."""

from __future__ import annotations

import pytest

from sim.topic_bugs import TOPIC_BUGS
from sim.topics import simulate_topics
from tests.support.profile import FULL

SEEDS = 12 if FULL else 4
SEEDS_MAX = 12
FOUND_BY = {
    "copies-overtake": {"fifo"},
    "refused-copies-dropped": {"copies"},
    "second-subscription-forgotten": {"copies"},
}


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_every_copy_of_a_published_message_arrives_once(seed: int) -> None:
    outcome = simulate_topics(seed)
    assert outcome.violations == [], outcome.summary
    assert outcome.acknowledged > 50


def test_a_seed_gives_the_same_run() -> None:
    assert simulate_topics(2, steps=40).digest == simulate_topics(2, steps=40).digest


@pytest.mark.parametrize("bug", sorted(TOPIC_BUGS))
def test_a_bug_planted_into_topics_is_found(bug: str) -> None:
    for seed in range(1, SEEDS_MAX + 1):
        if simulate_topics(seed, bug=bug).checkers & FOUND_BY[bug]:
            return
    raise AssertionError(f"{bug} was not found in {SEEDS_MAX} seeds")

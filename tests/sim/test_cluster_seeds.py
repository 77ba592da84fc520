"""Whole clusters under faults, a seed each: 240 in the full profile, a few in the fast one, two at a time."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from sim.cluster.run import simulate_cluster
from sim.run import Outcome
from tests.support.profile import FULL

SEEDS = 240 if FULL else 10
CHUNK = min(40, SEEDS)


def told(outcome: Outcome) -> str:
    violations = "\n  ".join(str(violation)[:2000] for violation in outcome.violations[:5])
    again = f"make sim SEED={outcome.seed} CLUSTER=1"
    return f"seed {outcome.seed} ({outcome.summary}), again with `{again}`:\n  {violations}"


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_is_violated_in_a_cluster(pool: ProcessPoolExecutor, first: int) -> None:
    outcomes = list(pool.map(simulate_cluster, range(first, first + CHUNK), chunksize=5))
    failed = [outcome for outcome in outcomes if outcome.violations]
    assert not failed, "\n".join(told(outcome) for outcome in failed)
    acknowledged = sum(bool(outcome.acknowledged) for outcome in outcomes)
    assert acknowledged > len(outcomes) // 2, "simulations in which nothing happens show nothing"

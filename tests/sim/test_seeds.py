"""Whole nodes under faults, a seed each: 100 in the full profile, a few in the fast one, two at a time."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from sim.run import Outcome, simulate
from tests.support.profile import FULL

SEEDS = 100 if FULL else 10
CHUNK = 10


def told(outcome: Outcome) -> str:
    violations = "\n  ".join(str(violation)[:2000] for violation in outcome.violations[:5])
    return f"seed {outcome.seed} ({outcome.summary}), again with `make sim SEED={outcome.seed}`:\n  {violations}"


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_nothing_is_violated(pool: ProcessPoolExecutor, first: int) -> None:
    outcomes = list(pool.map(simulate, range(first, first + CHUNK)))
    failed = [outcome for outcome in outcomes if outcome.violations]
    assert not failed, "\n".join(told(outcome) for outcome in failed)
    assert all(outcome.acknowledged for outcome in outcomes), "a simulation in which nothing happens shows nothing"

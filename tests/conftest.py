"""What every suite shares: which suites are fast, and how hard the property tests look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
FAST_SUITES = {"core", "log", "node", "api", "golden"}

# No deadline: a shared machine is slow at times, and no test here measures time.
settings.register_profile(
    "full",
    max_examples=2000,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", settings.get_profile("full"), max_examples=100, stateful_step_count=30)
settings.load_profile(os.environ.get("BATON_TEST_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = item.path.relative_to(TESTS).parts[0]
        item.add_marker(pytest.mark.fast if suite in FAST_SUITES else pytest.mark.slow)

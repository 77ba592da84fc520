"""What every suite shares: which suites are fast, and how hard the property tests look."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.profile import PROFILE

TESTS = Path(__file__).parent
FAST_SUITES = {
    *("core", "sim", "log", "node", "api", "golden", "rest", "client", "dashboard", "pipeline", "scaling"),
    *("cloudwatch", "monitoring", "telemetry", "web", "worker"),
}
# Other programs as clients, and many requests or simulations: seconds each.
SLOW_FILES = {
    "test_aws_cli.py",
    "test_buffer_outage.py",
    "test_bugs.py",
    "test_celery.py",
    "test_cluster.py",
    "test_cluster_expressions.py",
    "test_cluster_bugs.py",
    "test_dead_letter_jobs.py",
    "test_determinism.py",
    "test_embedded.py",
    "test_executors.py",
    "test_fuzz.py",
    "test_generated.py",
    "test_jetstream.py",
    "test_ingest_kills.py",
    "test_kills.py",
    "test_links.py",
    "test_patterns.py",
    "test_postgres.py",
    "test_processes.py",
    "test_schema.py",
    "test_served.py",
    "test_server_kills.py",
    "test_spark_kills.py",
    "test_sqs_source.py",
    "test_store_checks.py",
}

# No deadline: a shared machine is slow at times, and no test here measures time. The same examples each time: whoever
# looks for new ones says `search`.
settings.register_profile(
    "full",
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", settings.get_profile("full"), max_examples=50, stateful_step_count=30)
settings.register_profile("search", settings.get_profile("full"), derandomize=False)
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fast = item.path.relative_to(TESTS).parts[0] in FAST_SUITES and item.path.name not in SLOW_FILES
        item.add_marker(pytest.mark.fast if fast else pytest.mark.slow)

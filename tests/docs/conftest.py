"""What the pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.jobs import Jobs
from tests.support.spark import prepare


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Pages that start Spark start it soon, or use one that runs."""
    prepare(tmp_path_factory.mktemp("first"))
    running = Jobs()
    yield running
    running.close()

"""What the pages share."""

from __future__ import annotations

import pytest

from tests.support.spark import prepare


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pages that start Spark start it soon."""
    prepare(tmp_path_factory.mktemp("first"))

"""A development server per module, and a shell that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import Shell
from tests.system.process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def shell(server: ServerProcess, tmp_path: Path) -> Shell:
    return Shell(BATON_URL=server.url, XDG_CONFIG_HOME=str(tmp_path / "config"))


@pytest.fixture
def nowhere(tmp_path: Path) -> Shell:
    """A shell without a server."""
    return Shell(XDG_CONFIG_HOME=str(tmp_path / "config"))

"""Who can read a data directory: the server's user only, also one that an older release made for a group."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.node.node import Node
from batonq.node.operations.admin_token import load_or_make_token
from batonq.node.settings import Settings


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def use(data: Path) -> None:
    """A server runs there, and makes a key."""

    async def work() -> None:
        node = Node(Settings(data=str(data)))
        await node.start()
        load_or_make_token(str(data), node.world.random_bytes)
        await node.catalog.change(Catalog.put_key, f"BATON{uuid4().hex[:8]}", "the-secret", "0" * 12)
        await node.stop()

    asyncio.run(work())


def modes(data: Path) -> dict[str, str]:
    """Of everything that others could get at."""
    found = {str(path.relative_to(data.parent)): stat.S_IMODE(path.stat().st_mode) for path in [data, *data.rglob("*")]}
    return {name: oct(mode) for name, mode in found.items() if mode & 0o077}


def test_a_new_data_directory_is_private(tmp_path: Path) -> None:
    data = tmp_path / "parent" / "data"
    use(data)
    assert any(b"the-secret" in path.read_bytes() for path in (data / "catalog").iterdir() if path.is_file())
    assert modes(data) == {}
    assert stat.S_IMODE((tmp_path / "parent").stat().st_mode) == 0o700


def test_a_data_directory_of_an_older_release_becomes_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    use(data)
    token = data / "admin-token"
    for path in [data, *data.rglob("*")]:
        if path != token:
            path.chmod(0o750 if path.is_dir() else 0o640)
    assert modes(data)
    use(data)
    assert modes(data) == {}


def test_a_directory_that_somebody_made_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    other = data / "of-somebody-else"
    other.write_text("x")
    use(data)
    assert modes(data) == {"data": "0o755", "data/of-somebody-else": "0o644"}


def test_what_cannot_be_changed_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    use(data)
    (data / "identity").chmod(0o640)

    def refuse(path: str, mode: int) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "chmod", refuse)
    use(data)
    assert modes(data) == {"data/identity": "0o640"}

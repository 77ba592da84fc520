"""The replicated log over a far side in memory: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.conformance import LogConformance
from tests.log.fars import MemoryFar
from tests.log.fencing import FencingSuite, World
from tests.log.replicated import MirroredMaker
from tests.support.driven import Loop


class TestMirroredLog(LogConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> Iterator[MirroredMaker]:
        loop = Loop()
        maker = MirroredMaker(loop, MemoryFar(), tmp_path)
        yield maker
        maker.close()
        loop.close()


class TestMirroredFencing(FencingSuite):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[World]:
        world = World(MemoryFar(), tmp_path)
        yield world
        world.close()

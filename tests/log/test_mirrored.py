"""The replicated log over a far side in memory: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.sim.far import FarLog, MemoryBackend
from tests.log.conformance import SHARD, LogConformance
from tests.log.replicated import MirroredMaker
from tests.support.driven import Loop


class MemoryFar:
    def __init__(self) -> None:
        self.far = FarLog(SHARD)

    async def backend(self) -> MemoryBackend:
        return MemoryBackend(self.far)


class TestMirroredLog(LogConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> Iterator[MirroredMaker]:
        loop = Loop()
        maker = MirroredMaker(loop, MemoryFar(), tmp_path)
        yield maker
        maker.close()
        loop.close()

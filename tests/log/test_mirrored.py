"""The replicated log over a far side in memory: conformance, and no time lost between two frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.log.frames import Frame
from batonq.log.replicated_log import MirroredLog
from tests.log.conformance import SHARD, LogConformance
from tests.log.fars import MemoryFar
from tests.log.fencing import FencingSuite, World
from tests.log.replicated import SMALL, MirroredMaker
from tests.support.doubles import double
from tests.support.driven import Loop
from tests.support.far_log import FarLog, MemoryBackend
from tests.support.logs import CLUSTER, next_frame


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


def test_the_far_side_has_the_next_frame_before_anything_else_has_its_turn(tmp_path: Path) -> None:
    happened: list[str] = []

    @double()
    class Watched(MemoryBackend):
        async def append(self, frame: Frame) -> None:
            happened.append(f"frame {frame.number}")
            await super().append(frame)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = await MirroredLog.open(Watched(FarLog(SHARD)), str(tmp_path), cluster=CLUSTER, settings=SMALL)
        over = loop.create_future()

        def done(error: BaseException | None) -> None:
            assert error is None
            happened.append(f"done with {log.next - 1}")
            loop.call_soon(happened.append, f"the turn after {log.next - 1}")
            if log.next < 4:
                log.append(next_frame(log), done)
            else:
                loop.call_soon(over.set_result, None)

        log.append(next_frame(log), done)
        await over
        log.close()
        await log.wait_closed()

    asyncio.run(main())
    assert happened == [
        "frame 1",
        *("done with 1", "frame 2", "the turn after 1"),
        *("done with 2", "frame 3", "the turn after 2"),
        "done with 3",
        "the turn after 3",
    ]

"""Rivals over a far side with all its vices: owners that come and go, whose requests are lost, late or unanswered.

Whatever happens: what was acknowledged is stored, once and in its order; what is stored was sent; each owner's frames
end where the next one's begin. A failure prints its seed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from batonq.errors import Fenced, LogError, Unavailable
from batonq.log.fencing import Pauses
from batonq.log.frames import Frame, parse
from batonq.log.replicated_log import MirroredLog
from tests.cluster.memory import run_simulated
from tests.log.conformance import SHARD
from tests.log.fencing import shut
from tests.log.replicated import SMALL
from tests.support.far_log import FarLog, MemoryBackend, Vice
from tests.support.logs import CLUSTER, next_frame

NODES = 3
STEPS = 60
QUICK = replace(SMALL, pauses=Pauses(0.0001, 0.001))
TROUBLES = [Vice.LOST, Vice.UNANSWERED, Vice.LATE, Vice.STALE, Vice.LEADERLESS]


class Rivals:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.far = FarLog(SHARD)
        self.directory = directory
        self.epoch = 0
        self.logs: dict[int, tuple[MirroredLog, int]] = {}  # with the epoch it appends under
        self.sent: dict[bytes, Frame] = {}
        self.acknowledged: list[Frame] = []
        self.fenced = 0

    def vice(self, what: str) -> Vice:
        return self.random.choice(TROUBLES) if self.random.random() < 0.3 else Vice.NONE

    async def step(self) -> None:
        node = self.random.randrange(NODES)
        if node not in self.logs:
            await self.begin(node)
        elif self.random.random() < 0.15:
            await self.crash(node)
        elif self.random.random() < 0.2:
            await asyncio.gather(*(self.append(other) for other in list(self.logs)))
        else:
            await self.append(node)

    async def begin(self, node: int) -> None:
        """Read to the end and write an epoch frame, as a new owner does. Leases may fail: rivals overlap freely."""
        try:
            log = await MirroredLog.open(
                MemoryBackend(self.far, self.vice), str(self.directory / str(node)), cluster=CLUSTER, settings=QUICK
            )
        except Unavailable:
            return
        self.epoch = max(self.epoch, log.tail_epoch) + 1
        self.logs[node] = (log, self.epoch)
        await self.append(node)

    async def append(self, node: int) -> None:
        log, epoch = self.logs[node]
        frame = next_frame(log, b"%d:%d:%d" % (node, epoch, len(self.sent)), epoch=epoch)
        self.sent[frame.digest] = frame
        outcome: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        log.append(frame, lambda error: None if outcome.done() else outcome.set_result(error))
        if self.random.random() < 0.1:
            await asyncio.sleep(0)
            await self.crash(node)
        error = await asyncio.wait_for(outcome, 30)
        if error is None:
            self.acknowledged.append(frame)
            return
        assert isinstance(error, LogError) and type(error).__name__ in ("Fenced", "Behind", "LogError"), error
        self.fenced += isinstance(error, Fenced)
        await self.crash(node)

    async def crash(self, node: int) -> None:
        if node in self.logs:
            log, _ = self.logs.pop(node)
            await shut(log)

    def check(self) -> None:
        stored = [parse(data) for data in self.far.stored]
        assert [frame.number for frame in stored] == list(range(1, len(stored) + 1))
        assert all(
            right.previous_digest == left.digest and right.epoch >= left.epoch for left, right in pairwise(stored)
        )
        digests = [frame.digest for frame in stored]
        assert all(self.sent[digest].variable == frame.variable for digest, frame in zip(digests, stored, strict=True))
        places = [digests.index(frame.digest) for frame in self.acknowledged]
        assert len(set(places)) == len(places)
        for node_log, _ in self.logs.values():
            assert list(node_log.frames(1)) == stored[: node_log.next - 1]


@pytest.mark.parametrize("seed", range(30))
def test_rivals_never_lose_or_double_what_was_acknowledged(seed: int, tmp_path: Path) -> None:
    async def run() -> None:
        rivals = Rivals(seed, tmp_path)
        for _ in range(STEPS):
            await rivals.step()
        rivals.far.deliver_late()
        rivals.check()
        assert len(rivals.acknowledged) > 5 and rivals.fenced
        for node in list(rivals.logs):
            await rivals.crash(node)

    run_simulated(run())

"""The log in memory, and ownership within one process."""

from __future__ import annotations

import asyncio

import pytest

from batonq.errors import DiskFull, LogError, OwnershipHeld
from batonq.log.interface import Log, Room
from batonq.testing import MemoryDirectory
from tests.log.conformance import SEGMENT_BYTES, SHARD, LogConformance
from tests.support.logs import append, next_frame
from tests.support.memory_log import MemoryLog


class MemoryMaker:
    durable = False

    def open(self) -> Log:
        return MemoryLog(SHARD, segment_bytes=SEGMENT_BYTES)

    def reopen(self, log: Log) -> Log:
        raise AssertionError("nothing to open again")

    def fail_next(self, log: Log) -> None:
        assert isinstance(log, MemoryLog)
        log.fail_next = LogError("the test says so")


class TestMemoryLog(LogConformance):
    @pytest.fixture
    def maker(self) -> MemoryMaker:
        return MemoryMaker()


def test_a_held_append_waits_for_its_release() -> None:
    log = MemoryLog(0)
    log.hold = True
    outcomes: list[BaseException | None] = []
    log.append(next_frame(log), outcomes.append)
    assert outcomes == [] and log.next == 1
    with pytest.raises(AssertionError, match="one append at a time"):
        log.append(next_frame(log), outcomes.append)
    log.release()
    assert outcomes == [None] and log.next == 2


def test_room_shrinks_to_the_reserve_and_comes_back() -> None:
    log = MemoryLog(0, segment_bytes=1_000, bytes_max=10_000)
    seen = [log.room()]
    while log.room() is not Room.NONE:
        append(log)
        seen.append(log.room())
    assert list(dict.fromkeys(seen)) == [Room.PLENTY, Room.RESERVE, Room.NONE]
    log.drop_front(log.next)
    assert log.room() is Room.PLENTY


def test_a_full_log_says_so() -> None:
    log = MemoryLog(0, bytes_max=1_000)
    outcomes: list[BaseException | None] = []
    log.append(next_frame(log, bytes(2_000)), outcomes.append)
    assert isinstance(outcomes[0], DiskFull)


def test_epochs_rise_and_a_second_owner_is_refused() -> None:
    ownership = MemoryDirectory()
    first = asyncio.run(ownership.acquire(1))
    with pytest.raises(OwnershipHeld, match="shard 1"):
        asyncio.run(ownership.acquire(1))
    assert asyncio.run(ownership.acquire(2)) > first
    asyncio.run(ownership.release(1))
    assert asyncio.run(ownership.acquire(1, 100)) == 101

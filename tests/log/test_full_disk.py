"""A full disk: sends can be refused in time, deletes still fit, and the log recovers by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batonq.errors import DiskFull
from batonq.log.file_log import FileLog
from batonq.log.interface import Room
from sim.disk import SimulatedDisk
from tests.support.doubles import double
from tests.support.logs import append, next_frame
from tests.support.simdisk import DIRECTORY, SMALL, Clock, open_log

SEGMENT = SMALL.segment_bytes


def room_of(log: FileLog) -> Room:
    return log.room()


def blocked_of(log: FileLog) -> str | None:
    return log._spare.blocked


def test_room_goes_from_plenty_to_the_reserve_to_none_and_back() -> None:
    disk = SimulatedDisk(capacity_bytes=4 * SEGMENT + 2_000)
    clock = Clock()
    log = open_log(disk, now_ms=clock)
    seen = []
    while room_of(log) is not Room.NONE:
        seen.append((log.room(), len(log.segments())))
        append(log, bytes(200))
        clock.ms += 1_000
        log.tick()
    changes: list[tuple[Room, int]] = list(dict.fromkeys(seen))
    assert changes == [
        (Room.PLENTY, 1),
        (Room.PLENTY, 2),
        (Room.PLENTY, 3),
        (Room.RESERVE, 4),
    ], "the fourth segment is the reserve: there is no room for a fifth"
    assert blocked_of(log)

    disk.capacity_bytes += SEGMENT
    log.tick()
    assert room_of(log) is Room.NONE, "not tried again within a second"
    clock.ms += 1_000
    log.tick()
    assert room_of(log) is Room.PLENTY and not blocked_of(log)
    append(log, bytes(3_000))


def test_in_the_reserve_there_is_room_for_many_deletes() -> None:
    disk = SimulatedDisk(capacity_bytes=3 * SEGMENT + 2_000)
    log = open_log(disk)
    while log.room() is Room.PLENTY:
        append(log, bytes(200))
    deletes = 0
    while log.room() is Room.RESERVE:
        append(log, count=1)
        deletes += 1
    assert deletes >= 20
    assert open_log(disk).next == log.next


def test_dropping_the_front_of_a_full_disk_makes_room_at_once() -> None:
    disk = SimulatedDisk(capacity_bytes=3 * SEGMENT + 2_000)
    log = open_log(disk)
    while log.room() is Room.PLENTY:
        append(log, bytes(200))
    assert log.room() is Room.RESERVE
    log.drop_front(log.segments()[1].first)
    assert log.room() is Room.PLENTY, "the dropped segment is the spare now"
    for _ in range(15):
        append(log, bytes(200))


def test_a_full_disk_does_not_keep_the_log_from_opening() -> None:
    disk = SimulatedDisk(capacity_bytes=3 * SEGMENT + 2_000)
    log = open_log(disk)
    while log.room() is not Room.NONE:
        append(log, bytes(100))
    disk.capacity_bytes -= disk.free("/")
    assert disk.free("/") == 0
    again = open_log(disk)
    assert again.next == log.next and again.room() is Room.NONE
    again.tick()
    assert again.segments()[0].first == 1


def test_a_torn_write_on_a_full_disk_is_cut_off_all_the_same() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    frame = append(log)
    torn = next_frame(log, bytes(1_000))
    path = f"{DIRECTORY}/segment-{1:020}.log"
    disk.replace(path, disk.read(path)[: frame.size] + torn.header + bytes(SEGMENT - frame.size - 80))
    disk.capacity_bytes -= disk.free("/")
    again = open_log(disk)
    assert again.next == 2
    assert again.torn is not None and again.torn.kept_in is None and again.torn.bytes == torn.size


def test_the_free_space_floor_is_left_alone() -> None:
    floor = 5 * SEGMENT
    settings = replace(SMALL, free_floor_bytes=floor)
    disk = SimulatedDisk(capacity_bytes=9 * SEGMENT)
    clock = Clock()
    log = open_log(disk, settings=settings, now_ms=clock)
    while log.room() is Room.PLENTY:
        append(log, bytes(200))
        log.tick()
        clock.ms += 1_000
    assert floor <= disk.free("/") < floor + SEGMENT


def test_a_frame_that_finds_no_room_is_refused_and_everything_before_it_stays() -> None:
    disk = SimulatedDisk(capacity_bytes=2 * SEGMENT + 1_000)
    log = open_log(disk)
    append(log, bytes(100))
    outcomes: list[BaseException | None] = []
    log.append(next_frame(log, bytes(2 * SEGMENT)), outcomes.append)
    assert isinstance(outcomes[0], DiskFull) and "Free disk space" in outcomes[0].message
    assert open_log(disk).next == 2


def test_a_disk_too_small_to_begin_says_so() -> None:
    disk = SimulatedDisk(capacity_bytes=SEGMENT - 1)
    with pytest.raises(DiskFull, match=f"cannot open the log in {DIRECTORY}"):
        open_log(disk)


def test_space_that_was_promised_but_is_not_there_leaves_nothing_behind() -> None:
    """Quotas and thin volumes refuse a write although the disk says that there is room."""

    @double()
    class Lying(SimulatedDisk):
        def free(self, path: str) -> int:
            return super().free(path) if path == "/" else 1 << 40

    disk = Lying(capacity_bytes=SEGMENT + SEGMENT // 2)
    log = open_log(disk)
    while log.room() is Room.PLENTY:
        append(log, bytes(200))
    assert room_of(log) is Room.RESERVE
    assert sorted(disk.listdir(DIRECTORY)) == ["committed", f"segment-{1:020}.log"]
    append(log, bytes(100))

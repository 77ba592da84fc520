"""Flipped bits: wherever one is, opening says which file, where, and what to do, and never drops a committed frame."""

from __future__ import annotations

from random import Random

import pytest

from batonq.errors import LogCorrupt
from batonq.log.file_log import FileLog
from batonq.log.frames import HEADER_BYTES
from sim.disk import SimulatedDisk
from tests.support.logs import append
from tests.support.simdisk import DIRECTORY, open_log

SEED = 20_240_607
BODY_FLIPS = 3_000


def written() -> tuple[SimulatedDisk, FileLog]:
    """Three segments of frames of many sizes."""
    disk = SimulatedDisk()
    log = open_log(disk)
    random = Random(SEED)
    while len(log.segments()) < 3 or log.segments()[-1].bytes < 2_000:
        append(log, random.randbytes(random.randint(0, 700)), count=random.randint(1, 4))
        log.tick()
    log.close()
    return disk, log


def frame_places(log: FileLog) -> list[tuple[str, int, int, int]]:
    """(path, offset, length, number) of every frame."""
    return [
        (segment.path, *segment.locate(number), number)
        for segment in log._segments
        for number in range(segment.first, segment.stop)
    ]


def assert_told(disk: SimulatedDisk, path: str, offset: int, number: int, flipped: int) -> None:
    with pytest.raises(LogCorrupt) as caught:
        open_log(disk)
    message = caught.value.message
    assert f"{path}, offset {offset}: " in message, (flipped, message)
    assert "`baton log verify`" in message
    assert f"`baton log repair --truncate-at {number}`" in message
    assert "Nothing was skipped or changed" in message


def test_every_header_byte_of_every_frame() -> None:
    disk, log = written()
    before = {path: disk.read(path) for path in {place[0] for place in frame_places(log)}}
    for path, offset, _, number in frame_places(log):
        for at in range(offset, offset + HEADER_BYTES):
            disk.flip(path, at, at % 8)
            assert_told(disk, path, offset, number, at)
            disk.flip(path, at, at % 8)
    assert {path: disk.read(path) for path in before} == before, "a log that does not open is left as it is"
    assert open_log(disk).next == log.next


def test_thousands_of_random_body_bytes() -> None:
    disk, log = written()
    places = frame_places(log)
    random = Random(SEED)
    for _ in range(BODY_FLIPS):
        path, offset, length, number = random.choice(places)
        at = random.randrange(offset + HEADER_BYTES, offset + length)
        bit = random.randrange(8)
        disk.flip(path, at, bit)
        assert_told(disk, path, offset, number, at)
        disk.flip(path, at, bit)
    assert open_log(disk).next == log.next


def test_without_the_note_only_the_very_last_frame_can_pass_for_a_torn_write() -> None:
    disk, log = written()
    disk.unlink(f"{DIRECTORY}/committed")
    *others, (last_path, last_offset, _, last_number) = frame_places(log)
    for path, offset, _, number in others:
        disk.flip(path, offset + 100)
        assert_told(disk, path, offset, number, offset + 100)
        disk.flip(path, offset + 100)
    disk.flip(last_path, last_offset + 100)
    again = open_log(disk)
    assert again.torn is not None and again.torn.number == last_number and again.next == last_number
    assert again.torn.kept_in is not None


def test_damage_to_the_note_itself_loses_nothing() -> None:
    for at in range(48):
        disk, log = written()
        disk.flip(f"{DIRECTORY}/committed", at)
        assert open_log(disk).next == log.next


def test_flips_after_the_end_lose_nothing() -> None:
    disk, log = written()
    segment = log._segments[-1]
    for at in range(segment.bytes, segment.bytes + HEADER_BYTES + 10):
        copy = SimulatedDisk()
        copy.make_directory("/data")
        copy.make_directory(DIRECTORY)
        for name in disk.listdir(DIRECTORY):
            copy.replace(f"{DIRECTORY}/{name}", disk.read(f"{DIRECTORY}/{name}"))
        copy.flip(segment.path, at)
        assert open_log(copy).next == log.next


def test_a_file_that_became_shorter_is_told() -> None:
    for cut in (1, 100, 1_500):
        disk, log = written()
        path, offset, length, _ = frame_places(log)[-1]
        disk.replace(path, disk.read(path)[: offset + length - cut])
        with pytest.raises(LogCorrupt, match="were committed"):
            open_log(disk)
        sealed = log._segments[0]
        disk.replace(path, disk.read(path))
        disk.replace(sealed.path, disk.read(sealed.path)[: sealed.bytes - cut])
        with pytest.raises(LogCorrupt, match=sealed.path):
            open_log(disk)


def test_a_note_of_another_frame_under_the_same_number_is_told() -> None:
    disk, log = written()
    other = SimulatedDisk()
    other_log = open_log(other)
    while other_log.next < log.next:
        append(other_log)
    other_log.close()
    disk.replace(f"{DIRECTORY}/committed", other.read(f"{DIRECTORY}/committed"))
    with pytest.raises(LogCorrupt, match="is not the frame that was committed"):
        open_log(disk)

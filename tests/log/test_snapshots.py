"""The snapshot store: a cache that is whole or passed over."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from batonq.errors import DiskFull, LogError
from batonq.log.snapshots import SnapshotStore
from sim.disk import SimulatedDisk, Step

DIGEST = bytes(range(16))
SECTIONS = {"messages": bytes(range(256)) * 20, "queues": b'{"a": 1}', "empty": b""}


def store_on(disk: SimulatedDisk, shard: int = 4) -> SnapshotStore:
    return SnapshotStore("/data/snapshots", shard=shard, disk=disk, free_floor_bytes=0)


def test_a_snapshot_comes_back_as_it_was_saved() -> None:
    disk = SimulatedDisk()
    store = store_on(disk)
    assert store.latest() is None
    path = store.save(41, DIGEST, SECTIONS)
    assert path == f"/data/snapshots/snapshot-{41:020}.bin"
    found = store.latest()
    assert found is not None
    assert (found.frame_number, found.digest, found.sections) == (41, DIGEST, SECTIONS)
    assert list(found.sections) == list(SECTIONS)
    assert (found.start.number, found.start.digest) == (42, DIGEST)


def test_on_a_real_disk(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "snapshots"), shard=0, free_floor_bytes=0)
    large = {f"column {at}": bytes([at]) * (1 << 20) for at in range(5)}
    store.save(7, DIGEST, large)
    found = store.latest()
    assert found is not None and found.sections == large


def test_the_two_newest_are_kept() -> None:
    disk = SimulatedDisk()
    store = store_on(disk)
    for number in (5, 9, 30):
        store.save(number, DIGEST, SECTIONS)
    assert store.numbers() == [9, 30]
    assert store.latest(before=30) == store.load(9)
    assert store.latest(before=9) is None


def test_every_flipped_bit_is_seen_and_the_older_one_is_used() -> None:
    disk = SimulatedDisk()
    store = store_on(disk)
    store.save(5, DIGEST, {"a": b"older"})
    path = store.save(9, DIGEST, {"a": b"newer", "b": b"more"})
    for at in range(disk.size(path)):
        disk.flip(path, at, at % 8)
        found = store.latest()
        assert found is not None and found.frame_number == 5, at
        assert len(store.passed_over) == 1 and store.passed_over[0].startswith(path)
        disk.flip(path, at, at % 8)
    assert store.latest() == store.load(9)
    assert store.passed_over == []


def test_every_cut_is_seen() -> None:
    disk = SimulatedDisk()
    store = store_on(disk)
    path = store.save(9, DIGEST, {"a": b"newer", "b": b"more"})
    content = disk.read(path)
    for length in range(len(content)):
        disk.replace(path, content[:length])
        assert store.latest() is None
        assert store.passed_over, length


def test_a_snapshot_of_another_shard_or_frame_is_passed_over() -> None:
    disk = SimulatedDisk()
    path = store_on(disk).save(9, DIGEST, SECTIONS)
    other = store_on(disk, shard=5)
    assert other.latest() is None and "to frame 9 of shard 4" in other.passed_over[0]
    disk.rename(path, path.replace("9.bin", "8.bin"))
    store = store_on(disk)
    assert store.latest() is None and "to frame 9 of shard 4" in store.passed_over[0]


def test_a_snapshot_does_not_take_the_room_that_the_log_needs() -> None:
    disk = SimulatedDisk(capacity_bytes=10_000)
    store = SnapshotStore("/data/snapshots", shard=4, disk=disk, free_floor_bytes=6_000)
    with pytest.raises(DiskFull, match="free-space floor"):
        store.save(9, DIGEST, SECTIONS)
    assert disk.listdir("/data/snapshots") == []


def test_what_a_killed_writer_left_is_removed_and_a_failed_one_leaves_nothing() -> None:
    disk = SimulatedDisk()
    store = store_on(disk)
    store.save(5, DIGEST, SECTIONS)
    disk.replace("/data/snapshots/snapshot-x.bin.tmp", b"half")

    def fail(step: Step) -> None:
        if step.kind == "sync":
            raise OSError(errno.EIO, "input/output error")

    disk.on_step = fail
    with pytest.raises(LogError, match=r"cannot write snapshot.*input/output error"):
        store.save(9, DIGEST, SECTIONS)
    assert disk.listdir("/data/snapshots") == [f"snapshot-{5:020}.bin"]

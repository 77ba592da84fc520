"""One process at a time owns a data directory, and epochs always rise."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from batonq.errors import LogCorrupt, LogError, OwnershipHeld
from batonq.log.ownership import EpochFile, LockFileOwnership, held, holder_of
from sim.disk import Crashed, SimulatedDisk, Step, Survival

HOLD = """
import asyncio
import sys
from batonq.log.ownership import LockFileOwnership
ownership = LockFileOwnership(sys.argv[1], now_ms=lambda: 1_700_000_000_000)
ownership.take("127.0.0.1:9324")
print(asyncio.run(ownership.acquire(0)), flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_it_and_what_to_do(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin is not None and first.stdout is not None
    try:
        epoch = int(first.stdout.readline())
        second = LockFileOwnership(data)
        for attempt in (second.take, lambda: asyncio.run(second.acquire(0))):
            with pytest.raises(OwnershipHeld) as caught:
                attempt()
            message = caught.value.message
            assert f"{data} is in use by process {first.pid} on " in message
            assert "started 2023-11-14 22:13:20 UTC, serving 127.0.0.1:9324" in message
            assert "Stop that process first" in message and "--data" in message
        holder = holder_of(data)
        assert holder is not None and holder.pid == first.pid
        with pytest.raises(OwnershipHeld), held(data):
            pass
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert holder_of(data) is None, "a lock dies with its process"
        assert asyncio.run(second.acquire(0)) > epoch
        second.close()
    finally:
        first.kill()
        first.wait()
        first.stdin.close()
        first.stdout.close()


def test_epochs_rise_over_shards_and_restarts(tmp_path: Path) -> None:
    given = []
    for _ in range(4):
        ownership = LockFileOwnership(str(tmp_path))
        given += [asyncio.run(ownership.acquire(shard)) for shard in (0, 1, 65535)]
        ownership.close()
    assert given == sorted(set(given)) and given[0] >= 1


def test_the_cluster_id_is_made_once(tmp_path: Path) -> None:
    clusters = set()
    for _ in range(3):
        ownership = LockFileOwnership(str(tmp_path))
        ownership.take()
        clusters.add(ownership.cluster)
        ownership.close()
    (cluster,) = clusters
    assert 0 < cluster < 1 << 64
    assert json.loads((tmp_path / "identity").read_text())["cluster"] == f"{cluster:016x}"


def test_the_address_can_be_told_later(tmp_path: Path) -> None:
    ownership = LockFileOwnership(str(tmp_path))
    ownership.take()
    ownership.set_address("0.0.0.0:80")
    holder = holder_of(str(tmp_path))
    assert holder is not None
    assert (holder.pid, holder.address) == (os.getpid(), "0.0.0.0:80")
    ownership.close()
    ownership.close()
    assert holder_of(str(tmp_path)) is None


def test_a_lock_file_without_a_readable_holder_still_locks(tmp_path: Path) -> None:
    ownership = LockFileOwnership(str(tmp_path))
    ownership.take()
    (tmp_path / "LOCK").write_bytes(b"garbage")
    with pytest.raises(OwnershipHeld, match="in use by another process"):
        LockFileOwnership(str(tmp_path)).take()
    ownership.close()


def test_nobody_holds_a_directory_that_nobody_used(tmp_path: Path) -> None:
    assert holder_of(str(tmp_path)) is None
    with held(str(tmp_path)):
        assert holder_of(str(tmp_path)) is not None


def test_damaged_files_are_told_with_what_to_do(tmp_path: Path) -> None:
    ownership = LockFileOwnership(str(tmp_path))
    asyncio.run(ownership.acquire(0))
    ownership.close()
    epoch = (tmp_path / "epoch").read_bytes()
    (tmp_path / "epoch").write_bytes(bytes(1024))
    with pytest.raises(LogCorrupt, match=r"epoch cannot be read\. If the logs are valid, remove it"):
        LockFileOwnership(str(tmp_path)).take()
    (tmp_path / "epoch").write_bytes(epoch)
    (tmp_path / "identity").write_bytes(b"{")
    with pytest.raises(LogCorrupt, match=r"identity cannot be read.*baton log inspect"):
        LockFileOwnership(str(tmp_path)).take()


def test_a_directory_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"cannot use .*/file/data as a data directory"):
        LockFileOwnership(str(tmp_path / "file" / "data")).take()


# --- the epoch on the disk -------------------------------------------------------------------------


def raise_epochs(disk: SimulatedDisk, given: list[int], count: int) -> None:
    disk.make_directory("/data")
    disk.fsync_directory("/")
    for _ in range(count):
        epochs = EpochFile(disk, "/data/epoch")
        epochs.load()
        given.append(epochs.raise_())


def test_no_crash_makes_an_epoch_be_given_twice() -> None:
    whole = SimulatedDisk()
    raise_epochs(whole, [], 5)
    for stop_before in range(1, whole.steps + 2):
        disk = SimulatedDisk()
        given: list[int] = []

        def crash(step: Step, stop_before: int = stop_before) -> None:
            if step.number == stop_before:
                raise Crashed

        disk.on_step = crash
        try:
            raise_epochs(disk, given, 5)
        except Crashed:
            pass
        for survival in Survival:
            for seed in range(5):
                found = disk.after_crash(survival, Random(seed))
                after: list[int] = []
                raise_epochs(found, after, 1)
                assert after[0] > max(given, default=0), (stop_before, survival, seed)


def test_a_full_disk_keeps_nobody_from_starting() -> None:
    disk = SimulatedDisk()
    raise_epochs(disk, [], 1)
    disk.capacity_bytes -= disk.free("/")
    given: list[int] = []
    raise_epochs(disk, given, 3)
    assert given == [2, 3, 4]


def test_an_epoch_that_could_not_be_written_is_not_given() -> None:
    disk = SimulatedDisk()
    raise_epochs(disk, [], 2)
    epochs = EpochFile(disk, "/data/epoch")
    epochs.load()

    def fail(step: Step) -> None:
        raise OSError(errno.EIO, "input/output error")

    disk.on_step = fail
    with pytest.raises(OSError, match="input/output error"):
        epochs.raise_()
    assert epochs.epoch == 2

"""The real disk, and the simulated one against it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from batonq.log.disk import Disk, RealDisk, create_directory, write_atomically
from sim.disk import SimulatedDisk, Survival


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = SimulatedDisk()
    disk.make_directory("/tmp")
    return disk, "/tmp"


def test_files_and_names(place: tuple[Disk, str]) -> None:
    disk, base = place
    create_directory(disk, f"{base}/a/b")
    create_directory(disk, f"{base}/a/b")
    path = f"{base}/a/b/file"
    handle = disk.open(path, create=True)
    disk.pwrite(handle, (b"one", b"", b"two"), 2)
    assert disk.pread(handle, 100, 0) == b"\0\0onetwo"
    assert disk.pread(handle, 3, 4) == b"etw"
    assert disk.pread(handle, 3, 100) == b""
    disk.fdatasync(handle)
    disk.close(handle)
    disk.fsync_directory(f"{base}/a/b")
    assert disk.size(path) == 8
    with pytest.raises(FileExistsError):
        disk.open(path, create=True)
    disk.rename(path, f"{base}/a/b/other")
    assert disk.listdir(f"{base}/a/b") == ["other"] and disk.listdir(f"{base}/a") == ["b"]
    assert disk.exists(f"{base}/a/b") and disk.exists(f"{base}/a/b/other") and not disk.exists(path)
    write_atomically(disk, f"{base}/a/b/other", (b"anew",))
    assert disk.size(f"{base}/a/b/other") == 4
    disk.unlink(f"{base}/a/b/other")
    assert disk.listdir(f"{base}/a/b") == []
    assert disk.free(base) > 1 << 20
    for attempt in (disk.open, disk.unlink, disk.size):
        with pytest.raises(FileNotFoundError):
            attempt(path)


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal or the kernel's limit of one call may cut either short."""
    real_pwritev, real_pwrite, real_pread = os.pwritev, os.pwrite, os.pread

    def pwritev(handle: int, buffers: Sequence[bytes], offset: int) -> int:
        return real_pwrite(handle, b"".join(buffers)[:5], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: real_pwrite(handle, data[:3], offset))
    monkeypatch.setattr(os, "pread", lambda handle, length, offset: real_pread(handle, min(length, 4), offset))
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "file"), create=True)
    disk.pwrite(handle, (b"0123", b"456789", b"abcdef"), 0)
    assert disk.pread(handle, 100, 0) == b"0123456789abcdef"
    disk.close(handle)
    assert real_pwritev is not os.pwritev


# --- the simulated disk's crashes ------------------------------------------------------------------


def prepared() -> tuple[SimulatedDisk, int]:
    disk = SimulatedDisk()
    disk.make_directory("/d")
    disk.fsync_directory("/")
    handle = disk.open("/d/file", create=True)
    disk.pwrite(handle, (b"a" * 2048,), 0)
    disk.fdatasync(handle)
    disk.fsync_directory("/d")
    return disk, handle


def test_what_was_synced_survives_and_what_was_not_may_not() -> None:
    disk, handle = prepared()
    disk.pwrite(handle, (b"b" * 1024,), 512)
    disk.rename("/d/file", "/d/moved")
    seen = set()
    for survival in Survival:
        for seed in range(50):
            found = disk.after_crash(survival, Random(seed))
            (name,) = found.listdir("/d")
            content = found.read(f"/d/{name}")
            assert content[:512] + content[1536:] == b"a" * 1024
            seen.add((survival, name, content[512:1024] + content[1024:1536]))
    kept, lost = b"b" * 1024, b"a" * 1024
    assert {entry for entry in seen if entry[0] is not Survival.SOME} == {
        (Survival.NOTHING, "file", lost),
        (Survival.EVERYTHING, "moved", kept),
        (Survival.NAMES_ONLY, "moved", lost),
        (Survival.WRITES_ONLY, "file", kept),
    }
    torn = {entry[2] for entry in seen if entry[0] is Survival.SOME}
    assert torn == {kept, lost, b"b" * 512 + b"a" * 512, b"a" * 512 + b"b" * 512}


def test_a_directory_that_its_parent_did_not_sync_may_be_gone() -> None:
    disk, _ = prepared()
    disk.make_directory("/d/new")
    disk.open("/d/new/file", create=True)
    disk.fsync_directory("/d/new")
    assert not disk.after_crash(Survival.NOTHING, Random(0)).exists("/d/new")
    disk.fsync_directory("/d")
    assert disk.after_crash(Survival.NOTHING, Random(0)).exists("/d/new/file")


def test_a_full_simulated_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    disk.make_directory("/d")
    handle = disk.open("/d/file", create=True)
    with pytest.raises(OSError, match="no space left"):
        disk.pwrite(handle, (b"0123456789ab",), 0)
    assert disk.read("/d/file") == b"0123456789" and disk.free("/") == 0
    disk.pwrite(handle, (b"xyz",), 3)
    assert disk.read("/d/file") == b"012xyz6789"

"""The embedded log: what it does beyond the conformance suite."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from functools import partial
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from batonq.core.records import FORMAT_VERSION
from batonq.errors import LogCorrupt, LogError, LogGap
from batonq.log import committed
from batonq.log.disk import RealDisk
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.frames import Frame
from batonq.log.interface import Log
from batonq.log.opening import Start
from sim.disk import SimulatedDisk, Step, Survival
from tests.log.conformance import SEGMENT_BYTES, SHARD, LogConformance
from tests.support.doubles import double
from tests.support.logs import CLUSTER, append, next_frame
from tests.support.simdisk import DIRECTORY, SMALL, open_log


@double("fail")
class FailingDisk(RealDisk):
    """A real disk whose syncs fail while `fail` is set."""

    fail = False

    def fdatasync(self, handle: int) -> None:
        if self.fail:
            raise OSError(errno.EIO, "input/output error")
        super().fdatasync(handle)


class FileMaker:
    durable = True

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory / "shard-0003")
        self.disk = FailingDisk()
        self.opened: list[FileLog] = []

    def open(self) -> Log:
        settings = FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0, open_files_max=2)
        log = FileLog.open(self.directory, shard=SHARD, cluster=CLUSTER, settings=settings, disk=self.disk)
        self.opened.append(log)
        return log

    def reopen(self, log: Log) -> Log:
        log.close()
        return self.open()

    def fail_next(self, log: Log) -> None:
        self.disk.fail = True


class TestFileLog(LogConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> FileMaker:
        return FileMaker(tmp_path)

    @pytest.fixture(autouse=True)
    def _close(self, maker: FileMaker) -> object:
        yield
        for log in maker.opened:
            log.close()


# --- recycling -------------------------------------------------------------------------------------


def names(disk: SimulatedDisk) -> list[str]:
    return sorted(disk.listdir(DIRECTORY))


def fill(log: FileLog, segments: int, variable: bytes = b"\xee" * 300) -> None:
    """Append until `segments` more are sealed."""
    last = len(log.segments()) + segments
    while len(log.segments()) < last:
        append(log, variable)
        log.tick()


def test_a_dropped_segment_becomes_the_spare_and_its_old_frames_are_not_taken_for_live_ones() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 3)
    log.drop_front(log.segments()[1].first)
    old = disk.read(f"{DIRECTORY}/spare.log")
    assert old.startswith(b"BTNF"), "recycled as it is, with the frames of its earlier life"
    fill(log, 1)
    newest = f"{DIRECTORY}/segment-{log.segments()[-1].first:020}.log"
    assert disk.read(newest)[-300:] == old[-300:], "the new segment is the old file"
    for _ in range(2):
        again = open_log(disk)
        assert (again.next, again.torn) == (log.next, None), "what follows is old, not torn"
        append(log, b"short")


def test_one_spare_is_kept_and_other_dropped_segments_are_removed() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 5)
    log.drop_front(log.next)
    segment = f"segment-{log.first:020}.log"
    assert names(disk) == ["committed", segment, "spare.log"]


def test_a_segment_that_a_recycled_spare_became_but_nothing_was_written_to_is_empty() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 3)
    log.drop_front(log.segments()[1].first)
    disk.rename(f"{DIRECTORY}/spare.log", f"{DIRECTORY}/segment-{log.next:020}.log")
    again = open_log(disk)
    assert (again.next, again.tail_digest, again.torn) == (log.next, log.tail_digest, None)
    assert again.droppable(10_000) < again.next, "the last frame is not in the empty segment, and stays"
    again.drop_front(10_000)
    frame = append(again, b"goes into the empty one")
    assert open_log(disk).tail_digest == frame.digest


def test_a_frame_that_the_empty_newest_segment_cannot_hold_makes_it_longer() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    frame = append(log, bytes(10_000))
    append(log, b"after")
    assert [segment.first for segment in open_log(disk).segments()] == [1, 2]
    assert open_log(disk).frame(1) == frame


# --- opening ---------------------------------------------------------------------------------------


@double()
class CountingDisk(SimulatedDisk):
    """Counts what is read, by file name."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        data = super().pread(handle, length, offset)
        name = os.path.basename(self._handles[handle][1])
        self.read_bytes[name] = self.read_bytes.get(name, 0) + len(data)
        return data


def test_every_frame_is_handed_out_once_while_opening() -> None:
    disk = CountingDisk()
    log = open_log(disk)
    fill(log, 4)
    log.close()
    disk.read_bytes.clear()
    seen: list[Frame] = []
    again = open_log(disk, on_frame=seen.append)
    assert [frame.number for frame in seen] == list(range(1, again.next))
    sealed = [f"segment-{segment.first:020}.log" for segment in again.segments()[:-1]]
    assert all(disk.read_bytes[name] <= 4096 for name in sealed), "each file is read once"


def test_with_a_snapshot_segments_before_it_are_not_read() -> None:
    disk = CountingDisk()
    log = open_log(disk)
    fill(log, 5)
    segments = log.segments()
    start = Start(segments[3].first + 2, log.frame(segments[3].first + 1).digest)
    written = list(log.frames(1))
    log.close()
    disk.read_bytes.clear()
    seen: list[Frame] = []
    again = open_log(disk, start=start, on_frame=seen.append)
    read = {name for name in disk.read_bytes if name.startswith("segment")}
    assert read == {f"segment-{segment.first:020}.log" for segment in segments[3:]}
    assert seen == written[start.number - 1 :]
    assert list(again.frames(1)) == written, "what was not read at opening can be read later"
    assert [(s.first, s.stop, s.bytes, s.last_time_ms) for s in again.segments()] == [
        (s.first, s.stop, s.bytes, s.last_time_ms) for s in segments
    ]


@pytest.mark.parametrize("harm", ["missing", "flipped", "of another segment", "empty"])
def test_a_sidecar_that_does_not_check_is_made_again(harm: str) -> None:
    disk = CountingDisk()
    log = open_log(disk)
    fill(log, 4)
    first, second = (segment.first for segment in log.segments()[:2])
    start = Start(log.next, log.tail_digest)
    log.close()
    sidecar = f"{DIRECTORY}/index-{first:020}.idx"
    sound = disk.read(sidecar)
    if harm == "missing":
        disk.unlink(sidecar)
    elif harm == "flipped":
        disk.flip(sidecar, 110)
    elif harm == "empty":
        disk.replace(sidecar, b"")
    else:
        disk.replace(sidecar, disk.read(f"{DIRECTORY}/index-{second:020}.idx"))
    disk.read_bytes.clear()
    again = open_log(disk, start=start)
    assert again.next == log.next
    assert f"segment-{first:020}.log" in disk.read_bytes
    assert f"segment-{second:020}.log" not in disk.read_bytes
    again.tick()
    assert disk.read(sidecar) == sound


def test_a_snapshot_from_before_the_front_is_a_gap() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 4)
    start = Start(3, log.frame(2).digest)
    log.drop_front(log.segments()[2].first)
    with pytest.raises(LogGap, match="frame 3 is no longer retained"):
        open_log(disk, start=start)


def test_a_snapshot_of_another_log_or_beyond_the_end_is_refused() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 2)
    for start in (Start(3, bytes(16)), Start(log.next, bytes(16))):
        with pytest.raises(LogCorrupt, match=r"belongs to another log.*remove the snapshot"):
            open_log(disk, start=start)
    with pytest.raises(LogCorrupt, match=rf"the log ends before frame {log.next}.*snapshot of frame {log.next + 4}"):
        open_log(disk, start=Start(log.next + 5, bytes(16)))


def test_another_shards_or_clusters_log_is_refused() -> None:
    disk = SimulatedDisk()
    append(open_log(disk))
    with pytest.raises(LogCorrupt, match="belongs to shard 0, this is the log of shard 1"):
        open_log(disk, shard=1)
    with pytest.raises(LogCorrupt, match="belongs to cluster"):
        FileLog.open(DIRECTORY, shard=0, cluster=5, disk=disk, settings=SMALL)


def test_a_newer_format_is_refused_and_never_cut_off_as_a_torn_write() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log)
    size = append(log).size
    path = f"{DIRECTORY}/segment-{1:020}.log"
    content = bytearray(disk.read(path))
    content[size + 4] = newer = FORMAT_VERSION + 1
    crc = google_crc32c.value(bytes(content[size : size + 76]))
    content[size + 76 : size + 80] = crc.to_bytes(4, "little")
    disk.replace(path, bytes(content))
    disk.unlink(f"{DIRECTORY}/committed")
    with pytest.raises(LogCorrupt, match=rf"offset {size}: frame 2 has format version {newer}.*use a newer release"):
        open_log(disk)
    assert disk.read(path) == bytes(content)


def test_missing_segments_are_told() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 3)
    firsts = [segment.first for segment in log.segments()]
    whole = {first: disk.read(f"{DIRECTORY}/segment-{first:020}.log") for first in firsts}
    disk.unlink(f"{DIRECTORY}/segment-{firsts[1]:020}.log")
    with pytest.raises(
        LogCorrupt, match=f"frame {firsts[1]} is missing: the next segment begins with frame {firsts[2]}"
    ):
        open_log(disk)
    disk.replace(f"{DIRECTORY}/segment-{firsts[1]:020}.log", whole[firsts[1]])
    disk.unlink(f"{DIRECTORY}/segment-{firsts[-1]:020}.log")
    with pytest.raises(LogCorrupt, match=f"the committed note says that frames up to {log.next - 1} were committed"):
        open_log(disk)
    for first in firsts[:-1]:
        disk.unlink(f"{DIRECTORY}/segment-{first:020}.log")
    with pytest.raises(LogCorrupt, match="the segment files are missing"):
        open_log(disk)


def test_a_torn_write_is_cut_off_kept_aside_and_reported() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    whole = append(log, b"whole")
    torn = next_frame(log, b"T" * 1500)
    stored = torn.header + torn.rows + torn.variable
    path = f"{DIRECTORY}/segment-{1:020}.log"
    content = bytearray(disk.read(path))
    content[whole.size : whole.size + 1024] = stored[:1024]
    disk.replace(path, bytes(content))
    again = open_log(disk)
    assert again.next == 2 and again.tail_digest == whole.digest
    assert again.torn is not None
    assert (again.torn.path, again.torn.offset, again.torn.number) == (path, whole.size, 2)
    assert again.torn.what == "frame 2 does not match its checksum"
    assert again.torn.kept_in == f"{DIRECTORY}/torn-2-1000000.bin"
    assert disk.read(again.torn.kept_in) == stored[:1024].ljust(len(stored), b"\0")
    assert not any(disk.read(path)[whole.size :]), "nothing of it is left in the log"
    assert open_log(disk).torn is None


def test_an_unreadable_frame_with_a_sound_one_after_it_is_damage() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    sizes = [append(log, bytes(100)).size for _ in range(3)]
    disk.unlink(f"{DIRECTORY}/committed")
    path = f"{DIRECTORY}/segment-{1:020}.log"
    disk.flip(path, sizes[0] + 90)
    with pytest.raises(
        LogCorrupt, match=rf"offset {sizes[0]}: frame 2 .*frame 3 follows it, at offset {sum(sizes[:2])}"
    ):
        open_log(disk)
    content = disk.read(path)
    disk.replace(path, content[: sizes[0]] + bytes(80) + content[sizes[0] + 80 :])
    with pytest.raises(LogCorrupt, match=r"frame 2 is missing, but frame 3 follows it"):
        open_log(disk)


def test_leftovers_of_interrupted_work_are_removed() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 2)
    log.close()
    for name in ("spare.tmp", "committed.tmp", f"index-{9999:020}.idx"):
        disk.replace(f"{DIRECTORY}/{name}", b"left")
    open_log(disk)
    assert not [name for name in names(disk) if name.endswith(".tmp") or "9999" in name]


# --- errors of the disk ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_write_or_sync_is_told_and_never_tried_again(kind: str) -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log)
    steps: list[Step] = []

    def fail(step: Step) -> None:
        steps.append(step)
        if step.kind == kind:
            raise OSError(errno.EIO, "input/output error")

    disk.on_step = fail
    outcomes: list[BaseException | None] = []
    log.append(next_frame(log), outcomes.append)
    assert isinstance(outcomes[0], LogError)
    assert "cannot append frame 2" in outcomes[0].message and "input/output error" in outcomes[0].message
    count = len(steps)
    disk.on_step = steps.append
    log.append(next_frame(log), outcomes.append)
    assert isinstance(outcomes[1], LogError) and "until it is reopened" in outcomes[1].message
    assert len(steps) == count, "the disk was not touched again"


def test_opening_after_a_failed_sync_writes_the_last_frame_anew() -> None:
    """The pages of a failed sync look clean: reading them proves nothing, and syncing them again does nothing."""
    disk = SimulatedDisk()
    log = open_log(disk)
    append(log)

    def fail(step: Step) -> None:
        if step.kind == "sync":
            raise OSError(errno.EIO, "input/output error")

    disk.on_step = fail
    frame = next_frame(log, b"written, not synced")
    log.append(frame, lambda error: None)
    disk.on_step = None
    again = open_log(disk)
    assert again.next == 3, "a new process reads it from the page cache"
    after_power_failure = open_log(disk.after_crash(Survival.NOTHING, Random(0)))
    assert after_power_failure.frame(2) == frame


# --- commits on a thread ---------------------------------------------------------------------------


def tell(finished: asyncio.Future[tuple[BaseException | None, threading.Thread]], error: BaseException | None) -> None:
    finished.set_result((error, threading.current_thread()))


def test_a_commit_on_a_thread_is_told_on_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        log = FileLog.open(
            str(tmp_path / "log"),
            shard=0,
            cluster=CLUSTER,
            settings=FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0),
            call_soon=loop.call_soon_threadsafe,
        )
        for at in range(30):
            finished: asyncio.Future[tuple[BaseException | None, threading.Thread]] = loop.create_future()
            frame = next_frame(log, b"%d" % at + bytes(300))
            log.append(frame, partial(tell, finished), in_thread=True)
            assert not finished.done() and log.next == at + 1
            with pytest.raises(AssertionError, match="one append at a time"):
                log.append(frame, partial(tell, finished))
            assert await finished == (None, threading.main_thread())
            assert log.next == at + 2
        assert len(log.segments()) > 2
        log.close()

    asyncio.run(scenario())


def test_an_error_on_the_thread_is_told_on_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        disk = FailingDisk()
        log = FileLog.open(
            str(tmp_path / "log"),
            shard=0,
            cluster=CLUSTER,
            settings=FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0, background=False),
            disk=disk,
            call_soon=loop.call_soon_threadsafe,
        )
        disk.fail = True
        finished: asyncio.Future[BaseException | None] = loop.create_future()
        log.append(next_frame(log), finished.set_result, in_thread=True)
        error = await finished
        assert isinstance(error, LogError) and "cannot append frame 1" in error.message
        log.close()

    asyncio.run(scenario())


def test_closing_waits_for_the_commit_on_the_thread(tmp_path: Path) -> None:
    later: list[tuple[object, object]] = []
    log = FileLog.open(
        str(tmp_path / "log"),
        shard=0,
        cluster=CLUSTER,
        settings=FileLogSettings(segment_bytes=SEGMENT_BYTES, free_floor_bytes=0),
        call_soon=lambda then, error: later.append((then, error)),
    )
    outcomes: list[BaseException | None] = []
    log.append(next_frame(log), outcomes.append, in_thread=True)
    log.close()
    ((then, error),) = later
    assert callable(then) and error is None
    then(error)
    assert outcomes == [None]


# --- memory and handles ----------------------------------------------------------------------------


@double("reads")
class NoReadDisk(SimulatedDisk):
    reads = 0

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(handle, length, offset)


def test_fresh_messages_are_read_from_memory_and_old_ones_frame_by_frame() -> None:
    disk = NoReadDisk()
    log = open_log(disk)
    for at in range(20):
        append(log, b"%02d" % at + bytes(400))
    disk.reads = 0
    assert log.read_variable(20 << 16, 0, 2) == b"19"
    assert disk.reads == 0
    assert [log.read_variable(1 << 16, offset, 1) for offset in (0, 1, 2)] == [b"0", b"0", b"\0"]
    assert disk.reads == 1, "the frame's other messages come from memory"


def test_a_large_frame_is_checked_once_and_then_read_in_parts() -> None:
    disk = CountingDisk()
    log = open_log(disk)
    append(log, b"".join(b"%04d" % at for at in range(750)), count=3)
    fill(log, 2)
    name = f"segment-{1:020}.log"
    disk.read_bytes.clear()
    assert log.read_variable(1 << 16, 400, 4) == b"0100"
    assert disk.read_bytes.pop(name) > 3_000
    assert log.read_variable(1 << 16, 2_996, 4) == b"0749"
    assert disk.read_bytes.pop(name) == 4
    with pytest.raises(LogCorrupt, match="bytes 2998 to 3002 of frame 1, which has 3000"):
        log.read_variable(1 << 16, 2_998, 4)
    again = open_log(disk)
    disk.flip(f"{DIRECTORY}/{name}", 1_000)
    with pytest.raises(LogCorrupt, match="frame 1 does not match its checksum"):
        again.read_variable(1 << 16, 2_996, 4)


def test_caches_and_open_files_stay_within_their_limits() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 10)
    for _ in range(500):
        append(log)  # empty variable sections cost memory too
    for number in range(1, log.next):
        log.frame(number)
        log.read_variable(number << 16, 0, 0)
    assert len(log._fresh.sections) <= 2048 // 160
    assert len(log._read._sections) <= 4096 // 160
    assert len(log._readers) <= 2
    log.close()
    assert disk._handles == {}, "every handle is given back"


def test_a_flipped_bit_in_an_old_message_is_not_delivered() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)
    fill(log, 2)
    disk.flip(f"{DIRECTORY}/segment-{1:020}.log", 200)
    with pytest.raises(LogCorrupt, match="offset 0: frame 1 does not match its checksum"):
        log.read_variable(1 << 16, 0, 10)


def test_the_note_is_written_when_it_is_asked_for_and_at_the_end() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)

    def noted() -> int:
        note = committed.load(disk, f"{DIRECTORY}/committed", log.shard)
        assert note is not None
        return note.number

    append(log)
    append(log)
    assert noted() == 0
    log.note()
    assert noted() == 2
    append(log)
    log.tick()
    assert noted() == 3
    append(log)
    log.close()
    assert noted() == 4
    log.note()
    assert noted() == 4, "a log that is closed writes nothing"

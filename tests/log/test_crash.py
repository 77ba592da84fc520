"""Power failures: a scripted run is stopped before every single step that changes the disk, and each of the disks that
the next start may then find is opened. Nothing that was answered for is lost, nothing is invented, and the log opens.
"""

from __future__ import annotations

from random import Random

import pytest

from batonq.errors import LogCorrupt
from batonq.log.file_log import FileLog
from batonq.log.frames import NO_DIGEST, Frame
from batonq.log.snapshots import SnapshotStore
from sim.disk import Crashed, SimulatedDisk, Step, Survival
from tests.support.doubles import double
from tests.support.logs import append, next_frame
from tests.support.simdisk import DIRECTORY, SMALL, open_log

CHANCES = 6  # how many disks by chance are tried for each step
SURVIVALS = [
    (Survival.NOTHING, 0),
    (Survival.EVERYTHING, 0),
    (Survival.NAMES_ONLY, 0),
    (Survival.WRITES_ONLY, 0),
    *((Survival.SOME, seed) for seed in range(CHANCES)),
]


class History:
    """What the run has asked for and what it was promised."""

    def __init__(self) -> None:
        self.attempted: dict[int, set[Frame]] = {}  # number: every frame that was handed to the log under it
        self.committed: dict[int, Frame] = {}  # number: the one that `done` was called for
        self.keep_from = 1  # frames from here on must be there
        self.snapshots: list[int] = []  # saved for sure
        self.snapshot_under_way: int | None = None

    def append(self, log: FileLog, variable: bytes, count: int = 1) -> None:
        frame = next_frame(log, variable, count=count, epoch=log.tail_epoch or 1)
        self.attempted.setdefault(frame.number, set()).add(frame)
        outcomes: list[BaseException | None] = []
        log.append(frame, outcomes.append)
        assert outcomes == [None]
        self.committed[frame.number] = frame

    def drop(self, log: FileLog, before: int) -> None:
        self.keep_from = log.droppable(before)
        log.drop_front(before)

    def save_snapshot(self, store: SnapshotStore, log: FileLog) -> None:
        number = log.next - 1
        self.snapshot_under_way = number
        store.save(number, log.tail_digest, {"state": b"%d" % number * 300, "other": b""})
        self.snapshots.append(number)


def snapshot_store(disk: SimulatedDisk) -> SnapshotStore:
    return SnapshotStore(f"{DIRECTORY}/snapshots", shard=0, disk=disk, free_floor_bytes=0)


def script(disk: SimulatedDisk, history: History) -> None:
    """Rolls, recycling, drops, snapshots, a frame longer than a segment, a clean and an unclean start."""
    log = open_log(disk)
    store = snapshot_store(disk)
    for at in range(14):
        history.append(log, b"a%02d" % at + bytes(700), count=1 + at % 3)
        log.tick()
    history.save_snapshot(store, log)
    history.drop(log, log.segments()[2].first)
    for at in range(8):
        history.append(log, b"b%02d" % at + b"\xff" * 600)
    history.append(log, b"longer than a segment" * 300)
    history.append(log, b"after it")
    log.tick()
    history.save_snapshot(store, log)
    log.close()
    log = open_log(disk)
    history.drop(log, log.next)
    for at in range(9):
        history.append(log, b"c%02d" % at + bytes(900))
    history.save_snapshot(store, log)
    log = open_log(disk)  # without closing: as after a kill
    history.drop(log, log.segments()[1].first)
    for at in range(3):
        history.append(log, b"d%02d" % at + b"\x01" * 500)
        log.tick()
    log.close()


def run_until(stop_before: int) -> tuple[SimulatedDisk, History]:
    disk = SimulatedDisk()
    history = History()

    def crash(step: Step) -> None:
        if step.number == stop_before:
            raise Crashed

    disk.on_step = crash
    try:
        script(disk, history)
    except Crashed:
        pass
    return disk, history


def count_steps() -> int:
    disk, _ = run_until(0)
    return disk.steps


STEPS = count_steps()


def check(disk: SimulatedDisk, history: History, what: str) -> None:
    """The disk after a crash holds what was promised, and the log goes on."""
    folded: list[Frame] = []
    log = open_log(disk, on_frame=folded.append)
    last = max(history.committed, default=0)
    assert log.first <= max(history.keep_from, 1), f"{what}: the front is gone"
    assert last <= log.next - 1 <= last + 1, f"{what}: the log ends at {log.next - 1}, {last} was committed"
    assert [frame.number for frame in folded] == list(range(log.first, log.next)), what
    for frame in folded:
        if frame.number in history.committed:
            assert frame == history.committed[frame.number], f"{what}: frame {frame.number} is another one"
        else:
            assert frame in history.attempted[frame.number], f"{what}: frame {frame.number} was never written"
    check_snapshot(disk, history, log, folded, what)
    appended = [append(log, b"after the crash" + bytes(800), epoch=log.tail_epoch + 1) for _ in range(6)]
    log.close()
    assert list(open_log(disk).frames(log.first))[-6:] == appended, what


def check_snapshot(disk: SimulatedDisk, history: History, log: FileLog, folded: list[Frame], what: str) -> None:
    store = snapshot_store(disk)
    snapshot = store.latest()
    assert store.passed_over == [], what
    allowed = {None, *history.snapshots[-1:], history.snapshot_under_way}
    if history.snapshots:
        assert snapshot is not None and snapshot.frame_number >= history.snapshots[-1], what
    if snapshot is None:
        return
    assert snapshot.frame_number in allowed, what
    assert snapshot.sections == {"state": b"%d" % snapshot.frame_number * 300, "other": b""}, what
    if snapshot.start.number >= log.first:
        tail: list[Frame] = []
        open_log(disk, start=snapshot.start, on_frame=tail.append).close()
        assert tail == [frame for frame in folded if frame.number >= snapshot.start.number], what


def test_the_script_covers_what_it_should() -> None:
    seen: list[Step] = []
    disk = SimulatedDisk()
    disk.on_step = seen.append
    history = History()
    script(disk, history)
    assert len(seen) == STEPS > 200
    assert {step.kind for step in seen} == {
        "create",
        "write",
        "sync",
        "sync_directory",
        "rename",
        "unlink",
        "make_directory",
    }
    renamed = [step.path for step in seen if step.kind == "rename"]
    assert any("segment-" in path for path in renamed), "a segment is recycled"
    assert any(path.endswith("spare.log") for path in renamed), "a spare is taken"
    assert len(history.snapshots) == 3 and history.keep_from > 20


@pytest.mark.parametrize("stop_before", range(1, STEPS + 2))
def test_a_crash_before_each_step(stop_before: int) -> None:
    disk, history = run_until(stop_before)
    for survival, seed in SURVIVALS:
        found = disk.after_crash(survival, Random(seed * 100_003 + stop_before))
        check(found, history, f"before step {stop_before}, {survival.value} survives, seed {seed}")


@pytest.mark.parametrize("stop_before", range(3, STEPS + 2, 5))
def test_a_second_crash_while_opening(stop_before: int) -> None:
    disk, history = run_until(stop_before)
    for seed in range(2):
        steps = open_and_count(disk.after_crash(Survival.SOME, Random(seed * 100_003 + stop_before)))
        for second in range(1, steps + 1):
            found = disk.after_crash(Survival.SOME, Random(seed * 100_003 + stop_before))
            again = crash_while_opening(found, second).after_crash(Survival.SOME, Random(second))
            check(again, history, f"before step {stop_before}, seed {seed}, then before step {second} of opening")


def open_and_count(disk: SimulatedDisk) -> int:
    open_log(disk)
    return disk.steps


def crash_while_opening(disk: SimulatedDisk, stop_before: int) -> SimulatedDisk:
    def crash(step: Step) -> None:
        if step.number == stop_before:
            raise Crashed

    disk.on_step = crash
    with pytest.raises(Crashed):
        open_log(disk)
    disk.on_step = None
    return disk


def test_what_opening_found_is_on_the_disk_before_a_snapshot_can_be() -> None:
    """A process is killed between rolling and syncing the directory; the next one saves a snapshot; the power fails."""
    disk = SimulatedDisk()
    log = open_log(disk)
    snapshot_store(disk).save(0, NO_DIGEST, {})
    while log.segments()[-1].bytes + 700 < SMALL.segment_bytes:
        append(log, bytes(500))
    disk.on_step = crash_at_directory_sync
    with pytest.raises(Crashed):
        append(log, bytes(700))
    disk.on_step = None
    again = open_log(disk)
    assert again.next == again.segments()[-1].first + 1
    snapshot_store(disk).save(again.next - 1, again.tail_digest, {})
    after = disk.after_crash(Survival.NOTHING, Random(0))
    snapshot = snapshot_store(after).latest()
    assert snapshot is not None
    assert open_log(after, start=snapshot.start).next == again.next


def crash_at_directory_sync(step: Step) -> None:
    if step.kind == "sync_directory" and step.path == DIRECTORY:
        raise Crashed


@pytest.mark.parametrize(
    ("skipped", "kind", "told"), [("sync", LogCorrupt, "is missing"), ("sync_directory", AssertionError, "committed")]
)
def test_a_log_that_does_not_sync_is_found_out(skipped: str, kind: type[Exception], told: str) -> None:
    """The checks above are worth something: without syncs they fail."""

    @double()
    class Careless(SimulatedDisk):
        def fdatasync(self, handle: int) -> None:
            if skipped != "sync":
                super().fdatasync(handle)

        def fsync_directory(self, path: str) -> None:
            if skipped != "sync_directory":
                super().fsync_directory(path)

    disk = Careless()
    history = History()
    script(disk, history)
    with pytest.raises(kind, match=told):
        check(disk.after_crash(Survival.NOTHING, Random(0)), history, "careless")

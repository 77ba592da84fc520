"""Repair can be interrupted anywhere, and run again."""

from __future__ import annotations

from random import Random

from batonq.log.repair import carry_out, plan_cut
from batonq.log.snapshots import SnapshotStore
from sim.disk import Crashed, SimulatedDisk, Step, Survival
from tests.support.logs import CLUSTER, append
from tests.support.simdisk import DIRECTORY, open_log

DAMAGED = 8
MARK = b"the message that is damaged"


def damaged_log() -> tuple[SimulatedDisk, list[bytes]]:
    """Five segments, a snapshot before and one after the damage; returns the digests of the frames before it too."""
    disk = SimulatedDisk()
    log = open_log(disk)
    store = SnapshotStore(f"{DIRECTORY}/snapshots", shard=0, disk=disk, free_floor_bytes=0)
    digests = []
    while len(log.segments()) < 5:
        frame = append(log, MARK if log.next == DAMAGED else b"\xaa" * 500)
        digests.append(frame.digest)
        log.tick()
        if frame.number in (5, 12):
            store.save(frame.number, frame.digest, {})
    segment = next(segment for segment in log._segments if segment.first <= DAMAGED < segment.stop)
    disk.flip(segment.path, segment.locate(DAMAGED)[0] + 85)
    log.close()
    return disk, digests[: DAMAGED - 1]


def repair(disk: SimulatedDisk) -> None:
    carry_out(disk, plan_cut(disk, DIRECTORY, shard=0, cluster=CLUSTER, frame_number=DAMAGED), now_ms=disk.steps)


def kept_copies(disk: SimulatedDisk) -> list[bytes]:
    return [disk.read(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY) if name.startswith("cut-")]


def check(disk: SimulatedDisk, digests: list[bytes], what: str) -> None:
    assert any(MARK in copy for copy in kept_copies(disk)), what
    store = SnapshotStore(f"{DIRECTORY}/snapshots", shard=0, disk=disk, free_floor_bytes=0)
    snapshot = store.latest()
    assert snapshot is not None and snapshot.frame_number == 5, what
    log = open_log(disk, start=snapshot.start)
    assert log.next == DAMAGED and log.torn is None, what
    assert [frame.digest for frame in log.frames(1)] == digests, what
    append(log, bytes(2_000))


def test_a_crash_before_each_step_of_a_repair() -> None:
    damaged, digests = damaged_log()
    whole = damaged.after_crash(Survival.EVERYTHING, Random(0))
    repair(whole)
    steps = whole.steps
    assert steps > 15
    check(whole, digests, "without a crash")
    for stop_before in range(1, steps + 1):
        for survival in Survival:
            for seed in range(3 if survival is Survival.SOME else 1):
                disk = damaged.after_crash(Survival.EVERYTHING, Random(0))
                what = f"before step {stop_before}, {survival.value} survives, seed {seed}"
                crash_in_repair(disk, stop_before)
                found = disk.after_crash(survival, Random(seed))
                repair(found)
                check(found, digests, what)


def crash_in_repair(disk: SimulatedDisk, stop_before: int) -> None:
    def crash(step: Step) -> None:
        if step.number == stop_before:
            raise Crashed

    disk.on_step = crash
    try:
        repair(disk)
    except Crashed:
        pass

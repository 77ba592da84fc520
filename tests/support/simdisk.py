"""A file log on a simulated disk, as the tests of crashes, damage and full disks use it."""

from __future__ import annotations

from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.opening import OnFrame, Start
from sim.disk import SimulatedDisk
from tests.support.logs import CLUSTER

DIRECTORY = "/data/shard-0000"
SMALL = FileLogSettings(
    segment_bytes=4096,
    free_floor_bytes=0,
    fresh_cache_bytes=2048,
    read_cache_bytes=4096,
    open_files_max=2,
    background=False,
)


class Clock:
    """Milliseconds that only a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def open_log(
    disk: SimulatedDisk,
    *,
    shard: int = 0,
    settings: FileLogSettings = SMALL,
    start: Start | None = None,
    on_frame: OnFrame | None = None,
    now_ms: Clock | None = None,
) -> FileLog:
    return FileLog.open(
        DIRECTORY,
        shard=shard,
        cluster=CLUSTER,
        settings=settings,
        disk=disk,
        start=start,
        on_frame=on_frame,
        now_ms=now_ms or Clock(),
    )

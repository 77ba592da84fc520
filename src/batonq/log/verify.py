"""Checks a whole log without changing it: is it valid, where is it damaged, and what is readable after the damage?"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from batonq.errors import LogCorrupt
from batonq.log import committed, layout, opening
from batonq.log.damage_scan import walk
from batonq.log.disk import Disk
from batonq.log.opening import Torn
from batonq.log.reading import Damage
from batonq.log.snapshots import SnapshotStore

DAMAGES_MAX = 100
LIVE_TRIES = 3


@dataclass(slots=True)
class Report:
    """The result for one log. The log is valid if `damages` is empty."""

    directory: str
    shard: int
    first: int = 1
    next: int = 1
    epoch: int = 0
    cluster: int | None = None
    segments: int = 0
    bytes: int = 0
    torn: Torn | None = None
    damages: list[LogCorrupt] = field(default_factory=list)
    readable_after: list[tuple[int, int]] = field(default_factory=list)  # runs of valid frames after the first damage
    remarks: list[str] = field(default_factory=list)  # invalid parts that can be recreated


def verify_log(disk: Disk, directory: str, *, shard: int, cluster: int | None, live: bool) -> Report:
    """Check every frame and the hash chain. `live`: a server is writing the log, so only
    the committed part is checked.
    """
    report = Report(directory, shard)
    for attempt in range(LIVE_TRIES if live else 1):
        report = Report(directory, shard)
        try:
            _verify(disk, report, cluster, live)
        except FileNotFoundError:  # deleted by the server meanwhile
            if not live or attempt + 1 == LIVE_TRIES:
                raise
            continue
        if not report.damages or not live or _still_there(disk, report):
            break
    _remark_on_snapshots(disk, report)
    return report


def _verify(disk: Disk, report: Report, cluster: int | None, live: bool) -> None:
    note = committed.load(disk, os.path.join(report.directory, layout.COMMITTED), report.shard)
    stop = note.number + 1 if live and note is not None else None
    try:
        loaded = opening.load(disk, report.directory, shard=report.shard, cluster=cluster, stop=stop)
    except LogCorrupt as damage:
        report.damages.append(damage)
        if isinstance(damage, Damage):
            _survey(disk, report, cluster, stop)
        return
    report.segments = len(loaded.segments)
    report.bytes = sum(segment.bytes for segment in loaded.segments)
    report.first = loaded.segments[0].first if loaded.segments else 1
    report.next = loaded.chain.number
    report.epoch = loaded.chain.epoch
    report.cluster = loaded.chain.cluster
    report.torn = loaded.torn


def _still_there(disk: Disk, report: Report) -> bool:
    """Whether the damaged file is still part of the log, and was not reused by the server."""
    return all(not isinstance(damage, Damage) or disk.exists(damage.path) for damage in report.damages)


def _survey(disk: Disk, report: Report, cluster: int | None, stop: int | None) -> None:
    """Opening stopped at the first damage; find the others, and what is readable after them."""
    first_damage = report.damages.pop()
    firsts = layout.segments(disk, report.directory)
    report.first = firsts[0]
    report.segments = len(firsts)
    for found in walk(disk, report.directory, shard=report.shard, cluster=cluster, stop=stop):
        if isinstance(found, Damage):
            report.damages.append(found)
            if len(report.damages) == DAMAGES_MAX:
                report.remarks.append(f"only the first {DAMAGES_MAX} damaged places are listed")
                break
            continue
        frame = found.frame
        report.bytes += frame.size
        report.next = frame.number + 1
        report.epoch = frame.epoch
        report.cluster = frame.cluster
        if report.damages:
            _add_readable(report.readable_after, frame.number)
    # Opening knows more: a note or a later frame proves that this is not a torn write.
    report.damages[:1] = [first_damage]


def _add_readable(runs: list[tuple[int, int]], number: int) -> None:
    begin = number
    if runs and runs[-1][1] == number:
        begin = runs.pop()[0]
    runs.append((begin, number + 1))


def _remark_on_snapshots(disk: Disk, report: Report) -> None:
    store = SnapshotStore(os.path.join(report.directory, layout.SNAPSHOTS), shard=report.shard, disk=disk)
    for number in store.numbers():
        try:
            store.load(number)
        except FileNotFoundError:
            continue
        except LogCorrupt as problem:
            report.remarks.append(
                f"the snapshot of frame {number} cannot be used and is ignored ({problem.message}); remove it"
            )

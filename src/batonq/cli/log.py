"""`baton log inspect | verify | repair | archive`: read, check and repair logs.

The commands work on the files of a data directory or of one log in it. `inspect` and `verify` change nothing and can
run while a server is using the directory; `repair` cannot.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from typing import Any

from batonq.cli import logarchive, logrecords
from batonq.cli.actions import add_action
from batonq.cli.output import json_text
from batonq.core.policy import QueuePolicy
from batonq.core.records import Type
from batonq.errors import InvalidInput, LogCorrupt
from batonq.log import committed, layout
from batonq.log.damage_scan import walk
from batonq.log.disk import Disk, RealDisk
from batonq.log.frames import HEADER_BYTES, Frame, parse_header
from batonq.log.ownership import cluster_of, held, holder_of
from batonq.log.reading import Damage
from batonq.log.repair import Cut, carry_out, plan_cut
from batonq.log.verify import Report, verify_log
from batonq.quantities import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    inspect = add_action(actions, "inspect", "show frames and records")
    _add_place(inspect)
    inspect.add_argument("--from", dest="first", type=int, default=1, metavar="FRAME", help="first frame to show")
    inspect.add_argument("--to", dest="last", type=int, metavar="FRAME", help="last frame to show")
    inspect.add_argument("--type", type=_type, metavar="TYPE", help="only records of this type, such as SENT")
    inspect.add_argument("--queue", metavar="QUEUE", help="only records of this queue (number or name)")
    inspect.add_argument(
        "--sequence", type=int, metavar="N", help="only records of the message with this sequence number"
    )
    inspect.add_argument("--content", action="store_true", help="also show bodies and texts; they may be confidential")
    inspect.add_argument("--json", action="store_true", help="print one JSON object per frame")
    verify = add_action(actions, "verify", "check every frame and the hash chain; exit code 1 if a log is damaged")
    _add_place(verify)
    repair = add_action(actions, "repair", "truncate a damaged log; the removed part is kept in files next to it")
    _add_place(repair)
    repair.add_argument(
        "--truncate-at", type=int, required=True, metavar="FRAME", help="remove this frame and all later frames"
    )
    archive = actions.add_parser("archive", help="show the content of a history archive; exit code 1 if it is damaged")
    archive.add_argument(
        "address", metavar="URL", help="address of the archive: file:///directory or s3://bucket/prefix"
    )
    archive.add_argument("--shard", type=_shard, metavar="N", help="only this shard")
    archive.add_argument("--verify", action="store_true", help="read and check every segment, not only the manifests")
    archive.add_argument("--json", action="store_true", help="print one JSON object per shard")
    repair.add_argument(
        "--yes", action="store_true", help="change the log; without this option, only the losses are shown"
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="a data directory, or the directory of one log in it")
    parser.add_argument("--shard", type=_shard, metavar="N", help="only this shard's log (a number, or catalog)")


def _shard(text: str) -> int:
    if text == "catalog":
        return layout.CATALOG_SHARD
    if text.isascii() and text.isdigit() and int(text) <= layout.CATALOG_SHARD:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a shard: use a number or catalog")


def _type(text: str) -> str:
    try:
        return Type[text.upper().replace("-", "_")].name
    except KeyError:
        names = ", ".join(type_.name for type_ in Type)
        raise argparse.ArgumentTypeError(f"{text!r} is not a record type; use one of {names}") from None


def run(arguments: argparse.Namespace) -> int:
    actions = {"inspect": run_inspect, "verify": run_verify, "repair": run_repair, "archive": logarchive.run}
    return actions[arguments.action](arguments)


# --- which logs ----------------------------------------------------------------------------------


class Place:
    """The logs that DIR and --shard select, the data directory that contains them, and its cluster id."""

    def __init__(self, disk: Disk, directory: str, shard: int | None) -> None:
        directory = os.path.normpath(directory)
        if not os.path.isdir(directory):
            raise InvalidInput(f"{directory} is not a directory")
        if layout.segments(disk, directory):
            self.data_directory = os.path.dirname(os.path.abspath(directory))
            self.logs = {_shard_of(disk, directory): directory}
        else:
            self.data_directory = directory
            self.logs = layout.log_directories(disk, directory)
        if shard is not None:
            self.logs = {number: path for number, path in self.logs.items() if number == shard}
        if not self.logs:
            which = "" if shard is None else f" of {shard_text(shard)}"
            raise InvalidInput(f"there is no log{which} in {directory}")
        self.cluster: int | None = None
        self.problem: str | None = None
        try:
            self.cluster = cluster_of(disk, self.data_directory)
        except LogCorrupt as problem:
            self.problem = problem.message


def _shard_of(disk: Disk, directory: str) -> int:
    """The shard of a single log directory: from its name, or from its first frame if it was copied elsewhere."""
    name = os.path.basename(os.path.abspath(directory))
    if name == "catalog":
        return layout.CATALOG_SHARD
    match = re.fullmatch(r"shard-([0-9]+)", name)
    if match:
        return int(match[1])
    handle = disk.open(os.path.join(directory, layout.segment_name(layout.segments(disk, directory)[0])))
    try:
        return parse_header(disk.pread(handle, HEADER_BYTES, 0)).shard
    except LogCorrupt as problem:
        raise InvalidInput(
            f"cannot determine the shard of the log in {directory} ({problem.message}). Rename the directory "
            "to shard-0000 or similar."
        ) from None
    finally:
        disk.close(handle)


def shard_text(shard: int) -> str:
    return "the catalog" if shard == layout.CATALOG_SHARD else f"shard {shard}"


def live_stop(disk: Disk, place: Place, directory: str, shard: int) -> int | None:
    """The end of the committed part while a server is running; None if no server is writing."""
    if holder_of(place.data_directory) is None:
        return None
    note = committed.load(disk, os.path.join(directory, layout.COMMITTED), shard)
    return note.number + 1 if note is not None else None


# --- inspect -------------------------------------------------------------------------------------


def run_inspect(arguments: argparse.Namespace) -> int:
    disk = RealDisk()
    place = Place(disk, arguments.directory, arguments.shard)
    code = 0
    for shard, directory in place.logs.items():
        if not arguments.json:
            print(f"{shard_text(shard)}: {directory}")
        queues = _queue_numbers(disk, place, directory, shard, arguments.queue)
        stop = live_stop(disk, place, directory, shard)
        if arguments.last is not None:
            stop = min(stop, arguments.last + 1) if stop is not None else arguments.last + 1
        for found in walk(disk, directory, shard=shard, cluster=place.cluster, start=arguments.first, stop=stop):
            if isinstance(found, Damage):
                print(f"baton: {found.message}", file=sys.stderr)
                code = 1
            elif found.frame.number >= arguments.first:
                _show(found.frame, arguments, queues)
    return code


def _show(frame: Frame, arguments: argparse.Namespace, queues: set[int] | None) -> None:
    filtered = arguments.type is not None or queues is not None or arguments.sequence is not None
    records = [
        record for record in logrecords.records(frame, content=arguments.content) if _matches(record, arguments, queues)
    ]
    if filtered and not records:
        return
    if arguments.json:
        print(json_text({**_frame_fields(frame), "records": records}))
        return
    print(
        f"frame {frame.number}  epoch {frame.epoch}  {logrecords.time_text(frame.time_ms)}  "
        f"{plural(frame.row_count, 'record')}  "
        f"{frame.size} bytes  digest {frame.digest.hex()}"
    )
    for record in records:
        print(logrecords.as_line(record))


def _matches(record: dict[str, Any], arguments: argparse.Namespace, queues: set[int] | None) -> bool:
    if arguments.type is not None and record["type"] != arguments.type:
        return False
    if queues is not None and record["queue"] not in queues:
        return False
    return arguments.sequence is None or record.get("sequence") == arguments.sequence


def _frame_fields(frame: Frame) -> dict[str, Any]:
    return {
        "shard": frame.shard,
        "frame": frame.number,
        "epoch": frame.epoch,
        "time_ms": frame.time_ms,
        "cluster": f"{frame.cluster:016x}",
        "region": frame.region,
        "version": frame.version,
        "bytes": frame.size,
        "digest": frame.digest.hex(),
        "previous_digest": frame.previous_digest.hex(),
    }


def _queue_numbers(disk: Disk, place: Place, directory: str, shard: int, queue: str | None) -> set[int] | None:
    """The queue numbers that --queue selects: the number itself, or the numbers of all queues with that name in the
    log.
    """
    if queue is None:
        return None
    if queue.isascii() and queue.isdigit():
        return {int(queue)}
    numbers = set()
    stop = live_stop(disk, place, directory, shard)
    for found in walk(disk, directory, shard=shard, cluster=place.cluster, stop=stop):
        if isinstance(found, Damage):
            continue
        words = found.frame.words()
        for at in range(0, len(words), 8):
            if words[at] & 0xFF == Type.POLICY_SET:
                offset, length = words[at + 6] & 0xFFFFFFFF, words[at + 6] >> 32
                policy = QueuePolicy.decode(found.frame.variable[offset : offset + length])
                if policy.name == queue:
                    numbers.add(policy.queue)
    if not numbers:
        print(f"baton: the log of {shard_text(shard)} contains no queue with the name {queue!r}", file=sys.stderr)
    return numbers


# --- verify --------------------------------------------------------------------------------------


def run_verify(arguments: argparse.Namespace) -> int:
    disk = RealDisk()
    place = Place(disk, arguments.directory, arguments.shard)
    live = holder_of(place.data_directory) is not None
    if live:
        print("A server is using this directory: frames that it writes from now on are not checked.")
    sound = place.problem is None
    if place.problem is not None:
        print(place.problem)
    for shard, directory in place.logs.items():
        report = verify_log(disk, directory, shard=shard, cluster=place.cluster, live=live)
        _print_report(report)
        sound = sound and not report.damages
    print("Sound." if sound else "Damaged.")
    return 0 if sound else 1


def _print_report(report: Report) -> None:
    name = shard_text(report.shard)
    if not report.damages:
        frames = report.next - report.first
        extent = f", {report.first} to {report.next - 1}" if frames else ""
        print(
            f"{name}: {plural(frames, 'frame')}{extent}, {plural(report.segments, 'segment')}, "
            f"{report.bytes} bytes, epoch {report.epoch}"
        )
    else:
        print(f"{name}: DAMAGED")
        for damage in report.damages:
            print(f"  {damage.message}")
        for begin, end in report.readable_after:
            print(f"  Frames {begin} to {end - 1} after it can be read; `baton log inspect --from {begin}` shows them.")
    if report.torn is not None:
        print(
            f"  {report.torn.path}, offset {report.torn.offset}: incomplete write of frame "
            f"{report.torn.number} after a crash. It was never acknowledged; the next start removes it and "
            "keeps its bytes in a file."
        )
    for remark in report.remarks:
        print(f"  Note: {remark}.")


# --- repair --------------------------------------------------------------------------------------


def run_repair(arguments: argparse.Namespace) -> int:
    disk = RealDisk()
    place = Place(disk, arguments.directory, arguments.shard)
    if len(place.logs) > 1:
        names = ", ".join("catalog" if shard == layout.CATALOG_SHARD else str(shard) for shard in place.logs)
        raise InvalidInput(f"{arguments.directory} contains several logs; choose one with --shard: {names}")
    ((shard, directory),) = place.logs.items()
    with held(place.data_directory):
        cut = plan_cut(disk, directory, shard=shard, cluster=place.cluster, frame_number=arguments.truncate_at)
        _print_cut(cut)
        if not arguments.yes:
            print("Nothing was changed. Make a copy of the directory, then run the command again with --yes.")
            return 1
        carry_out(disk, cut, time.time_ns() // 1_000_000)
    print("Done. The removed part is kept in:")
    for path in cut.kept_in:
        print(f"  {path}")
    return 0


def _print_cut(cut: Cut) -> None:
    print(f"{shard_text(cut.shard)}: truncating {cut.directory} at frame {cut.frame_number} removes")
    print(f"  {cut.frames_lost} readable frames, and any unreadable data between them")
    for name, count in sorted(cut.records_lost.items()):
        print(f"  {count:>9} {name}")
    print(f"  {len(cut.later_segments)} later segments, {len(cut.snapshots)} snapshots")

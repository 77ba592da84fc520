"""`baton restore`: write a backup into a new data directory, and check that it is whole."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from batonq.cli.output import note, print_json
from batonq.cli.progress import Progress
from batonq.errors import InvalidInput
from batonq.log.backup_files import Backup, restore
from batonq.node.backup.state_check import RestoredState, StateCheck
from batonq.node.clock import iso_time
from batonq.quantities import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backup", metavar="BACKUP", help="directory or .tar file that `baton backup` has written")
    parser.add_argument("--data", metavar="DIR", help="new data directory to write; it must not exist, or be empty")
    parser.add_argument("--check", action="store_true", help="only check the backup")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if bool(arguments.data) == arguments.check:
        raise InvalidInput("Use either --data DIR, the new data directory, or --check.")
    check = StateCheck()
    with Backup(arguments.backup) as backup:
        manifest = backup.manifest
        with Progress("Checking" if arguments.check else "Restoring", manifest.bytes) as bar:
            if arguments.check:
                _check(backup, check, bar.update)
            else:
                now_ms = time.time_ns() // 1_000_000
                restore(
                    backup, arguments.data, now_ms=now_ms, on_frame=check, progress=bar.update, before_end=check.result
                )
        state = check.result()
    _report(arguments, manifest.at_ms, state)
    return 0


def _check(backup: Backup, check: StateCheck, progress: Callable[[int], None]) -> None:
    done = 0
    for log in backup.manifest.logs:
        for frame in backup.frames(log):
            check(log, frame)
        done += log.bytes
        progress(done)
    check.result()


def _report(arguments: argparse.Namespace, at_ms: int, state: RestoredState) -> None:
    if arguments.json:
        found = state._asdict()
        print_json(
            {
                "data": arguments.data,
                "atMs": at_ms,
                "queues": found["queues"],
                "messages": found["messages"],
                "inFlight": found["in_flight"],
                "keys": found["keys"],
                "shards": found["shards"],
            }
        )
        return
    what = (
        f"{plural(state.messages, 'message')} ({state.in_flight:,} in flight) in {plural(state.queues, 'queue')}, "
        f"{plural(state.keys, 'access key')}, as committed at {iso_time(at_ms)}"
    )
    if arguments.check:
        print(f"{arguments.backup} is whole: {what}.")
        return
    print(f"{arguments.data} contains {what}.")
    note(
        f"Start it with: baton serve --data {arguments.data}\n"
        "Leases, delays and retention go by the time of day: what is due by now happens at the start. Do not run it "
        "beside the original server for the same clients."
    )

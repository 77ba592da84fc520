"""`baton backup`: copy what a running server has committed, up to one point, into a new directory or file."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from contextlib import suppress
from typing import Any

from batonq.cli.connection import Server, add_operator_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import note, print_json
from batonq.cli.progress import Progress
from batonq.errors import BatonError, LogError
from batonq.log.backup_files import BackupLog, LogWriter, Manifest, make_tar, write_manifest
from batonq.log.disk import DIRECTORY_MODE
from batonq.log.layout import CATALOG_SHARD
from batonq.node.clock import iso_time
from batonq.quantities import plural

PIECE_BYTES = 8 << 20
PATIENCE_S = 600.0  # for a server whose rate of history reads is limited, or that is unavailable for a while


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        required=True,
        metavar="PATH",
        help="new directory to write, or a new file if the name ends with .tar",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_operator_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    path: str = arguments.output.rstrip("/")
    if os.path.exists(path):
        raise WrongUsage(f"{path} already exists. Choose another --output: a backup never replaces anything.")
    server = connect(arguments)
    as_file = path.endswith(".tar")
    unfinished = f"{path}.unfinished"
    try:
        os.makedirs(unfinished, mode=DIRECTORY_MODE)
    except OSError as problem:
        raise WrongUsage(f"{unfinished} cannot be created: {problem.strerror}.") from None
    try:
        manifest = back_up(server, unfinished)
        if as_file:
            make_tar(unfinished, path)
        else:
            os.rename(unfinished, path)
    except OSError as problem:
        raise LogError(f"The backup cannot be written to {path}: {problem.strerror}.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shards = len(manifest.logs) - 1
    if arguments.json:
        print_json({"path": path, "atMs": manifest.at_ms, "bytes": manifest.bytes, "shards": shards})
    else:
        print(
            f"{path} contains everything that was committed at {iso_time(manifest.at_ms)}: "
            f"{plural(manifest.bytes, 'byte')} of {plural(shards, 'shard')} and the catalog, checked."
        )
        note("It contains messages and the secrets of access keys: protect it like the data directory.")
    return 0


def back_up(server: Server, directory: str) -> Manifest:
    """Write a backup of a running server into a directory that exists. Raises BatonError, OSError."""
    point = server.post("/v1/backups")
    logs = [_log(given) for given in (*point["shards"], point["catalog"])]
    cluster = int(point["cluster"], 16)
    total = sum(given["bytes"] for given in (*point["shards"], point["catalog"]))
    written: list[BackupLog] = []
    done = 0
    try:
        with Progress("Backing up", total) as bar:
            for log in logs:
                writer = LogWriter(directory, log, cluster)
                try:
                    while writer.next < log.next:
                        done += writer.write(_piece(server, point["backup"], log, writer.next))
                        bar.update(done)
                    written.append(writer.finish())
                finally:
                    writer.close()
    finally:
        with suppress(BatonError):  # otherwise the server gives it up after some minutes
            server.post(f"/v1/backups/{point['backup']}:finish")
    manifest = Manifest(point["atMs"], point["release"], point["cluster"], point["account"], tuple(written))
    write_manifest(directory, manifest)
    return manifest


def _log(given: dict[str, Any]) -> BackupLog:
    return BackupLog(given["shard"], given["firstFrame"], given["nextFrame"], given["digest"])


def _piece(server: Server, backup: str, log: BackupLog, start: int) -> bytes:
    """Frames from `start` on. Waits while the server limits the rate."""
    query: dict[str, Any] = {"from": start, "to": log.next}
    path = f"/v1/backups/{backup}/catalog"
    if log.shard != CATALOG_SHARD:
        path = f"/v1/history/{log.shard}"
        query["max_bytes"] = PIECE_BYTES
    until_s = time.monotonic() + PATIENCE_S
    while True:
        data, wait_s = server.fetch(path, query)
        if data:
            return data
        if wait_s is None or time.monotonic() + wait_s > until_s:
            raise LogError(f"The server has no frame {start} of {log.title}. Start a new backup.")
        time.sleep(wait_s)

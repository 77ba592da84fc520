"""`baton doctor`: check a server, its data directory and its queues for what will hurt later."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from batonq import __version__
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import DONE, PROBLEMS_FOUND
from batonq.cli.output import duration, print_json, printable, size, style
from batonq.cli.queue_checks import LEVELS, Finding, QueueFacts, check_queues
from batonq.errors import AccessDenied, BatonError, InvalidInput, QueueDoesNotExist
from batonq.quantities import plural

CLOCK_OFFSET_MAX_S = 5.0
DISK_FREE_WARNING, DISK_FREE_CRITICAL = 0.15, 0.05
QUEUES_MEASURED_MAX = 200
HANDLING_RANGE = "6h"
LOG_BYTES_MAX = 64 << 20  # read per queue of a data directory without a server
PAGE = 1_000
VOLATILE = ("tmpfs", "ramfs")
FEW_MEASURES = 20
_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "critical": ("CRITICAL", "red")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print only problems")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    findings = list(_findings(arguments))
    if arguments.json:
        print_json(
            {
                "level": max((finding.level for finding in findings), key=LEVELS.index, default="ok"),
                "findings": [finding._asdict() for finding in findings],
            }
        )
    else:
        _print(findings, quiet=arguments.quiet)
    return PROBLEMS_FOUND if any(finding.level != "ok" for finding in findings) else DONE


def _print(findings: list[Finding], *, quiet: bool) -> None:
    for finding in findings:
        if quiet and finding.level == "ok":
            continue
        word, colour = _MARKS[finding.level]
        print(f"{style(word, colour)}  {finding.check}: {printable(finding.text)}")
        if finding.remedy:
            print(f"    {finding.remedy}")
    counts = Counter(finding.level for finding in findings)
    problems = counts["warning"] + counts["critical"]
    print(f"{plural(len(findings), 'check')}, {plural(problems, 'problem')}.")


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    if not arguments.data:
        yield from check_server(connect(arguments))
        return
    from batonq.log.ownership import holder_of

    if not os.path.isdir(arguments.data):
        raise InvalidInput(f"The data directory {arguments.data} does not exist.")
    yield from check_directory(arguments.data)
    if holder_of(arguments.data) is not None:
        yield from check_server(connect(arguments))
    else:
        yield Finding("ok", "server", arguments.data, f"No server is using {arguments.data}; its log is read instead.")
        yield from check_queues(_stored_queues(arguments.data))


# --- a running server -------------------------------------------------------------------------


def check_server(server: Server) -> Iterator[Finding]:
    queues = _all_queues(server)  # raises if the server cannot be reached, or refuses the credentials
    yield Finding("ok", "server", server.url, f"{server.url} ({server.target.origin}) answers.")
    yield from _check_transport(server)
    try:
        status = server.get("/v1/status")
    except AccessDenied:
        yield Finding("ok", "status", server.url, "These credentials may not read the status of the server.")
    else:
        yield from check_status(status, time.time())
    facts = [_facts(server, queue, place) for place, queue in enumerate(queues)]
    problems = list(check_queues(facts))
    yield from problems
    if not problems:
        yield Finding("ok", "queues", server.url, f"{plural(len(queues), 'queue')} without a problem in the settings.")


def _check_transport(server: Server) -> Iterator[Finding]:
    host = urlsplit(server.url).hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    if server.url.startswith("http:") and not local:
        yield Finding(
            "warning",
            "encryption",
            server.url,
            f"{server.url} does not use TLS: messages travel in plain text.",
            "Start the server with --tls-cert and --tls-key, and use an https:// URL.",
        )


def check_status(status: dict[str, Any], now_s: float) -> Iterator[Finding]:
    version = status["version"]
    if version == __version__:
        yield Finding("ok", "version", version, f"The server and this command have the version {version}.")
    else:
        text = f"The server has the version {version}, this command {__version__}."
        yield Finding("warning", "version", version, text, "Use the same version on both sides.")
    offset_s = status["atMs"] / 1000 - now_s
    if abs(offset_s) > CLOCK_OFFSET_MAX_S:
        direction = "ahead of" if offset_s > 0 else "behind"
        text = f"The server's clock is {duration(abs(offset_s))} {direction} the clock of this machine."
        remedy = "Synchronize both clocks with NTP. Signatures are refused if the clocks differ by 15 minutes."
        if status.get("profile") == "development":
            remedy += " `baton clock advance` moves the clock of a development server on purpose."
        yield Finding("warning", "clock", "server", text, remedy)
    else:
        yield Finding("ok", "clock", "server", f"The clocks differ by {duration(abs(offset_s))}.")
    disk = status.get("disk", {})
    if disk.get("totalBytes"):
        yield _disk(disk.get("path") or "the server", disk["freeBytes"], disk["totalBytes"])
    for shard in status.get("shards", []):
        if shard["state"] not in ("serving", "elsewhere"):
            text = f"Shard {shard['number']} is {shard['state']}: {shard.get('why') or 'no reason is known'}."
            yield Finding("critical", "shard", str(shard["number"]), text, "See `baton status` and the server's log.")
    for problem in status["verdict"]["problems"]:
        yield Finding(problem["level"], "now", problem.get("queue", "server"), problem["text"])


def _disk(where: str, free: int, total: int) -> Finding:
    share = free / total
    level = "critical" if share < DISK_FREE_CRITICAL else "warning" if share < DISK_FREE_WARNING else "ok"
    text = f"{size(free)} of {size(total)} are free at {where} ({share:.0%})."
    remedy = "Free disk space, or delete messages: sends are refused when the disk is full." if level != "ok" else ""
    return Finding(level, "disk", where, text, remedy)


def _all_queues(server: Server) -> list[dict[str, Any]]:
    queues: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = server.get("/v1/queues", limit=PAGE, cursor=cursor)
        queues += page["queues"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return queues


def _facts(server: Server, queue: dict[str, Any], place: int) -> QueueFacts:
    return QueueFacts(
        name=queue["name"],
        visibility_s=queue["defaultVisibilityTimeoutSeconds"],
        retention_s=queue["retentionSeconds"],
        max_receives=queue.get("maxReceiveCount") or 0,
        dead_letter_queue=queue.get("deadLetterQueue", ""),
        handling_p99_s=_handling(server, queue["name"]) if place < QUEUES_MEASURED_MAX else None,
    )


def _handling(server: Server, name: str) -> float | None:
    """The highest 99th percentile of the handling time in the last hours; None if nothing was measured."""
    try:
        series = server.get(queue_path(name, "series"), range=HANDLING_RANGE)
    except QueueDoesNotExist:  # deleted in the meantime
        return None
    measured = [value for value in series["values"].get("handlingP99Ms", []) if value is not None]
    return max(measured) / 1000 if measured else None


# --- a data directory -------------------------------------------------------------------------


def check_directory(directory: str) -> Iterator[Finding]:
    yield _private(directory, "The data directory", 0o077)
    for name in ("admin-token",):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            yield _private(path, "The admin token", 0o077)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        text = f"The user {os.geteuid()} cannot read and write {directory}."
        yield Finding("critical", "permissions", directory, text, "Run this as the user of the server.")
    free = os.statvfs(directory)
    yield _disk(os.path.abspath(directory), free.f_bavail * free.f_frsize, free.f_blocks * free.f_frsize)
    kind = _file_system(directory)
    if kind in VOLATILE:
        text = f"{directory} is on {kind}, which is memory: all messages are lost when the machine restarts."
        yield Finding("critical", "sync", directory, text, "Use a directory on a disk.")
    elif kind:
        text = f"{directory} is on {kind}; every answer waits for fdatasync."
        yield Finding("ok", "sync", directory, text)


def _private(path: str, what: str, mask: int) -> Finding:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & mask:
        text = f"{what} {path} is open to other users (mode {mode:04o})."
        return Finding("warning", "permissions", path, text, f"chmod go= {path}")
    return Finding("ok", "permissions", path, f"{what} {path} is private (mode {mode:04o}).")


def _file_system(directory: str) -> str:
    """The type of the file system; empty where /proc does not tell."""
    if not sys.platform.startswith("linux"):
        return ""
    real = os.path.realpath(directory)
    best, kind = "", ""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                parts = line.split()
                mount = parts[1].replace("\\040", " ")
                inside = real == mount or real.startswith(mount.rstrip("/") + "/")
                if inside and len(mount) >= len(best):
                    best, kind = mount, parts[2]
    except OSError:
        return ""
    return kind


def _stored_queues(directory: str) -> Iterator[QueueFacts]:
    from batonq.cli.queue_statistics import measure, read_catalog
    from batonq.scaling.sizing import quantile

    catalog = read_catalog(directory)
    numbers = {entry.number: entry.name for entry in catalog.queues.values()}
    for entry in catalog.queues.values():
        policy = entry.policy
        try:
            times = sorted(measure(directory, entry, LOG_BYTES_MAX).times_s)
        except BatonError:  # a damaged log is what `baton log verify` is for
            times = []
        yield QueueFacts(
            name=entry.name,
            visibility_s=policy.visibility_ms / 1000,
            retention_s=policy.retention_ms / 1000,
            max_receives=policy.max_receives,
            dead_letter_queue=numbers.get(policy.dead_letter_queue, ""),
            handling_p99_s=quantile(times, 0.99) if len(times) >= FEW_MEASURES else None,
        )

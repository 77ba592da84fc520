"""How soon a server is ready again after a kill, compared with reading and checksumming its files."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path

import google_crc32c

from bench import bodies, sqs
from bench.clients import BenchError
from bench.context import Context, send_all, supply
from bench.machine import CpuTimes
from bench.report import Sample
from bench.servers import Server

_CONNECTIONS = 16
_CHUNK_BYTES = 1 << 20
_SERVED = re.compile(r"^(\S+)Z info +(?:The catalog|Shard \d+) is served", re.MULTILINE)
_NUMBER = re.compile(r"(\d+)\.(?:log|bin)$")


def _number(path: Path) -> int:
    match = _NUMBER.search(path.name)
    assert match is not None
    return int(match[1])


def files_to_read(data: Path) -> list[Path]:
    """The files that a start must read: the newest snapshot of each log and the segments after it, or all."""
    needed: list[Path] = []
    for log in sorted(path for path in data.iterdir() if path.is_dir()):
        snapshots = sorted(log.glob("snapshots/snapshot-*.bin"), key=_number)
        segments = sorted(log.glob("segment-*.log"), key=_number)
        covered = 0
        if snapshots:
            needed.append(snapshots[-1])
            covered = _number(snapshots[-1])
        following = [_number(segment) for segment in segments[1:]] + [1 << 63]
        needed += [segment for segment, after in zip(segments, following, strict=True) if after > covered + 1]
    return needed


def forget(paths: list[Path]) -> None:
    """Evict these files from the page cache, as after a restart of the machine."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_and_checksum(paths: list[Path]) -> float:
    """Seconds to read these files from front to back with a CRC32C over all of it."""
    started = time.perf_counter()
    for path in paths:
        crc = 0
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                crc = google_crc32c.extend(crc, chunk)
    return time.perf_counter() - started


def reading_s(log: str) -> float:
    """Seconds from the catalog being served to the shard being served, from the server's
    own log: reading and replay.
    """
    moments = [datetime.fromisoformat(match[1]) for match in _SERVED.finditer(log)]
    if len(moments) < 2:
        raise BenchError(f"the server did not say when its shard was served: {log[-500:]}")
    return (moments[-1] - moments[-2]).total_seconds()


def _restart(server: Server, url: str, messages: int) -> Sample:
    """Start a stopped server. Its files are read from the disk, as for the comparison before it.

    `ready s` and `ready CPU s` are everything, including the start of Python; `recovery s` is the part that depends on
    the messages.
    """
    paths = files_to_read(server.directory / "data")
    times = CpuTimes.now()
    forget(paths)
    read_s = read_and_checksum(paths)
    forget(paths)
    ready_s = server.start()
    cpu_s = server.cpu_us() / 1e6
    steal = CpuTimes.now().steal_percent_since(times)
    path = "/".join(url.split("/")[3:])
    url = f"http://127.0.0.1:{server.port}/{path}"
    answer = sqs.call(server.port, "GetQueueAttributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    if str(messages) not in str(answer):
        raise BenchError(f"{messages} messages were waiting, now: {answer}")
    recovery_s = reading_s(server.last_words())
    return {
        "ready s": ready_s,
        "recovery s": recovery_s,
        "ready CPU s": cpu_s,
        "read and checksum s": read_s,
        "recovery ÷ read": recovery_s / read_s,
        "to read MB": sum(path.stat().st_size for path in paths) / 1e6,
        "steal %": steal,
    }


def recovery(context: Context) -> None:
    """Kill a server with a million live messages; start it with its snapshots removed, then with one."""
    messages = context.size(1_000_000, 100_000)
    queues = {build: _killed(context, build, messages) for build in context.servers.builds}
    samples: dict[str, list[Sample]] = {}
    for _ in range(1 if context.quick else context.rounds):
        for build, (server, url) in queues.items():
            suffix = ", before" if build == "before" else ""
            for snapshot in (server.directory / "data").glob("*/snapshots/*"):
                snapshot.unlink()
            samples.setdefault("no snapshot" + suffix, []).append(_restart(server, url, messages))
            server.stop()  # an orderly stop leaves a snapshot
            samples.setdefault("snapshot" + suffix, []).append(_restart(server, url, messages))
            server.stop(signal.SIGKILL)
    for server, _ in queues.values():
        server.discard()
    report = context.report
    table = report.table("recovery", f"{messages:,} live messages of 1 KiB", samples, "recovery s")
    for kind in ("no snapshot", "snapshot"):
        text = f"recovery, {kind}, ÷ reading and checksumming {table.median(kind, 'to read MB'):.0f} MB"
        report.bar("recovery", text, table.median(kind, "recovery ÷ read"), 3, at_least=False)
        if len(queues) > 1:
            for figure, what in (("recovery s", "recovery"), ("ready CPU s", "server CPU until ready")):
                report.no_worse("recovery", f"{what}, {kind}", table.ratio(kind, f"{kind}, before", figure))


def _killed(context: Context, build: str, messages: int) -> tuple[Server, str]:
    """A server that was killed with this many messages in a queue, and the queue's URL."""
    server = context.servers.baton(build=build)
    work = server.work()
    assert isinstance(work, sqs.SqsQueue)
    send_all(work, supply(work, bodies.documents(200), messages), _CONNECTIONS)
    server.stop(signal.SIGKILL)
    return server, work.url

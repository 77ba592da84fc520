"""`baton plan`: the number of workers for a load (`--rate 200 --seconds 3 --slo 60`), or settings for a queue from its
history.

The second form reads the log of a data directory, whether or not a server is using it, and changes nothing.
"""

from __future__ import annotations

import argparse
import json
from math import ceil
from typing import Any, NamedTuple

from batonq.cli.quantities import parse_bytes, parse_duration_s
from batonq.errors import InvalidInput
from batonq.scaling.sizing import (
    HEADROOM,
    Sizing,
    advised_receives,
    advised_visibility_s,
    high_water_mark,
    quantile,
    size,
)

# the default of `baton serve`; importing its settings would load modules that sizing does not need
DEFAULT_DATA = "baton-data"
DEFAULT_READ = 256 << 20
DEFAULT_SLO_S = 60.0
MEASURES_MIN = 20


class Advice(NamedTuple):
    what: str
    now: str
    advised: str
    because: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="recommend settings for this queue, based on its log")
    parser.add_argument("--rate", type=float, metavar="N", help="arriving messages per second")
    parser.add_argument("--seconds", type=float, help="processing time of one message")
    parser.add_argument(
        "--slo",
        type=parse_duration_s,
        metavar="TIME",
        help=f"maximum waiting time of a message: 60, 5m (default: the queue's SLA; with --rate, {DEFAULT_SLO_S:g} s)",
    )
    parser.add_argument(
        "--headroom",
        type=float,
        default=HEADROOM,
        metavar="SHARE",
        help=f"share of spare workers (default {HEADROOM})",
    )
    parser.add_argument(
        "--backlog", type=int, metavar="N", help="backlog to drain, in messages (default: the arrivals of one minute)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1,
        metavar="N",
        help="messages that one worker processes at the same time (default 1)",
    )
    parser.add_argument(
        "--data", default=DEFAULT_DATA, metavar="DIRECTORY", help=f"data directory (default {DEFAULT_DATA})"
    )
    parser.add_argument("--account", help="account of the queue, if several accounts have a queue with that name")
    parser.add_argument(
        "--read",
        type=parse_bytes,
        default=DEFAULT_READ,
        metavar="BYTES",
        help="how much of the end of the log to read (default 256MiB)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.concurrency < 1:
        raise InvalidInput("--concurrency must be at least 1")
    if arguments.queue is not None:
        if arguments.rate is not None or arguments.seconds is not None:
            raise InvalidInput(
                "a queue's rate and processing times are measured: use either a queue name, or --rate and --seconds"
            )
        return _run_queue(arguments)
    if arguments.rate is None or arguments.seconds is None:
        raise InvalidInput("use --rate and --seconds (for example --rate 200 --seconds 3), or name a queue")
    if arguments.slo is None:
        arguments.slo = DEFAULT_SLO_S
    found = size(arguments.rate, arguments.seconds, arguments.slo, arguments.headroom, arguments.backlog)
    processes = ceil(found.workers / arguments.concurrency)
    if arguments.json:
        print(json.dumps(_sizing_fields(found, processes), indent=2))
    else:
        _print_sizing(arguments, found, processes)
    return 0


# --- from numbers -------------------------------------------------------------------------------


def _sizing_fields(found: Sizing, processes: int) -> dict[str, Any]:
    return {
        "busy": round(found.busy, 3),
        "workers": found.workers,
        "processes": processes,
        "headroom": round(found.headroom, 4),
        "utilisation": round(found.utilisation, 4),
        "drainPerSecond": round(found.drain_rate, 3),
        "lateShare": round(found.late_share, 6),
        "highWaterMark": found.high_water,
        "backlog": found.backlog,
        "backlogDrainSeconds": round(found.drain_s, 1),
    }


def _print_sizing(arguments: argparse.Namespace, found: Sizing, processes: int) -> None:
    print(f"busy workers      {found.busy:,.4g}  ({arguments.rate:g} per second × {arguments.seconds:g} s)")
    each = f", in {processes:,} processes of {arguments.concurrency}" if arguments.concurrency > 1 else ""
    print(f"workers           {found.workers:,}{each}")
    print(f"headroom          {found.headroom:.0%}, so workers are busy {found.utilisation:.0%} of the time")
    print(f"late              {found.late_share:.2%} wait longer than {arguments.slo:g} s, if arrivals are random")
    print(f"drain rate        {found.drain_rate:,.4g} per second when all workers are busy")
    print(f"high-water mark   {found.high_water:,} messages (drain rate × {arguments.slo:g} s): shed load beyond it")
    print(f"backlog           {found.backlog:,} messages are drained in {_time(found.drain_s)}")


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- from a queue's past ------------------------------------------------------------------------


def _run_queue(arguments: argparse.Namespace) -> int:
    # imports the log reader, which sizing from numbers does not need
    from batonq.cli.queue_statistics import find_queue, measure

    entry = find_queue(arguments.data, arguments.queue, arguments.account)
    found = measure(arguments.data, entry, arguments.read)
    if len(found.times_s) < MEASURES_MIN:
        raise InvalidInput(
            f"The log contains {len(found.times_s)} completed messages of {entry.name}; at least "
            f"{MEASURES_MIN} are needed. Read more of the log with --read, or use --rate, --seconds and --slo."
        )
    times = sorted(found.times_s)
    median, p99 = quantile(times, 0.5), quantile(times, 0.99)
    policy = entry.policy
    sla_s = arguments.slo or policy.sla_seconds
    visibility, receives = (
        advised_visibility_s(median, p99),
        advised_receives(found.failed_share, found.tries_of(0.999)),
    )
    advice = [
        Advice(
            "visibility timeout",
            f"{policy.visibility_ms / 1000:g} s",
            f"{visibility} s",
            f"the larger of 6 × the median ({_time(median)}) and 2 × p99 ({_time(p99)})",
        ),
        Advice(
            "maximum receives",
            str(policy.max_receives or "unlimited"),
            str(receives),
            f"{found.failed_share:.2%} of {found.leases:,} leases failed; "
            f"{found.tries_of(0.999)} were enough for 99.9 % of messages",
        ),
        Advice(
            "high-water mark",
            f"{policy.messages_max:,}" if policy.messages_max else "none",
            f"{high_water_mark(found.drain_rate, sla_s):,}" if sla_s else "?",
            f"{found.drain_rate:,.4g} per second were completed in the busiest minute × "
            + (f"{sla_s:g} s" if sla_s else "an SLA, which the queue does not have: use --slo"),
        ),
        _headroom(found.arrival_rate, found.drain_rate, arguments.headroom),
    ]
    if arguments.json:
        fields = {
            "queue": entry.name,
            "messages": len(times),
            "spanSeconds": round(found.span_s, 1),
            "medianSeconds": median,
            "p99Seconds": p99,
            "lateDeletes": found.late,
            "arrivalsPerSecond": round(found.arrival_rate, 3),
            "drainPerSecond": round(found.drain_rate, 3),
            "busy": round(found.busy, 3),
            "failedShare": round(found.failed_share, 6),
            "visibilityTimeoutSeconds": visibility,
            "maxReceiveCount": receives,
            "highWaterMark": high_water_mark(found.drain_rate, sla_s) if sla_s else None,
            "headroom": round(found.drain_rate / found.arrival_rate - 1, 4) if found.arrival_rate else None,
        }
        print(json.dumps(fields, indent=2))
        return 0
    print(
        f"{entry.name}: {len(times):,} messages in {_time(found.span_s)}, {found.arrival_rate:,.3g} per "
        f"second; {found.busy:,.3g} processed at the same time"
    )
    if found.late:
        print(
            f"{found.late:,} messages were deleted after their lease had expired: the visibility timeout was too short."
        )
    _print_table(advice)
    return 0


def _headroom(arrivals: float, drain: float, wanted: float) -> Advice:
    because = f"{arrivals:,.3g} per second arrived, {drain:,.3g} per second were completed in the busiest minute"
    if not arrivals:
        return Advice("headroom", "?", f"{wanted:.0%}", "no messages arrived in the part of the log that was read")
    seen = drain / arrivals - 1
    if seen < wanted:
        because += "; add workers, unless the existing ones were never all busy"
    return Advice("headroom", f"{seen:.0%}", f"{wanted:.0%} or more", because)


def _print_table(advice: list[Advice]) -> None:
    rows = [Advice("", "now", "advised", "because"), *advice]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row.because]))

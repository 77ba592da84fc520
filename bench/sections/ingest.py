"""History to the lake, compared with Spark rewriting the same rows from Parquet to Parquet."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.context import Context
from bench.lab import Lab
from bench.machine import CpuTimes
from bench.report import Sample
from bench.watch import Watch

_RATIO_MIN = 0.5


@dataclass(slots=True)
class _Way:
    name: str
    run: Callable[[Lab, int, Path], str]


def _ingest(lab: Lab, events: int, target: Path) -> str:
    lab.run("ingest", target, events)
    return f"{target}/events"


def _rewrite(lab: Lab, events: int, target: Path) -> str:
    lab.events(events).write.partitionBy("date").parquet(str(target))
    return str(target)


def ingest(context: Context) -> None:
    """Events per second of both, in one session of two cores."""
    lab = context.lab
    events = context.size(5_000_000, 200_000)
    rows = lab.events(events).count()

    def measure(way: _Way) -> Sample:
        target = lab.scratch(way.name)
        times, started = CpuTimes.now(), time.perf_counter()
        with Watch(os.getpid()) as watch:
            written = way.run(lab, events, target)
        seconds = time.perf_counter() - started
        assert lab.spark.read.parquet(written).count() == rows
        shutil.rmtree(target.parent)
        return {
            "events/s": rows / seconds,
            "worker MB": watch.peaks.worker / 1e6,
            "JVM MB": watch.peaks.jvm / 1e6,
            "steal %": CpuTimes.now().steal_percent_since(times),
        }

    samples = context.interleave([_Way("ingest", _ingest), _Way("rewrite", _rewrite)], measure)
    title = f"{events:,} events, from the log and from Parquet to Parquet"
    table = context.report.table("ingest", title, samples, "events/s")
    ratio = table.ratio("ingest", "rewrite", "events/s")
    context.report.bar("ingest", "events/s, ingest ÷ rewriting its Parquet", ratio, _RATIO_MIN, at_least=True)

"""Time and memory of the pipeline's commands against the size of history, each in its own process."""

from __future__ import annotations

import shutil
import sys

from bench.context import Context
from bench.curves import Panel, draw
from bench.machine import CpuTimes
from bench.report import Sample
from bench.watch import run_watched

_JOBS = ("ingest", "lifecycle", "audit")
_SIZES = (1_000_000, 5_000_000, 20_000_000)
_QUICK_SIZES = (50_000, 250_000, 1_000_000)
_FLAT_MAX = 1.2
_LINEAR_MAX = 1.1

Measured = dict[str, dict[int, Sample]]


def growth(context: Context) -> None:
    """One run of each command at each size: the total, including the start of Spark."""
    sizes = _QUICK_SIZES if context.quick else _SIZES
    measured: Measured = {job: {} for job in _JOBS}
    for events in sizes:
        lake = context.lab.scratch("lake")
        for job in _JOBS:
            measured[job][events] = _run(context, job, str(lake), events)
        shutil.rmtree(lake.parent)
        context.lab.forget(events)
    samples = {f"{job} {events / 1e6:g} M": [one] for job, by in measured.items() for events, one in by.items()}
    context.report.table("growth", "commands against the size of history", samples, "s")
    _bars(context, measured, sizes)
    context.report.plots["growth.svg"] = _plot(measured)


def _run(context: Context, job: str, lake: str, events: int) -> Sample:
    command = [sys.executable, "-m", "batonq.cli.main", *context.lab.arguments(job, lake, events)]
    times = CpuTimes.now()
    seconds, peaks = run_watched(command)
    return {
        "s": seconds,
        "µs/event": seconds / events * 1e6,
        "worker MB": peaks.worker / 1e6,
        "JVM MB": peaks.jvm / 1e6,
        "steal %": CpuTimes.now().steal_percent_since(times),
    }


def _bars(context: Context, measured: Measured, sizes: tuple[int, int, int]) -> None:
    small, middle, large = sizes
    workers = {events: one["worker MB"] for events, one in measured["ingest"].items()}
    text = f"memory of ingest's Python workers, {middle / 1e6:g} ÷ {small / 1e6:g} million events"
    context.report.bar("growth", text, workers[middle] / workers[small], _FLAT_MAX, at_least=False)
    for job, by in measured.items():
        linear = by[large]["µs/event"] / by[middle]["µs/event"]
        text = f"{job}, time an event, {large / 1e6:g} ÷ {middle / 1e6:g} million events"
        context.report.bar("growth", text, linear, _LINEAR_MAX, at_least=False)


def _plot(measured: Measured) -> str:
    def lines(figure: str) -> dict[str, list[tuple[float, float]]]:
        return {job: [(events / 1e6, one[figure]) for events, one in by.items()] for job, by in measured.items()}

    label = "million events"
    memory = {f"{job}, JVM": line for job, line in lines("JVM MB").items()}
    memory["ingest, largest Python worker"] = lines("worker MB")["ingest"]
    return draw([Panel("seconds, local[2]", label, lines("s")), Panel("memory, MB", label, memory)])

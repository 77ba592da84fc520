"""Lifecycle and audit by Spark, compared with DuckDB and Polars creating the same rows from the same Parquet."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batonq.pipeline.events.schema import Column
from bench.clients import BenchError
from bench.context import Context
from bench.lab import Lab
from bench.machine import CpuTimes
from bench.parquet import audit_duckdb, audit_polars, lifecycle_duckdb, lifecycle_polars, planting
from bench.parquet.digest import digest
from bench.report import Sample, Table

_TIMES_MAX = 5.0
_EVENTS, _QUICK_EVENTS = 5_000_000, 200_000
_VIOLATION = (Column("kind", "name", ""), Column("shard", "int32", ""), Column("sequence", "int64", ""))


@dataclass(slots=True)
class _Way:
    """An engine; `make` writes its rows to a directory that does not exist yet, and returns the files."""

    name: str
    make: Callable[[Path], Sequence[str]]


def lifecycle(context: Context) -> None:
    """The job as `baton pipeline lifecycle` runs it, into its lake."""
    from batonq.pipeline.tables.lifecycle import TABLE

    lab, events = context.lab, context.size(_EVENTS, _QUICK_EVENTS)
    lake = lab.lake(events)

    def by_spark(_: Path) -> Sequence[str]:
        lab.run("lifecycle", lake, events)
        return lab.files(events, "message_lifecycle")

    peers = {"DuckDB": lifecycle_duckdb.make, "Polars": lifecycle_polars.make}
    ways = [_Way("Spark", by_spark), *_peers(lab, peers, lab.files(events, "events"), events)]
    _compare(context, "lifecycle", f"one row a message of {events:,} events", ways, TABLE.columns)


def audit(context: Context) -> None:
    """Every rule on a copy of the events with planted violations, which all must find."""
    from batonq.pipeline.audit.audit import audit as violations

    lab, events = context.lab, context.size(_EVENTS, _QUICK_EVENTS)
    planted = lab.scratch("planted")
    planted.mkdir()
    planting.plant(lab.files(events, "events"), str(planted / "events.parquet"))
    files = [str(planted / "events.parquet")]

    def by_spark(target: Path) -> Sequence[str]:
        rows = lab.spark.read.parquet(*files).drop("source")
        found = violations(rows, lab.spark.read.parquet(*lab.files(events, "queues")).drop("source"))
        found.write.parquet(str(target))
        return [str(path) for path in target.glob("*.parquet")]

    peers = {"DuckDB": audit_duckdb.make, "Polars": audit_polars.make}
    ways = [_Way("Spark", by_spark), *_peers(lab, peers, files, events)]
    _compare(context, "audit", f"all rules over {events:,} events", ways, _VIOLATION)
    shutil.rmtree(planted.parent)


def _peers(
    lab: Lab, makers: Mapping[str, Callable[[list[str], list[str], str], None]], files: list[str], events: int
) -> list[_Way]:
    queues = lab.files(events, "queues")

    def way(name: str) -> _Way:
        def make(target: Path) -> Sequence[str]:
            makers[name](files, queues, str(target))
            return [str(target)]

        return _Way(name, make)

    return [way(name) for name in makers]


def _compare(context: Context, section: str, title: str, ways: list[_Way], columns: Sequence[Column]) -> None:
    made: dict[str, tuple[int, int]] = {}

    def measure(way: _Way) -> Sample:
        target = context.lab.scratch(way.name.lower())
        times, started = CpuTimes.now(), time.perf_counter()
        files = way.make(target)
        seconds = time.perf_counter() - started
        steal = CpuTimes.now().steal_percent_since(times)
        made[way.name] = digest(files, columns)
        shutil.rmtree(target.parent)
        if len(set(made.values())) > 1:
            raise BenchError(f"{section}: the engines made different rows: {made}")
        return {"s": seconds, "rows": made[way.name][0], "steal %": steal}

    samples = context.interleave(ways, measure)
    table = context.report.table(section, title, samples, "s")
    ratio = _against_best(table)
    text = f"{section}, seconds, Spark ÷ the best of DuckDB and Polars"
    context.report.bar(section, text, ratio, _TIMES_MAX, at_least=False)


def _against_best(table: Table) -> float:
    """The median of the ratios per round."""
    rounds = zip(*(table.samples[name] for name in ("Spark", "DuckDB", "Polars")), strict=True)
    ratios: list[float] = [spark["s"] / min(duckdb["s"], polars["s"]) for spark, duckdb, polars in rounds]
    return statistics.median(ratios)

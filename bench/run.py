"""Run the benchmarks: contestants interleaved, medians, ratios, bars; JSON and a plot.

python -m bench.run [send life rest single mix backlog filters topics memory idle readers recovery worker loading]
python -m bench.run processes replicated database cluster [--quick] [--rounds N]
python -m bench.run kinds [--against REV] [--quick] [--rounds N]
python -m bench.run metrics [--quick] [--rounds N]
python -m bench.run scenarios [--cluster] [--quick] [--rounds N]
python -m bench.run decode ingest lifecycle audit growth [--quick] [--rounds N]

The last line is the data pipeline's, which needs Spark; the first is what runs when nothing is named.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bench import machine
from bench.context import Context
from bench.report import Report
from bench.sections import (
    backlog,
    cluster,
    database,
    decode,
    explaining,
    filters,
    growth,
    idle,
    ingest,
    kinds,
    latency,
    loading,
    metrics,
    processes,
    reader_groups,
    readers,
    recovery,
    replicated,
    scenarios,
    tables,
    throughput,
    topics,
    worker,
)
from bench.servers import Servers

BROKER: dict[str, Callable[[Context], None]] = {
    "send": throughput.send,
    "life": throughput.life,
    "rest": throughput.rest,
    "single": latency.single,
    "mix": throughput.mix,
    "backlog": backlog.backlog,
    "explain": explaining.explaining,
    "filters": filters.filters,
    "topics": topics.topics,
    "memory": backlog.memory,
    "idle": idle.idle,
    "readers": readers.readers,
    "reader_groups": reader_groups.reader_groups,
    "recovery": recovery.recovery,
    "worker": worker.worker,
    "loading": loading.loading,
}
CLUSTER: dict[str, Callable[[Context], None]] = {
    "processes": processes.processes,
    "replicated": replicated.replicated,
    "database": database.database,
    "cluster": cluster.cluster,
    "scenarios": scenarios.scenarios,
}
KINDS: dict[str, Callable[[Context], None]] = {"kinds": kinds.kinds, "metrics": metrics.metrics}
PIPELINE: dict[str, Callable[[Context], None]] = {
    "decode": decode.decode,
    "ingest": ingest.ingest,
    "lifecycle": tables.lifecycle,
    "audit": tables.audit,
    "growth": growth.growth,
}
SECTIONS = BROKER | CLUSTER | PIPELINE | KINDS
AGAINST = ("kinds", "life", "rest", "single", "backlog", "memory", "idle", "recovery")
_ROUNDS = 7
_QUICK_ROUNDS = 3


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Baton beside the floor and Redis streams, on this machine, now.")
    parser.add_argument(
        "sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}; default: the first {len(BROKER)}"
    )
    parser.add_argument("--quick", action="store_true", help="smaller work and fewer rounds; figures are rougher")
    parser.add_argument("--rounds", type=int, default=0, help=f"rounds of each comparison (default {_ROUNDS})")
    parser.add_argument(
        "--against", default="", metavar="REV", help=f"compare with this revision, in the sections {', '.join(AGAINST)}"
    )
    parser.add_argument("--cluster", action="store_true", help="scenarios run on a cluster of three nodes")
    parser.add_argument("--data", type=Path, default=Path(".bench-data"), help="where the servers keep their files")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="where JSON and plot are written")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return options


def main() -> None:
    options = _options()
    names = options.sections or list(BROKER)
    rounds = options.rounds or (_QUICK_ROUNDS if options.quick else _ROUNDS)
    with Servers(options.data, options.against) as servers:
        disk = machine.filesystem_type(options.data)
        settings = {
            "sections": names,
            "quick": options.quick,
            "rounds": rounds,
            "file system": disk,
            "against": options.against,
        }
        report = Report(settings)
        facts = machine.describe()
        print(f"{facts['processors']} processors ({facts['processor']}), Linux {facts['kernel']}, data on {disk}")
        if disk in ("tmpfs", "ramfs", "overlay"):
            report.note(f"a sync on {disk} is not like one on a disk: name a directory with --data")
        context = Context(servers, report, options.quick, rounds, options.cluster)
        context.deep_users = len({"backlog", "explain", "memory"} & set(names))
        try:
            for name in names:
                SECTIONS[name](context)
        finally:
            context.close()
        report.finish(options.results)


if __name__ == "__main__":
    main()

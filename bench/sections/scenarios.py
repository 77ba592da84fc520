"""The loads of bench/scenarios on this machine: as much of each as it can handle, with every message accounted for.

A load is first run as fast as possible; then at a fraction of that, so that latencies are meaningful. The factor is the
ratio to the required rate.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

from bench.context import Context
from bench.machine import CpuTimes
from bench.report import Sample
from bench.scenarios.ledger import quantile_ms
from bench.scenarios.load import Load, Run
from bench.scenarios.loads import LOADS
from bench.scenarios.places import Place, cluster, embedded

PART = 0.6  # of the maximum rate of the machine
SHARDS = 4
CRITICAL_MS_MAX = 1_000


def scenarios(context: Context) -> None:
    seconds = context.size(10, 4)
    place = cluster(context.servers, SHARDS) if context.on_cluster else embedded(context.servers)
    try:
        play(context, place, [make() for make in LOADS.values()], seconds)
    finally:
        place.discard()


def play(context: Context, place: Place, loads: Sequence[Load], seconds: float) -> None:
    components: dict[str, list[Sample]] = {}
    for load in loads:
        fastest = _run(load, place, f"{load.name}-fastest", 0.0, seconds)[0]
        rate = min(PART * fastest["received/s"], load.rate)
        context.report.note(
            f"{load.name}: {rate:,.0f}/s, a factor of {rate / load.rate:.3f} of {load.rate:,}/s; "
            f"{fastest['received/s']:,.0f}/s were reached at the fastest"
        )
        rounds = [_run(load, place, f"{load.name}-{number}", rate, seconds) for number in range(context.rounds)]
        _tell(context, place, load, rounds)
        components[load.name] = [spent for _, spent, _ in rounds]
    title = f"{place.name}: processor time of each component, and of the client, µs a message"
    context.report.table("scenarios", title, components, "client")


def _run(load: Load, place: Place, queue: str, rate: float, seconds: float) -> tuple[Sample, Sample, Run]:
    """The reached rate, CPU time by component, and the run itself."""
    run = Run(load, place, queue if load.settings.get("mode") != "FIFO" else f"{queue}.fifo", rate, seconds)
    place.settle()
    before = place.components_us() | {"client": time.process_time() * 1e6}
    times = CpuTimes.now()
    run.go()
    steal = CpuTimes.now().steal_percent_since(times)
    client_us = time.process_time() * 1e6
    place.settle()
    after = place.components_us() | {"client": client_us}
    ledger = run.ledger
    messages = max(ledger.received, 1)
    spent = {who: (after[who] - before[who]) / messages for who in before}
    waits = ledger.waits_s.get(0, array("d"))  # of the highest level, if there are levels
    sample = {
        "received/s": ledger.received / run.seconds,
        "MB/s": ledger.bytes / run.seconds / 1e6,
        "send p50 ms": quantile_ms(ledger.sends_s, 0.5),
        "send p99 ms": quantile_ms(ledger.sends_s, 0.99),
        "wait p50 ms": quantile_ms(waits, 0.5),
        "wait p99 ms": quantile_ms(waits, 0.99),
        "server µs/message": sum(spent.values()) - spent["client"],
        "lost": float(ledger.lost),
        "doubled": float(ledger.doubled),
        "out of order": float(ledger.disordered),
        "steal %": steal,
    }
    return sample, spent, run


def _tell(context: Context, place: Place, load: Load, rounds: Sequence[tuple[Sample, Sample, Run]]) -> None:
    report = context.report
    samples = [sample for sample, _, _ in rounds]
    report.table("scenarios", f"{place.name}: {load.title}", {load.name: samples}, "received/s")
    ledgers = [run.ledger for _, _, run in rounds]
    what = f"{place.name}, {load.name}: messages that were"
    lost = sum(ledger.lost + ledger.strange for ledger in ledgers)
    report.bar("scenarios", f"{what} lost, or never sent", lost, 0, at_least=False)
    if load.entities:
        report.bar("scenarios", f"{what} out of order", sum(each.disordered for each in ledgers), 0, at_least=False)
    if load.levels:
        by_level = {
            level.name: [
                {
                    "messages": float(len(ledger.waits_s.get(number, ()))),
                    **{
                        f"wait p{part} ms": quantile_ms(ledger.waits_s.get(number, array("d")), part / 100)
                        for part in (50, 99)
                    },
                }
                for ledger in ledgers
            ]
            for number, level in enumerate(load.levels)
        }
        table = report.table("scenarios", f"{place.name}: waiting time by level", by_level, "wait p99 ms")
        highest = load.levels[0].name
        text = f"{place.name}: p99 of the time that {highest} messages wait, ms"
        report.bar("scenarios", text, table.median(highest, "wait p99 ms"), CRITICAL_MS_MAX, at_least=False)

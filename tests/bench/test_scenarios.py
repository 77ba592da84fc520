"""The benchmarks of clusters and of the stated loads: they run to their end, and their checks see what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import clusters
from bench.context import Context
from bench.report import Report
from bench.scenarios import places
from bench.scenarios.ledger import Ledger
from bench.scenarios.load import Load
from bench.scenarios.loads import LOADS
from bench.sections import cluster, scenarios
from bench.servers import Servers

SECONDS = 0.3


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with Servers(tmp_path) as servers:
        yield Context(servers, Report({}), quick=True, rounds=1)


def small(load: Load) -> Load:
    entities, backlog_s = load.entities // 200, load.backlog_s / 30
    few = replace(load, texts=load.texts[:20], batch=5, producers=2, consumers=2)
    return replace(few, rate=400, entities=entities, backlog_s=backlog_s)


def test_loads_on_one_node(context: Context) -> None:
    loads = [small(make()) for make in LOADS.values()]
    scenarios.play(context, places.embedded(context.servers), loads, SECONDS)
    nothing_lost_or_out_of_order(context.report)
    assert [table.title for table in context.report.tables if "by level" in table.title]


def test_a_cluster_beside_its_raw_log_and_a_load_on_it(context: Context, tmp_path: Path) -> None:
    running = clusters.start(context.servers, 2)
    components = cluster.compare_on(context, running, messages=40, batch=10)
    assert [*components] == [
        *(f"2 shards, {name}, {work}" for name in (cluster.EVERY_NODE, cluster.OWNER) for work in ("send", "life")),
        f"2 shards, {cluster.RAW}, send",
    ]
    assert all("all servers" in rounds[0] for rounds in components.values())
    sending = context.report.tables[0]
    assert [*sending.samples] == [cluster.EVERY_NODE, cluster.OWNER, cluster.RAW]
    assert all(sending.median(name, "MB/s") > 0 for name in sending.samples)
    assert len(context.report.bars) == 4
    context.report.bars.clear()
    scenarios.play(context, places.on(running), [small(LOADS["ordered"]())], SECONDS)
    nothing_lost_or_out_of_order(context.report)
    context.report.finish(tmp_path / "results")
    assert (tmp_path / "results" / "bench.json").exists()


def nothing_lost_or_out_of_order(report: Report) -> None:
    counts = [bar for bar in report.bars if "messages that were" in bar.text]
    assert counts
    assert [bar.value for bar in counts] == [0] * len(counts)


def test_a_ledger_tells_what_is_wrong() -> None:
    ledger = Ledger()
    first = ledger.number(4)
    ledger.sent = 4
    assert ledger.take(first, 0, 0.1)
    assert not ledger.take(first, 0, 0.1)
    assert not ledger.take(99, 0, 0.1)
    for event in (0, 1, 3, 2):
        ledger.step(7, event)
    assert (ledger.lost, ledger.doubled, ledger.strange, ledger.disordered) == (3, 1, 1, 2)

"""The benchmark of filters runs to its end, and its topics have the subscriptions that it says."""

from __future__ import annotations

from pathlib import Path

from bench.context import Context
from bench.report import Report
from bench.sections import filters
from bench.servers import Servers


def test_filters_are_compared_by_attributes_and_by_the_body(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        context = Context(servers, Report({}), quick=True, rounds=1)
        filters.filters(context)
    names = ["10 subscriptions", "100 subscriptions", "10,000 subscriptions"]
    assert [[*table.samples] for table in context.report.tables] == [names, names]
    assert len(context.report.bars) == 2

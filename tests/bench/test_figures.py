"""Results of the benchmarks become the tables and plots of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import figures
from bench.clients import BenchError
from bench.report import Report, Sample
from bench.sections import kinds

OPTIONS = {"rounds": 3, "quick": False, "file system": "ext4", "against": "abc1234"}
PAGE = "".join(
    f"<!-- measured: {name} -->\n{text}\n<!-- end measured -->\n"
    for name, text in (("kinds", "old"), ("peers", "kept"))
)


def written(report: Report, directory: Path) -> figures.Results:
    report.finish(directory)
    return figures.Results.read(directory)


def measured_kinds(directory: Path) -> figures.Results:
    report = Report(OPTIONS)
    costs = {kinds.PLAIN: 30.0, kinds.PLAIN + kinds.BEFORE: 25.0, kinds.JSON: 33.0}
    for where in ("16 connections", "1 connection"):
        samples: dict[str, list[Sample]] = {
            name: [{kinds.LIFE: cost, kinds.SEND: cost / 2}] for name, cost in costs.items()
        }
        report.table("kinds", f"batches of 10 × 1 KiB, {where}", samples, kinds.LIFE)
        for figure in (kinds.LIFE, kinds.SEND):
            text = f"{kinds.PLAIN} ÷ {kinds.PLAIN}{kinds.BEFORE}, {figure}, {where}"
            report.bar("kinds", text, 1.2, 1.05, at_least=False)
            report.bar("kinds", f"{kinds.JSON} ÷ {kinds.PLAIN}, {figure}, {where}", 1.1, 1.15, at_least=False)
    return written(report, directory)


def test_the_part_of_a_run_is_rewritten_and_others_are_kept(tmp_path: Path) -> None:
    page = figures.rewritten(PAGE, [measured_kinds(tmp_path)])
    assert "old" not in page
    assert "\nkept\n" in page
    assert "| plain text | 30.0 (25.0) | 15.0 (12.5) | 30.0 (25.0) | 15.0 (12.5) |" in page
    assert (
        "| plain text ÷ plain text, before | ≤ 1.05 | 1.2, missed | 1.2, missed | 1.2, missed | 1.2, missed |" in page
    )
    assert "| JSON ÷ plain text | ≤ 1.15 | 1.1 | 1.1 | 1.1 | 1.1 |" in page
    assert "Medians of 3 rounds at full size" in page
    assert "commit abc1234" in page


def test_the_plot_of_the_kinds_begins_with_json(tmp_path: Path) -> None:
    plot = figures.kinds_plot(measured_kinds(tmp_path))
    assert 0 < plot.index(">JSON<") < plot.index(">plain text<")
    assert "before" not in plot


def test_systems_are_shown_relative_to_redis(tmp_path: Path) -> None:
    report = Report(OPTIONS)
    samples: dict[str, list[Sample]] = {
        "Baton SQS": [{"messages/s": 9_000.0, "server µs/message": 40.0}],
        "Redis streams": [{"messages/s": 12_000.0, "server µs/message": 20.0}],
    }
    report.table("peers", "batches of 10, 1 connection", samples, "messages/s")
    results = written(report, tmp_path)
    page = figures.rewritten(PAGE, [results])
    assert "| batches of 10, 1 connection | Baton SQS | 9,000 | 40.0 | 0.75 |" in page
    assert "| Baton SQS | fdatasync" in page
    assert "PostgreSQL" not in page
    assert "12,000.0" in figures.peers_plot(results)


def test_targets_include_the_floor_beside_redis(tmp_path: Path) -> None:
    report = Report(OPTIONS)
    samples: dict[str, list[Sample]] = {"floor": [{"messages/s": 11.0}], "Redis": [{"messages/s": 10.0}]}
    report.table("life", "send, receive, delete by 10 × 1 KiB, 1 connection", samples, "messages/s")
    report.bar("life", "whole life, Baton ÷ Redis", 0.5, 1.0, at_least=True)
    part = figures.targets_part(written(report, tmp_path))
    assert "| `life` | whole life, Baton ÷ Redis | ≥ 1 | 0.5, missed |" in part
    assert "1.10 on 1 connection" in part


def test_every_measured_part_of_the_page_is_known() -> None:
    page = (Path(figures.__file__).parent.parent / figures.PAGE).read_text()
    assert {match["name"] for match in figures.MEASURED.finditer(page)} == set(figures.PARTS)


def test_a_directory_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="does not exist"):
        figures.Results.read(tmp_path)

"""The report: a page that says what its figures say, in a bounded size, whatever a queue is called."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batonq.errors import InvalidInput, NotFound
from batonq.pipeline.jobs import audit, ingest, lifecycle, report, run
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.lake import Lake
from batonq.pipeline.lake.delta import Snapshot
from batonq.pipeline.report import svg
from batonq.pipeline.report.figures import BUCKETS_MAX, Clock, Figures, QueueLine
from batonq.pipeline.report.page import render, sentence
from batonq.pipeline.tables.schema import Table
from tests.pipeline import folds
from tests.pipeline.job_support import run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTILE = "</title><script>alert(1)</script>\"'&<svg onload=x>"


def figures(*, count: int = 3, name: str = "orders", queues: int = 3) -> Figures:
    series: list[float | None] = [float(bucket) for bucket in range(count)]
    totals = dict.fromkeys(("sends", "receives", "acks", "nacks", "lease_expiries", "dead_letters"), 1)
    shares = {"p50": 1.0, "p95": 2.0, "p99": None, "p99.9": 4.0}
    line = QueueLine(name, totals, 1, 0, 5, dict(shares), series, series)
    used = {"name": name, "queue": 1, "tenant": name, "operations": 3, "sends": 1, "sent_bytes": 9}
    return Figures(
        clock=Clock(1_700_000_040, 60, count),
        rates=dict.fromkeys(("sends", "receives", "acks", "retries", "dead_letters"), series),
        depth=series,
        in_flight=series,
        heat={"wait": {(0, 0): 1, (count - 1, 12): 7}, "end_to_end": {}},
        percentiles={"wait": dict.fromkeys(shares, series), "end_to_end": dict.fromkeys(shares, series)},
        queues=[line] * min(queues, 25),
        queue_count=queues,
        leases={0: 1, 1: 5, 10: 2},
        causes=[(name, 2)],
        outcomes={"acked": 6, "dead_lettered": 2, "waiting": 1},
        usage=[{**used, "received_bytes": 9, "stored_byte_hours": 1234.5}],
        usage_count=queues,
    )


class Reader(HTMLParser):
    """What is in a page: tags that were closed in order, and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", ["orders", HOSTILE])
def test_names_are_only_ever_text(name: str) -> None:
    reader = Reader()
    reader.feed(render(figures(name=name), "/lake/" + name))
    assert reader.open == [] and reader.scripts == 1 and reader.handlers == []
    assert name in reader.text


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render(figures(), "/lake")
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)


def test_the_answer_comes_first() -> None:
    assert sentence(figures()) == "9 messages in 3 queues: 66.7% acknowledged, 2 dead-lettered, 1 remaining"
    assert "There is no history yet" in render(None, "/lake")


def test_thousands_of_queues_are_said_not_shown() -> None:
    page = render(figures(queues=4_000), "/lake")
    assert "The 8 busiest of 4,000 queues." in page and "The 25 busiest of 4,000 queues." in page
    assert len(page) < len(render(figures(queues=25), "/lake")) + 1_000


@pytest.mark.parametrize("minutes", [1, 2, 119, 120, 121, 5_000, 600_000])
def test_time_has_a_bounded_number_of_steps(minutes: int) -> None:
    first = 1_700_000_040
    last = first + (minutes - 1) * 60
    clock = Clock.over(first, last)
    assert 1 <= clock.count <= BUCKETS_MAX + 1
    assert clock.start_s <= first and last < clock.start_s + clock.count * clock.step_s


def test_gaps_are_gaps() -> None:
    drawn = svg.lines(Clock(0, 60, 5), {"depth": ("sent", [1.0, 2.0, None, 3.0, None])}, "messages")
    assert drawn.count("<polyline") == 2 and drawn.count("<circle") == 1
    assert drawn.count("<title>") == 3


def test_words_for_numbers() -> None:
    assert [svg.duration(ms) for ms in (5, 1500, 90_000, 7_200_000, 259_200_000)] == [
        "5 ms",
        "1.5 s",
        "1.5 min",
        "2 h",
        "3 d",
    ]
    assert [svg.number(value) for value in (0, 0.25, 12_345, 25_000_000)] == ["0", "0.25", "12,345", "25 M"]
    assert [svg.size(value) for value in (0, 999, 1500, 2_000_000_000)] == ["0 B", "999 B", "1.5 kB", "2 GB"]


def test_from_history_to_the_page(
    spark: SparkSession, busy_logs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are made on the way, of the events that are there; a lifecycle that is of now is not made again."""
    lake, out = tmp_path / "lake", tmp_path / "report.html"
    run_job(spark, ingest, lake=lake, history=busy_logs)
    made: list[tuple[str, int]] = []
    make = lifecycle._make

    def noted(context: Context, table: Table, *given: Any) -> Snapshot:
        there = make(context, table, *given)
        made.append((table.name, there.rows))
        return there

    monkeypatch.setattr(lifecycle, "_make", noted)
    outcome = run_job(spark, report, "--out", str(out), lake=lake)
    assert outcome.summary == {"report": str(out), "bytes": out.stat().st_size}
    fold = folds.Fold(folds.events_of(busy_logs))
    rows = list(fold.lifecycle())
    assert [number for name, number in made if name == "message_lifecycle"] == [len(rows)]
    page = out.read_text()
    assert f"{len(rows):,} messages in " in page and f"{sum(row['outcome'] == 'acked' for row in rows):,}" in page
    tables = Lake(lake)
    assert tables.rows("message_lifecycle") == len(rows)
    assert tables.rows("queue_minute") == len(list(fold.minutes()))
    assert tables.rows("tenant_usage") == len(list(fold.usage()))

    derived = ("message_lifecycle", "queue_minute", "tenant_usage")
    before = {table: tables.snapshot(table).version for table in derived}
    words = ("ingest", "lifecycle", "metrics", "usage", "report", "--out", str(out))
    again = run_job(spark, run, *words, lake=lake, history=busy_logs)
    assert list(again.summary["jobs"]) == ["ingest", "lifecycle", "metrics", "usage", "report"]
    assert again.summary["jobs"]["lifecycle"]["rows"] == len(rows)
    assert before == {table: tables.snapshot(table).version for table in derived}, "there are no new events"
    run_job(spark, lifecycle, "--rebuild", lake=lake)
    assert tables.snapshot("message_lifecycle").version > before["message_lifecycle"]


def test_a_run_takes_jobs_in_their_order_and_stops_at_the_first_that_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def job(name: str, code: int) -> Any:
        def done(context: Context) -> Outcome:
            ran.append(name)
            if code == 2:
                raise InvalidInput("no")
            return Outcome(code, {"frames": getattr(context.options, "frames", None)}, name)

        return done

    for module, code in ((ingest, 0), (audit, 1), (lifecycle, 0)):
        monkeypatch.setattr(module, "run", job(module.__name__.rpartition(".")[2], code))
    found = run_job(spark, run, "audit", "ingest", lake=tmp_path)
    assert (found.code, ran, found.text) == (1, ["ingest", "audit"], "ingest: ingest\naudit: audit")
    assert found.summary["jobs"]["ingest"] == {"frames": 0}, "with its own defaults"
    monkeypatch.setattr(lifecycle, "run", job("lifecycle", 2))
    with pytest.raises(InvalidInput, match="no"):
        run_job(spark, run, "lifecycle", "audit", lake=tmp_path)
    assert ran[2:] == ["lifecycle"]
    with pytest.raises(InvalidInput, match="does not know the job 'redrive'; the jobs are ingest, lifecycle"):
        run_job(spark, run, "redrive", lake=tmp_path)


def test_a_report_needs_a_place_and_events(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        run_job(spark, report, "--out", str(tmp_path / "nowhere" / "r.html"), lake=tmp_path / "lake")
    with pytest.raises(NotFound, match=r"no table events\. Create it with `baton pipeline ingest`"):
        run_job(spark, report, "--out", str(tmp_path / "r.html"), lake=tmp_path / "lake")

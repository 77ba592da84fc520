"""From dead letters of a running broker to tables, a redrive by a condition, and an archive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batonq.client.models import Outgoing
from batonq.errors import InvalidInput
from batonq.pipeline.jobs import archive, dead_letters, ingest, redrive
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.lake import Lake
from batonq.sync import Baton
from tests.pipeline.job_support import options, run_job
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUTS, OTHERS, BRIEF = 8, 4, 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    with TestServer(str(tmp_path / "data"), shards=2) as running:
        yield running


def die(baton: Baton, count: int, error_class: str, body: Any) -> None:
    orders = baton.queue("orders")
    orders.send_many([Outgoing({**body, "n": number}, attributes={"kind": "web"}) for number in range(count)])
    for message in orders.receive(count, wait=0):
        message.nack(error_class=error_class, reason=f"of {message.body['n']}")


def prepare(baton: Baton) -> None:
    baton.create_queue("orders", max_receives=1, dead_letter_queue="orders-dead", dead_letter_on="failure")
    die(baton, TIMEOUTS, "Timeout", {"order": 1})
    die(baton, OTHERS, "ValueError", {"text": "x"})
    baton.create_queue("brief", retention=600.0).send_many([Outgoing(f"brief {n}".encode()) for n in range(BRIEF)])


def test_from_tables_to_a_redrive_and_an_archive(
    spark: SparkSession, server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "IDS_MAX", 3)
    lake, kept = tmp_path / "lake", tmp_path / "kept"

    def run(job: Any, *words: str) -> Outcome:
        return run_job(spark, job, *words, lake=lake, history=server.url)

    with Baton(server.url) as baton:
        prepare(baton)
        orders, dead = baton.queue("orders"), baton.queue("orders-dead")
        run(ingest)
        told = run(dead_letters)
        assert {name: told.summary[name] for name in ("groups", "messages", "waiting", "withoutBody")} == {
            "groups": 2,
            "messages": TIMEOUTS + OTHERS,
            "waiting": TIMEOUTS + OTHERS,
            "withoutBody": 0,
        }
        (largest, _) = told.summary["largest"]
        assert (largest["queue_name"], largest["error_class"]) == ("orders", "Timeout")
        assert largest["shape"] == "object<n: number, order: number>"
        assert set(largest["examples"]) <= {one.current_id for one in dead.peek(limit=20)}

        first = run(archive, "--to", str(kept), "--expiring-within", "1h")
        assert (first.summary["deadLetters"], first.summary["expiring"]) == (TIMEOUTS + OTHERS, BRIEF)
        assert (first.summary["added"], first.summary["withoutBody"]) == (TIMEOUTS + OTHERS + BRIEF, 0)
        assert run(archive, "--to", str(kept)).summary["added"] == 0

        where = ("--where", "error_class = 'Timeout' and messages > 5 and shape like 'object<%'")
        seen = run(redrive, *where)
        assert (seen.code, seen.summary["chosen"], seen.summary["moved"]) == (0, TIMEOUTS, 0)
        assert "Use --yes" in seen.text and dead.stats().visible == TIMEOUTS + OTHERS
        done = run(redrive, *where, "--yes", "--rate", "1000")
        assert (done.code, done.summary["moved"], done.summary["jobs"]) == (0, TIMEOUTS, 3)
        assert (dead.stats().visible, orders.stats().visible) == (OTHERS, TIMEOUTS)
        assert {message.body["order"] for message in orders.peek(limit=100)} == {1}

        known = run_job(spark, dead_letters, lake=lake, history="nowhere")
        assert known.summary["withoutBody"] == 0, "what an earlier run knows of a body is kept"
    rows = [row.asDict() for row in Lake(kept).read(spark, "archived_messages").collect()]
    assert sorted(row["body"].decode() for row in rows if row["why"] == "expiring") == ["brief 0", "brief 1", "brief 2"]
    letters = [row for row in rows if row["why"] == "dead_letter"]
    assert {(row["queue_name"], row["died_in"], row["error_class"]) for row in letters} == {
        ("orders-dead", "orders", "ValueError"),
        ("orders-dead", "orders", "Timeout"),
    }
    assert {row["attributes"]["kind"] for row in letters} == {"web"}

    for condition, why in (("no_such_column = 1", "no_such_column"), ("error_class = ", "--where cannot be read")):
        with pytest.raises(InvalidInput, match=why):
            run(redrive, "--where", condition)


def letters(server: TestServer, count: int) -> list[str]:
    with Baton(server.url) as baton:
        baton.create_queue("orders", max_receives=1, dead_letter_queue="orders-dead", dead_letter_on="failure")
        die(baton, count, "Timeout", {})
        return [one.current_id for one in baton.queue("orders-dead").peek(limit=count)]


def context(server: TestServer, tmp_path: Path, *words: str) -> Context:
    return Context(options("redrive", "--where", "true", *words, lake=tmp_path, history=server.url))


def test_an_interruption_cancels_the_job_that_runs(server: TestServer, tmp_path: Path) -> None:
    ids = letters(server, 20)
    asked = []

    def interrupt(_: float) -> None:
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt

    done = redrive.Progress()
    parts = iter([("orders-dead", ids[:15]), ("orders-dead", ids[15:])])
    with Baton(server.url) as baton:
        redrive.hand_over(context(server, tmp_path, "--rate", "1"), baton, parts, done, 20, sleep=interrupt)
        (job,) = baton.queue("orders-dead").jobs()
        assert job.state == "CANCELLED"
        assert baton.queue("orders-dead").stats().depth == 20 - job.moved
    assert (done.jobs, done.moved) == (1, job.moved) and "is CANCELLED" in done.stopped


def test_a_job_that_pauses_itself_stops_the_rest(server: TestServer, tmp_path: Path) -> None:
    """What was moved dies again: the next jobs would only do the same."""
    ids = letters(server, 40)

    def fail(_: float) -> None:
        for message in work.receive(100, wait=0):
            message.nack(error_class="Timeout")

    done = redrive.Progress()
    parts = iter([("orders-dead", ids[:30]), ("orders-dead", ids[30:])])
    with Baton(server.url) as baton:
        work = baton.queue("orders")
        redrive.hand_over(context(server, tmp_path, "--rate", "15"), baton, parts, done, 40, sleep=fail)
        (job,) = baton.queue("orders-dead").jobs()
    assert (done.jobs, job.state) == (1, "PAUSED")
    assert "is PAUSED" in done.stopped and "dead-lettered again" in done.stopped


def test_ids_come_in_parts_of_one_queue() -> None:
    rows = [{"dead_letter_queue_name": name, "message_id": f"{name}{n}"} for name in "ab" for n in range(5)]
    parts = list(redrive.chunks(iter(rows), 2))
    assert parts == [
        ("a", ["a0", "a1"]),
        ("a", ["a2", "a3"]),
        ("a", ["a4"]),
        ("b", ["b0", "b1"]),
        ("b", ["b2", "b3"]),
        ("b", ["b4"]),
    ]


def test_only_a_node_can_be_asked_to_redrive(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="This job needs a node"):
        Context(options("redrive", "--where", "true", lake=tmp_path, history=str(tmp_path))).client()


@pytest.mark.parametrize(("text", "span"), [("90s", timedelta(seconds=90)), ("1.5h", timedelta(minutes=90))])
def test_spans_of_time(text: str, span: timedelta) -> None:
    assert archive.span(text, "--older-than") == span
    with pytest.raises(InvalidInput, match="--older-than must be a number followed by"):
        archive.span("soon", "--older-than")

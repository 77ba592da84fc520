"""backfill and replay: shown first, sent once, and run again after a cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from batonq.errors import InvalidInput, LogGap, QueueDoesNotExist
from batonq.pipeline.jobs import backfill, replay
from batonq.pipeline.jobs.context import Outcome
from batonq.pipeline.reading.history import Range
from batonq.sync import Baton
from tests.pipeline.job_support import run_job
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def baton(server: TestServer) -> Iterator[Baton]:
    with Baton(server.url) as client:
        yield client


def run(spark: SparkSession, server: TestServer, job: Any, *words: str, history: str = "") -> Outcome:
    return run_job(spark, job, *words, "--url", server.url, lake="/nowhere", history=history)


# --- backfill -------------------------------------------------------------------------------------


def test_a_data_set_is_shown_then_sent_and_never_twice(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    queue = baton.create_queue("filled")
    data = tmp_path / "orders.parquet"
    orders = spark.range(0, 300, numPartitions=3).selectExpr("id", "id * 2 AS twice", "timestamp_seconds(id) AS at")
    orders.write.parquet(str(data))
    words = (str(data), "--to", "filled")
    shown = run(spark, server, backfill, *words)
    assert (shown.summary["chosen"], shown.summary["sent"], queue.stats().sent) == (300, 0, 0)
    assert shown.text.startswith(f"300 rows would be sent to filled at {server.url}.")
    assert shown.text.endswith("Use --yes to send them.") and '"twice' in shown.text

    first = next(iter(sorted(data.glob("part-0000[01]*.parquet"))))
    cut_short = run(spark, server, backfill, str(first), "--to", "filled", "--yes").summary
    assert cut_short["sent"] == 100  # as after a run that ended after the first file
    whole = run(spark, server, backfill, *words, "--yes")
    assert (whole.code, whole.summary["sent"], whole.summary["duplicates"]) == (0, 200, 100)
    again = run(spark, server, backfill, *words, "--yes")
    assert (again.summary["sent"], again.summary["duplicates"]) == (0, 300)
    assert "300 already existed" in again.text

    bodies = [message.body for message in queue.receive(1000, wait=0)]
    assert sorted(body["id"] for body in bodies) == list(range(300))
    assert bodies[0] == {"id": bodies[0]["id"], "twice": bodies[0]["id"] * 2, "at": bodies[0]["at"]}
    assert bodies[0]["at"].startswith("1970-01-01T00:0") and bodies[0]["at"].endswith("Z")
    other = run(spark, server, backfill, *words, "--yes", "--producer", "another", "--rate", "100000")
    assert other.summary["sent"] == 300 and other.summary["producer"].startswith("another-")


def test_columns_become_what_a_message_has(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    queue = baton.create_queue("mapped")
    data = tmp_path / "orders.csv"
    data.write_text('id;payload;customer\n1;{"a":1};ann\n2;{"a":2};ben\n3;{"a":3};ann\n')
    words = "--body payload --content json --group customer --priority id+5 --attribute customer=upper(customer)"
    outcome = run(
        spark, server, backfill, str(data), "--to", "mapped", "--read-option", "sep=;", *words.split(),
        "--where", "customer = 'ann'", "--yes",
    )  # fmt: skip
    assert outcome.summary["sent"] == 2
    found = sorted(queue.receive(10, wait=0), key=lambda message: message.sequence)
    assert [message.body for message in found] == [{"a": 1}, {"a": 3}]
    assert {(m.group, m.priority, m.attributes["customer"]) for m in found} == {("ann", 6, "ANN"), ("ann", 8, "ANN")}


def test_rows_that_a_queue_refuses_are_told(
    spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path
) -> None:
    baton.create_queue("strict", max_message_bytes=1024)
    data = tmp_path / "texts.jsonl"
    data.write_text("\n".join(json.dumps({"text": "x" * size}) for size in (1, 2000, 2)))
    outcome = run(spark, server, backfill, str(data), "--to", "strict", "--body", "text", "--yes")
    assert (outcome.code, outcome.summary["sent"], outcome.summary["refused"]) == (1, 2, 1)
    assert "1 of 3 rows were refused: The message has 2000 bytes" in outcome.text


@pytest.mark.parametrize(
    ("name", "content", "words", "kind", "reason"),
    [
        ("absent.csv", None, "", InvalidInput, "No files were found at .*absent.csv"),
        ("data.bin", "x", "", InvalidInput, "Set --format to csv, json, parquet"),
        ("data.csv", "a\n1", "--body b", InvalidInput, "--body cannot be read"),
        ("data.csv", "a\n1", "--where b>1", InvalidInput, "--where cannot be read"),
        ("data.csv", "a\n1", "--attribute a", InvalidInput, "--attribute must be NAME=COLUMN"),
        ("data.csv", "a\n1", "--to absent", QueueDoesNotExist, "Queue absent does not exist"),
        ("data.parquet", "not so", "", InvalidInput, "cannot be read as parquet: .*data.parquet is not a Parquet file"),
    ],
)
def test_what_cannot_be_backfilled(
    spark: SparkSession,
    server: TestServer,
    baton: Baton,
    tmp_path: Path,
    name: str,
    content: str | None,
    words: str,
    kind: type[Exception],
    reason: str,
) -> None:
    baton.create_queue("filled")
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(kind, match=reason):
        run(spark, server, backfill, str(tmp_path / name), "--to", "filled", *words.split())


# --- replay ---------------------------------------------------------------------------------------


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def test_a_span_of_history_is_sent_again_and_never_twice(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    source, target = baton.create_queue("history-from"), baton.create_queue("history-to")
    source.send_many([{"part": 0}] * 10)
    server.advance(100)
    since = iso(source.stats().at_ms)
    sent = [{"part": 1, "number": number} for number in range(50)]
    source.send_many([*sent, "text", b"\xff"])
    for message in source.receive(100, wait=0):
        message.ack()
    server.advance(100)
    until = iso(source.stats().at_ms)
    source.send_many([{"part": 2}] * 10)
    words = ("--from", "history-from", "--since", since, "--until", until, "--to", "history-to")
    shown = run(spark, server, replay, *words, history=server.url)
    assert (shown.summary["chosen"], target.stats().sent) == (52, 0)
    assert shown.text.startswith("52 messages of history-from would be sent to history-to")
    assert len(shown.summary["sample"]) == 3

    done = run(spark, server, replay, *words, "--yes", history=server.url)
    assert (done.code, done.summary["sent"]) == (0, 52)
    again = run(spark, server, replay, *words, "--yes", history=server.url)
    assert (again.summary["sent"], again.summary["duplicates"]) == (0, 52)
    bodies = [message.body for message in target.receive(100, wait=0)]
    assert sorted(body["number"] for body in bodies if isinstance(body, dict)) == list(range(50))
    assert "text" in bodies and b"\xff" in bodies

    some = run(
        spark, server, replay, *words, "--where", "get_json_object(text, '$.number') < 5", "--yes", history=server.url
    )
    assert some.summary["sent"] == 5
    assert source.stats().received == 62  # nothing was taken by the replay


def test_history_that_no_node_has_any_more(
    spark: SparkSession, server: TestServer, baton: Baton, busy_logs: str
) -> None:
    target = baton.create_queue("from-a-directory")
    words = ("--from", "mail", "--since", "2000-01-01", "--until", "2100-01-01", "--to", "from-a-directory", "--yes")
    outcome = run(spark, server, replay, *words, history=busy_logs)
    assert outcome.summary["sent"] == 372 == target.stats().visible
    with pytest.raises(InvalidInput, match="The target node is unknown"):
        run_job(spark, replay, *words, lake="/nowhere", history=busy_logs)


def test_a_span_that_history_does_not_reach_back_to() -> None:
    frame = SimpleNamespace(time_ms=5_000)

    def history(first: int, stop: int) -> Any:
        return SimpleNamespace(shards=lambda: [Range(0, first, stop)], frames=lambda *_: iter([frame]))

    replay.check_whole(history(1, 9), 0, "here")
    replay.check_whole(history(7, 9), 5_000, "here")
    replay.check_whole(history(7, 7), 0, "here")
    with pytest.raises(LogGap, match=r"The history of shard 0 at here begins at 1970-01-01T00:00:05\.000"):
        replay.check_whole(history(7, 9), 4_999, "here")


def test_a_replay_of_no_time_or_from_nowhere(spark: SparkSession, server: TestServer, baton: Baton) -> None:
    baton.create_queue("history-to")
    words = ("--to", "history-to", "--until", "2026-01-01")
    for more, reason in (
        (("--from", "x", "--since", "2026-01-01"), "must be before --until"),
        (("--from", "x", "--since", "noon"), "The option since must be a time such as"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            run(spark, server, replay, *words, *more, history=server.url)
    with pytest.raises(Exception, match="There is no queue 'absent' in the history"):
        run(spark, server, replay, *words, "--from", "absent", "--since", "2025-01-01", history=server.url)

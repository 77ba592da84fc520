"""Drivers in processes of their own: tasks that are tried again, and kills at the worst moments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from batonq.sync import Baton
from tests.pipeline.consumers import consume
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture
def baton(server: TestServer) -> Iterator[Baton]:
    with Baton(server.url) as client:
        yield client


def run(program: str, *words: str) -> None:
    """To its end, which is a kill of its own doing."""
    command = [sys.executable, "-m", f"tests.pipeline.programs.{program}", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr.decode()
    noise = [line for line in ended.stderr.decode().splitlines() if " WARN " in line or "log level" in line]
    assert not noise, noise


@pytest.fixture(scope="module")
def after_the_kill(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program ran to its end: it was killed between the sink and the checkpoint."""
    directory = tmp_path_factory.mktemp("driver")
    (directory / "in").mkdir()
    for part in range(2):
        lines = [json.dumps({"body": f"{part}.{number}", "priority": part}) for number in range(1500)]
        (directory / "in" / f"{part}.json").write_text("\n".join(lines))
    with Baton(server.url) as baton:
        baton.create_queue("retried")
        baton.create_queue("streamed")
    run("sink_driver", server.url, str(directory))
    return directory


def test_a_task_that_failed_half_way_makes_no_second_message(after_the_kill: Path, baton: Baton) -> None:
    queue = baton.queue("retried")
    stats = queue.stats()
    assert stats.sent == 4000 and stats.duplicates == 2000
    found = [message.body for _ in range(4) for message in queue.receive(1000, wait=0)]
    assert sorted(map(int, found)) == list(range(4000))


def test_a_driver_killed_between_sink_and_checkpoint_makes_no_second_message(
    after_the_kill: Path, spark: SparkSession, server: TestServer, baton: Baton
) -> None:
    queue = baton.queue("streamed")
    assert queue.stats().sent == 3000
    assert not list((after_the_kill / "checkpoint" / "commits").glob("[0-9]*"))
    (after_the_kill / "in" / "2.json").write_text('{"body": "last"}')
    query = (
        spark.readStream.schema("body string, priority int")
        .json(str(after_the_kill / "in"))
        .writeStream.format("baton")
        .option("url", server.url)
        .option("queue", "streamed")
        .option("checkpointLocation", str(after_the_kill / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert (queue.stats().sent, queue.stats().duplicates) == (3001, 3000)


def test_a_killed_driver_loses_nothing(spark: SparkSession, server: TestServer, baton: Baton, tmp_path: Path) -> None:
    queue = baton.create_queue("killed")
    queue.send_many(list(range(300)))
    run("messages_driver", server.url, str(tmp_path))
    stats = queue.stats()
    assert (stats.deleted, stats.in_flight) == (200, 100)
    server.advance(61)
    seen: list[int] = []

    def work(batch: DataFrame, number: int) -> None:
        seen.extend(int(row.text) for row in batch.select("text").collect())

    consume(spark, server, "killed", tmp_path / "checkpoint", work).awaitTermination()
    before = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(before) == 200 and sorted(before + seen) == list(range(300))
    assert queue.stats().deleted == 300

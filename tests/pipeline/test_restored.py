"""The history of a restored server passes the audit: up to the backup's point, and what came after the restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.judge import Event, judge
from tests.pipeline.test_audit import found, frame, read
from tests.system.process import ServerProcess, baton
from tests.system.test_backup import Caller, Load, everything, make_queues

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of a server that was restored from a backup under load, and went on for a while."""
    where = tmp_path_factory.mktemp("restored")
    with ServerProcess(where / "data", "--shards", "3") as server:
        make_queues(server.url)
        load = Load(server.url, pause_s=0.1)
        done = baton("backup", "--output", str(where / "saved"), "--url", server.url)
        assert done.returncode == 0, done.stderr
        load.end()
        assert server.terminate() == 0
    assert baton("restore", str(where / "saved"), "--data", str(where / "new")).returncode == 0
    with ServerProcess(where / "new") as server:
        assert list(everything(server.url))
        call = Caller(server.url)
        received = call("POST", "/v1/queues/dead-0/messages:receive", {"maxMessages": 100})["messages"]
        receipts = [message["receiptHandle"] for message in received]
        call("POST", "/v1/queues/dead-0/messages:ack", {"receiptHandles": receipts})
        call.close()
        assert server.terminate() == 0
    return read(str(where / "new"))


def test_a_plain_fold_finds_nothing_wrong(restored: list[Event]) -> None:
    assert {event["event"] for event in restored} >= {"sent", "owed", "arrived", "settled", "deleted"}
    assert judge(restored) == set()


def test_the_audit_on_spark_finds_nothing_wrong(spark: SparkSession, restored: list[Event]) -> None:
    assert found(frame(spark, restored)) == []

"""A server that is killed with -9 again and again, with its archive in an object store: history stays whole."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from batonq.log.frames import Frame
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.jobs import audit
from batonq.pipeline.reading.history import open_history
from tests.pipeline.job_support import run_job
from tests.pipeline.support import assert_same
from tests.system.process import Client, NotAnswered, ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 2
PAUSE_S = 0.02  # between batches, so that the history to compare stays small
FLAGS = ("--segment-bytes", "64KiB", "--history-hours", "0", "--history-bytes", "0", "--maintenance-every-s", "0.05")


def load(url: str, seed: int, accepted: list[str], stop: threading.Event) -> None:
    """Send, receive and delete until the server is gone; the ids of sends that were answered are kept."""
    client = Client(url)
    random = Random(seed)
    try:
        queue = client.call("CreateQueue", QueueName="jobs")["QueueUrl"]
        while not stop.wait(PAUSE_S):
            body = "x" * random.randrange(2_000)
            entries = [{"Id": str(number), "MessageBody": body} for number in range(10)]
            sent = client.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
            accepted += [one["MessageId"] for one in sent["Successful"]]
            got = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
            receipts = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(got)]
            if receipts:
                client.call("DeleteMessageBatch", QueueUrl=queue, Entries=receipts)
    except NotAnswered:
        pass
    finally:
        client.close()


def whole_history(data: Path, archive: str) -> list[Frame]:
    """From frame 1 to the end: the archive first, then what is still here. Any hole would be an error."""
    kept, local = open_history(archive), open_history(str(data))
    (span,) = local.shards()
    frames = list(kept.frames(0, 1, span.first)) if kept.shards() else []
    return frames + list(local.frames(0, span.first))


@pytest.mark.usefixtures("in_s3")
def test_history_stays_whole_while_the_server_is_killed(tmp_path: Path, spark: SparkSession) -> None:
    data, archive = tmp_path / "data", "s3://history/killed"
    accepted: list[str] = []
    for kill in range(KILLS + 1):
        stop = threading.Event()
        with ServerProcess(data, "--archive", archive, *FLAGS) as server:
            thread = threading.Thread(target=load, args=(server.url, kill, accepted, stop))
            thread.start()
            archived = 0
            while archived <= kill % 2:  # so many copies are done; another may be under way
                event = server.next_event()
                assert event is not None
                archived += event["event"] == "archived"
            if kill < KILLS:
                server.kill()
                thread.join(300)
            else:
                stop.set()
                thread.join(300)
                assert server.terminate() == 0
    frames = whole_history(data, archive)
    assert [frame.number for frame in frames] == list(range(1, len(frames) + 1))
    assert_same(frames)
    table = pa.Table.from_batches(Decoder(dictionaries=False).batches(frames))
    events = Counter(table.column("event").to_pylist())
    rows = table.select(["event", "message_id"]).to_pylist()
    sent = Counter(row["message_id"] for row in rows if row["event"] == "sent")
    assert set(sent.values()) == {1}
    assert not set(accepted) - set(sent), "what was answered is in the history"
    assert events["epoch"] == KILLS + 1 and events["base"] > 0 and accepted
    audited = run_job(spark, audit, "--direct", lake=tmp_path / "lake", history=str(data))  # without its front
    assert audited.code == 0 and audited.summary["events"], audited.text

"""`baton plan`: from numbers, and from what a real server's log says of a queue."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonq.cli.main import main
from batonq.cli.queue_statistics import Folding, Measured, find_queue, measure
from batonq.core.records import Reason, Type, word0
from batonq.errors import InvalidInput, QueueDoesNotExist
from batonq.scaling.sizing import advised_visibility_s
from tests.api.conftest import client
from tests.api.support import wait_until
from tests.support.server import ACCOUNT, TestServer

MIB = 1 << 20


class Past:
    """A server whose clock is moved, so that the times in its log are known. What it has done is in the log for good
    once it has ended; beside a running one the newest frames may still be missing."""

    def __init__(self, data: Path) -> None:
        self.server = TestServer(str(data)).__enter__()
        self.data = str(data)
        self.sqs: Any = client("sqs", self.server.url, ACCOUNT)
        attributes = {"VisibilityTimeout": "60", "Baton.SLASeconds": "300"}
        self.url = self.sqs.create_queue(QueueName="jobs", Attributes=attributes)["QueueUrl"]
        self._running = True

    def end(self) -> None:
        if self._running:
            self._running = False
            self.sqs.close()
            self.server.__exit__()

    def measured(self) -> Measured:
        self.end()
        return measure(self.data, find_queue(self.data, "jobs", None), 64 * MIB)

    def send(self, count: int) -> None:
        for number in range(count):
            self.sqs.send_message(QueueUrl=self.url, MessageBody=str(number))

    def work(self, seconds: float, count: int = 1) -> None:
        answer = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=count)
        self.server.advance(seconds)
        for message in answer["Messages"]:
            self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])

    def fail(self) -> None:
        (message,) = self.sqs.receive_message(QueueUrl=self.url)["Messages"]
        self.sqs.change_message_visibility(
            QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=1
        )
        self.server.advance(1.5)  # and nobody deleted it

    def plan(self, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
        self.end()
        capsys.readouterr()
        assert main(["plan", "jobs", "--data", self.data, *flags]) == 0
        return capsys.readouterr().out


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    made = Past(tmp_path)
    yield made
    made.end()


def test_the_log_tells_how_long_messages_take(past: Past) -> None:
    past.send(30)
    for number in range(30):
        past.work(8 if number == 7 else 2)
    found = past.measured()
    times = sorted(found.times_s)
    assert all(2 <= each < 7 for each in times[:-1]) and 8 <= times[-1] < 13  # real time goes by too
    assert found.leases == 30
    assert found.tries == {1: 30}
    assert found.failures == 0
    assert found.arrived.total() == found.done.total() == 30


def test_failures_and_second_tries_are_counted(past: Past) -> None:
    past.send(1)
    past.fail()
    past.fail()
    past.work(3)
    found = past.measured()
    assert (found.leases, found.failures, found.tries) == (3, 2, {3: 1})
    assert 3 <= found.times_s[0] < 6  # the last lease's time alone


def test_a_late_delete_counts_with_its_whole_time(past: Past) -> None:
    past.send(1)
    past.work(61)
    found = past.measured()
    assert found.late == 1
    assert found.times_s[0] >= 61


def test_advice(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    past.send(40)
    past.fail()
    for _ in range(4):
        past.work(5, count=10)
    past.send(1)
    fields = json.loads(past.plan(capsys, "--json"))
    assert 5 <= fields["medianSeconds"] < 10  # the clock was moved by 5 s, and real time went by too
    assert fields["visibilityTimeoutSeconds"] == advised_visibility_s(fields["medianSeconds"], fields["p99Seconds"])
    assert (fields["maxReceiveCount"], fields["messages"]) == (3, 40)
    assert fields["highWaterMark"] == pytest.approx(fields["drainPerSecond"] * 300, abs=2)  # both are rounded
    more = json.loads(past.plan(capsys, "--json", "--slo", "10m"))
    assert more["highWaterMark"] == pytest.approx(fields["drainPerSecond"] * 600, abs=2)
    text = past.plan(capsys)
    assert f"visibility timeout  60 s       {fields['visibilityTimeoutSeconds']} s" in text
    assert "maximum receives    unlimited  3 " in text
    assert f"high-water mark     none       {fields['highWaterMark']} " in text


def test_it_reads_beside_a_running_server(past: Past) -> None:
    past.send(20)
    past.work(1, count=10)
    past.work(1, count=10)

    def read() -> bool:
        try:
            return len(measure(past.data, find_queue(past.data, "jobs", None), 64 * MIB).times_s) == 20
        except QueueDoesNotExist:
            return False

    wait_until(read)  # an idle log says within a moment how far it is committed


def test_too_little_to_go_by_is_said(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    past.send(3)
    past.work(1, count=3)
    past.end()
    assert main(["plan", "jobs", "--data", past.data]) == 1
    assert "3 completed messages of jobs" in capsys.readouterr().err


def test_a_queue_that_is_not_there(past: Past) -> None:
    past.end()
    with pytest.raises(QueueDoesNotExist, match="Queue 'other' does not exist"):
        find_queue(past.data, "other", None)


def test_the_same_name_in_two_accounts_asks_for_one(past: Past) -> None:
    other: Any = client("sqs", past.server.url, "100000000042")
    other.create_queue(QueueName="jobs")
    other.close()
    past.end()
    with pytest.raises(InvalidInput, match="--account"):
        find_queue(past.data, "jobs", None)
    assert find_queue(past.data, "jobs", "100000000042").account == "100000000042"


def test_a_queue_on_several_shards() -> None:
    """Each has sequences of its own, and tells of the same time."""
    folding = Folding(queue=7)
    for begin_ms in (5_000_000, 1_000_000):
        folding.begin_log()
        folding.add(_rows((Type.LEASED, 1, begin_ms), (Type.LEASED, 2, begin_ms)))
        folding.add(_rows((Type.DELETED, 1, begin_ms + 3_000)))
    assert folding.found.times_s == [3.0, 3.0]
    assert (folding.found.first_ms, folding.found.last_ms) == (1_000_000, 5_003_000)
    folding.begin_log()
    folding.add(_rows((Type.DELETED, 2, 9_000_000)))  # not the other shard's message of that number
    assert len(folding.found.times_s) == 2


def _rows(*rows: tuple[int, int, int]) -> array[int]:
    words: list[int] = []
    for type_, sequence, time_ms in rows:
        reason = Reason.ACK if type_ == Type.DELETED else 0
        words += [word0(type_, 0, 0, reason, 7), sequence, time_ms, 0, 1 | 1 << 32, 0, 0, 0]
    return array("Q", words)


# --- from numbers -------------------------------------------------------------------------------


def test_sizing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "200", "--seconds", "3", "--slo", "60"]) == 0
    text = capsys.readouterr().out
    assert "busy workers      600 " in text
    assert "workers           720" in text
    assert "high-water mark   14,400 messages" in text
    assert "12,000 messages are drained in 5 min" in text


def test_sizing_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "200", "--seconds", "3", "--slo", "1m", "--concurrency", "16", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["workers"], fields["processes"], fields["highWaterMark"]) == (720, 45, 14_400)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--rate 200"),
        (["--rate", "200"], "--rate 200 --seconds 3"),
        (["--rate", "0", "--seconds", "1", "--slo", "1"], "the rate must be greater than 0"),
        (["jobs", "--rate", "1"], "use either a queue name, or --rate"),
        (["--rate", "1", "--seconds", "1", "--slo", "1", "--concurrency", "0"], "--concurrency must be at least 1"),
        (["jobs", "--data", "there-is-none"], "is not a directory"),
    ],
)
def test_what_is_missing_is_said(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *flags]) == 1
    assert said in capsys.readouterr().err

"""`baton scale` against a real server, through REST and through SQS attributes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batonq.cli.main import main
from tests.api.conftest import client
from tests.support.server import ACCOUNT, TestServer

WAIT_S = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("scale"))) as running:
        yield running


@pytest.fixture
def sqs(server: TestServer) -> Iterator[Any]:
    made = client("sqs", server.url, ACCOUNT)
    yield made
    made.close()


def fill(sqs: Any, name: str, count: int) -> str:
    url = str(sqs.create_queue(QueueName=name)["QueueUrl"])
    for start in range(0, count, 10):
        entries = [{"Id": str(number), "MessageBody": "x"} for number in range(start, min(start + 10, count))]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)
    return url


def decisions(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["scale", *flags, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_once(server: TestServer, sqs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fill(sqs, "emails", 45)
    sqs.receive_message(QueueUrl=f"{server.url}/{ACCOUNT}/emails", MaxNumberOfMessages=5)
    limits = ["emails", "--min", "2", "--max", "50", "--url", server.url]
    (found,) = decisions(capsys, *limits, "--per-worker", "10")
    assert (found["queue"], found["workers"], found["wanted"]) == ("emails", 5, 5)
    assert (found["visible"], found["inFlight"]) == (40, 5)
    assert found["why"] == "45 messages ÷ 10 messages per worker"
    (found,) = decisions(capsys, *limits, "--drain", "60", "--rate", "0.05")
    assert found["workers"] == 15
    (found,) = decisions(capsys, *limits, "--steps", "0:2/40:7")
    assert found["workers"] == 7
    assert main(["scale", *limits]) == 0
    assert capsys.readouterr().out == "emails 2 (45 messages ÷ 100 messages per worker)\n"
    (found,) = decisions(capsys, "emails", "--url", server.url, "--per-worker", "1")  # a report needs no maximum
    assert found["workers"] == 45


def test_a_policy_for_each_lane(server: TestServer, sqs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fill(sqs, "paid", 30)
    fill(sqs, "free", 30)
    lanes = ["--lane", "paid=5:50,per-worker=2", "--lane", "free=1:10,steps=0:1/1000:10"]
    found = decisions(capsys, *lanes, "--url", server.url)
    assert {each["queue"]: each["workers"] for each in found} == {"paid": 15, "free": 1}


def test_through_sqs_attributes(
    server: TestServer, sqs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = fill(sqs, "by-sqs", 25)
    (found,) = decisions(capsys, url, "--max", "9", "--per-worker", "5", "--sqs", server.url)
    assert (found["workers"], found["visible"]) == (5, 25)
    assert found["oldestAgeSeconds"] is not None


def watch(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "batonq", "scale", *flags, "--watch", "--interval", "50ms", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def watching(*flags: str) -> Iterator[subprocess.Popen[str]]:
    process = watch(*flags)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, errors) == (0, "")


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def test_watch_prints_a_line_for_each_change(server: TestServer, sqs: Any) -> None:
    url = fill(sqs, "watched", 0)
    pace = ["--up", "0", "--window", "0.2", "--down", "0"]
    flags = ["watched", "--min", "1", "--max", "4", "--per-worker", "10", *pace, "--url", server.url]
    with watching(*flags) as process:
        assert line(process)["workers"] == 1
        fill(sqs, "watched", 30)
        rising = [line(process)["workers"]]
        while rising[-1] < 3:
            rising.append(line(process)["workers"])
        assert sorted(rising) == rising
        sqs.purge_queue(QueueUrl=url)
        falling = [line(process)["workers"], line(process)["workers"]]
        assert falling == [2, 1]  # by half at a time, and one at least


def test_watch_says_that_the_server_is_away_and_goes_on(tmp_path: Path) -> None:
    with TestServer(str(tmp_path)) as server:
        sqs: Any = client("sqs", server.url, ACCOUNT)
        fill(sqs, "away", 1)
        sqs.close()
        flags = ["away", "--min", "2", "--max", "4", "--url", server.url]
        process = watch(*flags)
        assert line(process)["workers"] == 2
    try:
        told = line(process)
        assert told["workers"] == 2
        assert told["problem"].startswith("no reading, the number does not change: ")
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max", "5"], "no queue is given"),
        (["emails", "--watch"], "--watch needs --max"),
        (["emails", "--min", "9", "--max", "5"], "is not a valid range"),
        (["emails", "--max", "5", "--sla", "soon"], "sla=soon is not a number"),
        (["emails", "--max", "5", "--lane", "emails=1:2"], "given twice"),
        (["--lane", "emails"], "QUEUE=MIN:MAX"),
    ],
)
def test_what_is_missing_is_said(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *flags]) == 1
    assert said in capsys.readouterr().err


def test_a_queue_that_is_not_there(server: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "nowhere", "--max", "5", "--url", server.url]) == 3
    assert "Queue 'nowhere' does not exist" in capsys.readouterr().err

"""`baton cluster`: a whole cluster comes up, is looked at, moved about, emptied, and stops cleanly."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.system.process import baton
from tests.system.test_process import sqs


def _free_range(count: int) -> int:
    for first in range(21_000, 30_000, 10):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for at, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + at))
        except OSError:
            continue
        else:
            return first
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no free ports")


def test_a_cluster_is_started_operated_and_stopped(tmp_path: Path) -> None:
    port = _free_range(2)
    command = [sys.executable, "-m", "batonq", "cluster", "up", "--nodes", "2", "--shards", "2"]
    up = subprocess.Popen(
        [*command, "--data", str(tmp_path / "cluster"), "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert up.stdout is not None
        lines = [up.stdout.readline() for _ in range(3)]
        assert lines[0] == f"n0  http://127.0.0.1:{port}\n" and "is up" in lines[2], lines
        url = f"http://127.0.0.1:{port + 1}"
        queue = sqs(f"http://127.0.0.1:{port}").create_queue(QueueName="work")["QueueUrl"]
        sqs(f"http://127.0.0.1:{port}").send_message(QueueUrl=queue, MessageBody="hello")

        shown = baton("cluster", "status", "--url", url)
        assert shown.returncode == 0 and "n0" in shown.stdout and "catalog" in shown.stdout, shown

        drained = baton("cluster", "drain", "n1", "--url", url)
        assert drained.returncode == 0, drained
        told = json.loads(baton("cluster", "status", "--json", "--url", url).stdout)
        assert {each["owner"] for each in told["nodes"]["n0"]["shards"]} == {"n0"}
        assert told["nodes"]["n1"]["draining"] is True

        assert baton("cluster", "drain", "n1", "--undo", "--url", url).returncode == 0
        moved = baton("cluster", "move", "0", "--to", "n1", "--url", url)
        assert moved.returncode == 0 and "from n0 to n1" in moved.stdout, moved
        for wrong in (("move", "9", "--to", "n1"), ("move", "x", "--to", "n1"), ("move", "0", "--to", "nobody")):
            assert baton("cluster", *wrong, "--url", url).returncode == 1
        client = sqs(url)
        found = client.receive_message(QueueUrl=queue.replace(str(port), str(port + 1)), WaitTimeSeconds=2)
        assert found["Messages"][0]["Body"] == "hello"
    finally:
        up.send_signal(signal.SIGINT)
        try:
            assert up.wait(60) == 0
        finally:
            up.kill()
            up.wait()
            assert up.stdout is not None
            up.stdout.close()
    logs = [(tmp_path / "cluster" / f"n{number}.log").read_text() for number in range(2)]
    assert all("Stopped cleanly" in text for text in logs), logs


def test_an_address_where_no_node_is(tmp_path: Path) -> None:
    outcome = baton("cluster", "status", "--url", f"http://127.0.0.1:{_free_range(1)}")
    assert outcome.returncode == 1 and "cannot be reached" in outcome.stderr

"""`baton cluster`: a whole cluster comes up, is looked at, moved about, emptied, and stops cleanly."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batonq.cli.localcluster import LocalCluster
from batonq.cli.main import build_parser
from batonq.cli.serve_arguments import settings_of
from tests.cluster.processes import START_S, runs, wait_until
from tests.support.doubles import double
from tests.support.ports import reserve_port, reserve_ports
from tests.system.process import baton
from tests.system.test_process import sqs


def test_a_cluster_is_started_operated_and_stopped(tmp_path: Path) -> None:
    port = reserve_ports(2)
    data = tmp_path / "cluster"
    data.mkdir()
    (data / "nats-ports.json").write_text(json.dumps([reserve_port() for _ in range(9)]))  # else it chooses any
    command = [sys.executable, "-m", "batonq", "cluster", "up", "--nodes", "2", "--shards", "2"]
    up = subprocess.Popen([*command, "--data", str(data), "--port", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        lines = [up.stdout.readline() for _ in range(3)]
        shown_node = re.fullmatch(rf"n0  http://127.0.0.1:{port}  process (\d+)\n", lines[0])
        assert shown_node is not None and "is ready" in lines[2], lines
        assert b"n0" in Path(f"/proc/{shown_node[1]}/cmdline").read_bytes(), "it is the process to kill"
        url = f"http://127.0.0.1:{port + 1}"
        queue = sqs(f"http://127.0.0.1:{port}").create_queue(QueueName="work")["QueueUrl"]
        sqs(f"http://127.0.0.1:{port}").send_message(QueueUrl=queue, MessageBody="hello")

        shown = baton("cluster", "status", "--url", url)
        assert shown.returncode == 0 and "n0" in shown.stdout and "catalog" in shown.stdout, shown
        assert "SPREAD" not in shown.stdout
        sqs(url).create_queue(QueueName="wide", Attributes={"Baton.Spread": "2"})
        shown = baton("cluster", "status", "--url", url)
        assert re.search(r"/wide +2  (0, 1|1, 0)\n", shown.stdout), shown

        drained = baton("cluster", "drain", "n1", "--url", url)
        assert drained.returncode == 0, drained
        told = json.loads(baton("cluster", "status", "--json", "--url", url).stdout)
        lies = {queue["name"]: (queue["spread"], sorted(queue["shards"])) for queue in told["nodes"]["n0"]["queues"]}
        assert lies["wide"] == (2, [0, 1]) and lies["work"][0] == 1
        assert {each["owner"] for each in told["nodes"]["n0"]["shards"]} == {"n0"}
        assert told["nodes"]["n1"]["draining"] is True

        assert baton("cluster", "drain", "n1", "--undo", "--url", url).returncode == 0

        def moved() -> bool:
            """To the node that has it not; it may be moved for balance just then."""
            told = json.loads(baton("cluster", "status", "--json", "--url", url).stdout)
            owner = next(each["owner"] for each in told["nodes"]["n0"]["shards"] if each["shard"] == 0)
            target = "n1" if owner == "n0" else "n0"
            done = baton("cluster", "move", "0", "--to", target, "--url", url)
            return done.returncode == 0 and f"from {owner} to {target}" in done.stdout

        wait_until(moved, "shard 0 was not moved")
        for wrong in (("move", "9", "--to", "n1"), ("move", "x", "--to", "n1"), ("move", "0", "--to", "nobody")):
            assert baton("cluster", *wrong, "--url", url).returncode == 1
        client = sqs(url)
        found = client.receive_message(QueueUrl=queue.replace(str(port), str(port + 1)), WaitTimeSeconds=20)
        assert found["Messages"][0]["Body"] == "hello"
    finally:
        up.send_signal(signal.SIGINT)
        try:
            assert up.wait(START_S) == 0
        finally:
            up.kill()
            up.wait()
            assert up.stdout is not None
            up.stdout.close()
    logs = [(data / f"n{number}.log").read_text() for number in range(2)]
    assert all("Stopped cleanly" in text for text in logs), logs


@double("_kill_one")
class Sleepers(LocalCluster):
    """Children that do nothing, and somebody who kills one of them."""

    def _start_nats(self) -> None:
        pass

    def _start_nodes(self) -> None:
        for name in ("n0", "n1"):
            self._start(name, ["sleep", "600"])
        threading.Thread(target=self._kill_one).start()

    def _mend(self, again_s: float = 0.1) -> None:
        super()._mend(again_s)

    def _kill_one(self) -> None:
        first = self._children["n1"]
        first.kill()
        try:
            wait_until(lambda: self._children["n1"] is not first, "it is not started again")
        finally:
            self._stop()


def test_one_that_is_killed_is_started_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)]
    cluster = Sleepers(str(tmp_path), nodes=2, port=9324, shards=1)
    try:
        assert cluster.run() == 0
    finally:
        for sign, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(sign, handler)
    told = capsys.readouterr().out
    again = cluster._children["n1"].pid
    assert f"n1 exited with code -9; it will be restarted in 0.1 s\nn1 is being restarted as process {again}\n" in told
    assert [child.returncode for child in cluster._children.values()] == [-signal.SIGTERM] * 2


def test_a_cluster_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    """Whatever ends it: here it is killed before it could stop anybody."""
    code = (
        "import sys, time; from batonq.cli.localcluster import LocalCluster\n"
        "cluster = LocalCluster(sys.argv[1], 1, 9324, 1)\n"
        "cluster._start('n0', ['sleep', '600'])\n"
        "print(cluster._children['n0'].pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    assert runs(child)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not runs(child), "the child is left behind")


def test_an_address_where_no_node_is(tmp_path: Path) -> None:
    outcome = baton("cluster", "status", "--url", f"http://127.0.0.1:{reserve_port()}")
    assert outcome.returncode == 4 and "No server listens at http://127.0.0.1:" in outcome.stderr


def test_the_address_of_the_log_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_LOG_URL", "nats://baton:hush@n0/prod")
    assert settings_of(build_parser("serve").parse_args(["serve"])).log_url == "nats://baton:hush@n0/prod"
    assert build_parser("keys").parse_args(["keys", "list"]).log_url == "nats://baton:hush@n0/prod"
    for words in (["serve"], ["keys", "list"]):
        assert build_parser(words[0]).parse_args([*words, "--log-url", "nats://n1"]).log_url == "nats://n1"

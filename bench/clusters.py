"""A whole cluster on this machine as a contestant: `baton cluster up`, and the CPU time of each process."""

from __future__ import annotations

import http.client
import re
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench import machine
from bench.clients import BenchError
from bench.servers import Server, Servers, answers_readyz

NODES = 3
_SETTLE_S = 60
_LOOK_S = 0.02
_NAME = re.compile(r"(?:/(nats\d+)\.conf|--node (n\d+)) ")
_LISTEN = re.compile(r"^listen: (\S+)$", re.MULTILINE)


def ask_status(connection: http.client.HTTPConnection) -> dict[str, Any]:
    """What the node or process at the other end of a connection knows about the shards and their owners."""
    headers = {"Content-Type": "application/msgpack"}
    connection.request("POST", "/internal/node/status", msgspec.msgpack.encode(None), headers)
    told: dict[str, Any] = msgspec.msgpack.decode(connection.getresponse().read())
    return told


class Cluster:
    """Three nodes on adjacent ports and three NATS servers, all children of one process."""

    def __init__(self, server: Server, shards: int) -> None:
        self.shards = shards
        self.ports = [server.port + number for number in range(NODES)]
        self._server = server
        self._directory = server.directory / "cluster"
        self._pids: dict[str, int] = {}  # by component: n0, n1, n2, nats0, nats1, nats2
        for pid in machine.process_tree(server.pid)[1:]:
            found = _NAME.search(machine.command_line(pid) + " ")
            if found:
                self._pids[found[1] or found[2]] = pid
        if len(self._pids) != 2 * NODES:
            raise BenchError(f"the cluster has other processes than expected: {sorted(self._pids)}")

    @property
    def nats_servers(self) -> list[str]:
        texts = [(self._directory / f"nats{number}.conf").read_text() for number in range(NODES)]
        return [match[1] for match in map(_LISTEN.search, texts) if match]

    def cpu_us(self) -> float:
        return sum(self.components_us().values())

    def components_us(self) -> dict[str, float]:
        return {name: machine.cpu_us(pid) for name, pid in sorted(self._pids.items())}

    def status(self, port: int) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            return ask_status(connection)
        finally:
            connection.close()

    def owners(self) -> dict[str, int]:
        """The port of the node that owns the first shard of each queue."""
        told = self.status(self.ports[0])
        nodes = {each["shard"]: each["owner"] for each in told["shards"]}
        return {
            queue["name"]: self.ports[int(nodes[queue["shard"]].removeprefix("n") or 0)] for queue in told["queues"]
        }

    def settle(self) -> None:
        """Wait until every node has followed every shard to its end."""
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            ends = [{each["shard"]: each["next_frame"] for each in self.status(port)["shards"]} for port in self.ports]
            if all(end == ends[0] for end in ends):
                return
            if time.monotonic() > deadline_s:
                raise BenchError(f"the nodes are still apart: {ends}")
            time.sleep(_LOOK_S)

    def discard(self) -> None:
        self._server.discard()


def start(servers: Servers, shards: int) -> Cluster:
    def command(port: int, directory: Path) -> list[str]:
        up = [sys.executable, "-m", "batonq.cli.main", "cluster", "up", "--nodes", str(NODES), "--port", str(port)]
        return [*up, "--data", str(directory / "cluster"), "--shards", str(shards)]

    def ready(port: int) -> bool:
        return all(answers_readyz(port + number) for number in range(NODES))

    return Cluster(servers.start("cluster", command, ready, ports=NODES), shards)

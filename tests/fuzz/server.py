"""A real server process under test, with a watchdog in its event loop, and what it uses of the machine."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.support.authority import Authority

HOOK = Path(__file__).parent / "hook"
START_S = 60
CONNECTIONS_TO_ALL = 40  # so many that each of two processes gets one
STOP_S = 60
REPORT_S = 60
SETTLE_S = 20
UNCHANGED_MAX = 25  # looks, half a second
CLUSTER_SECRET = "5e" * 32
# Words in the log of a server that has done something which it did not expect.
ALARMING = ("Traceback", "Fatal error", "never retrieved", "never awaited", '"level": "error"', "Warning")


class Profile(StrEnum):
    DEVELOPMENT = "development"  # requests need no signature
    SECURED = "secured"
    PROCESSES = "processes"  # secured, two processes, TLS, and a path for other nodes


class Turn(NamedTuple):
    """A turn of the event loop that took long."""

    cpu_ms: float  # of the loop's thread
    process_ms: float  # of all threads: those that hold the interpreter's lock stop the loop as well
    wall_ms: float
    garbage_ms: float  # of it, spent collecting garbage
    began_s: float  # time.monotonic()
    ended_s: float
    stack: list[str]

    def __str__(self) -> str:
        stack = "".join(self.stack)
        return (
            f"{self.cpu_ms:.0f} ms of CPU time in the loop's thread ({self.process_ms:.0f} ms in all threads, "
            f"{self.wall_ms:.0f} ms passed, {self.garbage_ms:.0f} ms collecting garbage)\n{stack}"
        )


class Key(NamedTuple):
    id: str
    secret: str


class FuzzedServer:
    """`with FuzzedServer(directory, profile) as server:`. `more` are flags of `baton serve`."""

    def __init__(self, directory: Path, profile: Profile, *more: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.profile = profile
        self.data = directory / "data"
        self._log = directory / "log.txt"
        self._watched = directory / "watchdog.jsonl"
        self._watched.touch()
        self._read_bytes = 0
        self._log_bytes = 0
        self.longest_turn_ms = 0.0  # in CPU time; whoever looks at it sets it back
        self.context: ssl.SSLContext | None = None
        flags = ["--log-format", "json", *more]
        if profile is not Profile.DEVELOPMENT:
            flags.append("--secure")
        if profile is Profile.PROCESSES:
            authority = Authority(directory / "authority")
            secret = directory / "cluster-secret"
            secret.write_text(CLUSTER_SECRET)
            secret.chmod(0o600)
            flags += ["--processes", "2", "--cluster-secret-file", str(secret)]
            flags += authority.sign("server", "127.0.0.1", "localhost").flags
            self.context = ssl.create_default_context(cafile=str(authority.file))
        command = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", str(self.data), *flags]
        environment = {**os.environ, "PYTHONPATH": _path(), "BATON_FUZZ_WATCHDOG": str(self._watched)}
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            self._wait(lambda: self.process.poll() is not None or '"serving"' in self.log(), START_S, "did not start")
            assert self.process.poll() is None, f"the server did not start: {self.log()}"
            self.url = self._event("serving")["url"]
            port = urlsplit(self.url).port
            assert port is not None
            self.port = port
            self.pids = self._serving_processes()
            self.key = self._make_key()
            self._load_pages()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    # --- what it uses

    @property
    def memory_bytes(self) -> int:
        return sum(_status(pid, "VmRSS") for pid in self.pids)

    @property
    def peak_bytes(self) -> int:
        """The most memory since `forget_peak`."""
        return sum(_status(pid, "VmHWM") for pid in self.pids)

    def forget_peak(self) -> None:
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    @property
    def handles(self) -> int:
        """Open file descriptors."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)

    def settle(self, handles_max: int) -> None:
        """Wait until connections that were closed are closed there too, then have garbage collected."""
        deadline_s = time.monotonic() + SETTLE_S
        while self.handles > handles_max and time.monotonic() < deadline_s:
            time.sleep(0.05)
        self.turns()

    def wait_until_read(self) -> None:
        """Until nothing that was sent to it waits in the system, or it reads no more of that."""
        deadline_s = time.monotonic() + SETTLE_S
        waiting = [1, 0]
        while waiting[-1] != 0 or waiting[-2] != 0:
            waiting.append(_unread_bytes(self.port))
            if len(waiting) > UNCHANGED_MAX and len(set(waiting[-UNCHANGED_MAX:])) == 1:
                return
            assert time.monotonic() < deadline_s, "the server reads on and on"
            time.sleep(0.02)

    # --- what it did

    def trim(self) -> None:
        """Have it give back all memory that it does not use, so that what it takes next can be measured."""
        self._report(signal.SIGUSR1)

    def turns(self) -> list[Turn]:
        """The long turns since this was last asked. The server collects its garbage, and that is none of them."""
        return self._report(signal.SIGUSR2)

    def _report(self, sign: signal.Signals) -> list[Turn]:
        for pid in self.pids:
            os.kill(pid, sign)
        found: list[Turn] = []
        reported: set[int] = set()

        def all_reported() -> bool:
            for line in self._lines():
                if line.pop("what") == "turn":
                    line.pop("pid")
                    found.append(Turn(**line))
                else:
                    reported.add(line["pid"])
                    self.longest_turn_ms = max(self.longest_turn_ms, line["longest_ms"])
            return reported >= set(self.pids)

        self._wait(all_reported, REPORT_S, "said nothing of its event loop: does it hang?")
        return found

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def new_alarms(self) -> list[str]:
        """Lines of the log since this was last asked that no request may cause."""
        with self._log.open("rb") as file:
            file.seek(self._log_bytes)
            new = file.read()
        self._log_bytes += len(new)
        text = new.decode(errors="replace")
        # A traceback of several lines is one alarm.
        return [text[-8_000:]] if any(word in text for word in ALARMING) else []

    # --- starting and stopping

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)

    def _serving_processes(self) -> list[int]:
        if self.profile is not Profile.PROCESSES:
            return [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _make_key(self) -> Key:
        """An access key, in any profile: who has none is asked for none in development."""
        token = (self.data / "admin-token").read_text().strip()
        connection = self._connection()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        try:
            connection.request("POST", "/v1/keys", "{}", headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 201, answer
        finally:
            connection.close()
        return Key(answer["keyId"], answer["secret"])

    def _load_pages(self) -> None:
        """Let every process load the dashboard's templates now: they would be taken for the memory of connections."""
        for _ in range(1 if self.profile is not Profile.PROCESSES else CONNECTIONS_TO_ALL):
            connection = self._connection()
            try:
                connection.request("GET", "/ui")
                connection.getresponse().read()
            finally:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.context:
            return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=30)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def _event(self, name: str) -> dict[str, Any]:
        for line in self.log().splitlines():
            if f'"{name}"' in line:
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"the server has not said {name}")

    def _lines(self) -> list[dict[str, Any]]:
        with self._watched.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _wait(self, condition: Callable[[], bool], seconds: float, else_text: str) -> None:
        deadline_s = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline_s, f"the server {else_text}\n{self.log()[-8_000:]}"
            assert self.process.poll() is None, f"the server has ended\n{self.log()[-8_000:]}"
            time.sleep(0.005)


def _path() -> str:
    return os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")]))


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no {name}")


def _unread_bytes(port: int) -> int:
    """What waits in the receive buffers of connections to this port."""
    wanted = f":{port:04X}"
    waiting = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted):
            waiting += int(fields[4].partition(":")[2], 16)
    return waiting

"""Runs the code blocks of one page, in order, in a directory of its own and against a server of its own.

    ```bash            run to its end; what it exports is there in the next one. Jobs of the pipeline alone: see jobs.py
    ```bash serve      starts the page's server (a page without such a block gets one with the defaults)
    ```bash background runs until the end of the page
    ```python          run; the names it makes are there in the next one
    ```python x.py     written to the file x.py
    ```text output     what the block before it has printed; … stands for anything
    ```text            not run

The pages say 9324, the default port; here it is a free one, so that tests do not meet a server that is in use.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.docs.jobs import Jobs, plain_commands
from tests.docs.pages import Block
from tests.support.ports import reserve_port

DEFAULT_PORT = "9324"
READY_S = 120
BLOCK_S = 900  # a job of the pipeline starts a JVM
STOP_S = 60
DRIVER = Path(__file__).with_name("driver.py")
_SERVE = re.compile(r"^(baton serve\b(?!.*--port).*)$", re.MULTILINE)


class PageRun:
    """One page being run; a context manager that stops everything it started."""

    def __init__(self, directory: Path, jobs: Jobs | None = None, *, as_printed: bool = False) -> None:
        """`jobs` runs commands of the pipeline that need no shell; without it they run as all others do.

        `as_printed`: with the settings that they have by themselves, the first in a process of its own.
        """
        self.directory = directory
        self._jobs = jobs
        self._as_printed = as_printed
        self._seen = 0  # blocks of such commands
        self.port = reserve_port()
        self._environment = self._clean_environment()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._python: subprocess.Popen[str] | None = None
        self._output = ""

    def __enter__(self) -> PageRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._python is not None:
            assert self._python.stdin is not None
            assert self._python.stdout is not None
            self._python.stdin.close()
            self._python.wait(STOP_S)
            self._python.stdout.close()
        codes = [self._stop(process) for process in reversed(self._processes)]
        for log in self._logs:
            log.close()
        if error is None:
            assert all(code in (0, -signal.SIGTERM) for code in codes), self.logs()

    def run(self, block: Block) -> None:
        if block.language == "bash":
            self._bash(block)
        elif block.language == "python" and block.role:
            (self.directory / block.role).write_text(self._here(block.text))
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "text" and block.role == "output":
            pattern = "(?s:.*?)".join(re.escape(part.strip()) for part in self._here(block.text).split("…"))
            said = self._output.strip()
            assert re.fullmatch(pattern, said), f"{block.name}: the block before it printed\n{said}"

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("process-*.log")))

    def serve(self, command: str = "baton serve") -> None:
        self._start(command)
        self._wait_until_ready()

    # --- bash

    def _bash(self, block: Block) -> None:
        if block.role == "serve":
            self.serve(block.text)
        elif block.role == "background":
            self._start(block.text)
        else:
            assert block.role == "", f"{block.name}: unknown role {block.role!r}"
            commands = plain_commands(self._here(block.text))
            self._seen += bool(commands)
            if self._jobs and commands and not (self._as_printed and self._seen == 1):
                self._run_jobs(self._jobs, block, commands)
            else:
                self._run_bash(block)

    def _run_jobs(self, jobs: Jobs, block: Block, commands: list[list[str]]) -> None:
        self._output = ""
        for words in commands:
            answer = jobs.run(words, self.directory, self._environment, few_rows=not self._as_printed)
            assert answer["code"] == 0, f"{block.name}:\n{answer['output']}{answer['errors']}\n{self.logs()}"
            self._output += answer["output"]

    def _run_bash(self, block: Block) -> None:
        kept = self.directory / ".exported"
        script = f"trap 'export -p > {shlex.quote(str(kept))}' EXIT\n{self._here(block.text)}"
        if kept.exists():
            script = f"source {shlex.quote(str(kept))}\n{script}"
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        assert result.returncode == 0, f"{block.name}:\n{result.stdout}{result.stderr}\n{self.logs()}"
        self._output = result.stdout

    def _start(self, command: str) -> None:
        log = (self.directory / f"process-{len(self._processes)}.log").open("wb")
        self._logs.append(log)
        process = subprocess.Popen(
            ["bash", "-c", "exec " + self._here(command)],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        raise AssertionError(f"the server did not become ready:\n{self.logs()}")

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -signal.SIGKILL

    # --- Python

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-W", "error", str(DRIVER)],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        request = {"page": str(block.page), "line": block.line, "text": self._here(block.text)}
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        answer = json.loads(self._python.stdout.readline())
        assert not answer["error"], f"{block.name}:\n{answer['error']}\n{self.logs()}"
        self._output = answer["output"]

    # --- both

    def _here(self, text: str) -> str:
        """The text of a block with the page's port instead of the default."""
        text = _SERVE.sub(rf"\1 --port {self.port}", text)
        return text.replace(DEFAULT_PORT, str(self.port))

    def _clean_environment(self) -> dict[str, str]:
        """The caller's, without any AWS settings of theirs, and with this environment's commands first.

        What the pipeline keeps to start Java quickly is the caller's too: it would be made anew for each page.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BATON_"))}
        kept.pop("XDG_CONFIG_HOME", None)
        kept["BATON_URL"] = f"http://127.0.0.1:{self.port}"  # the pages rely on the default port
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = str(self.directory)
        kept.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        return {**kept, "PATH": path, "HOME": home, "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": home}

"""What the dashboard offers to copy must work when it is pasted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from tests.system.process import ServerProcess

WAIT_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("start")) as running:
        yield running


def snippets(server: ServerProcess, path: str) -> dict[str, str]:
    """The texts to copy on a page, by the heading above each."""
    request = urllib.request.Request(server.url + path, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        page = answer.read().decode()
    found = re.findall(r"<h2>([^<]*)</h2>.*?<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    return {unescape(title): unescape(code) for title, code in found}


def run(command: list[str]) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BATON_"))}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, env={**environment, "PATH": path}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_boto3(server: ServerProcess) -> None:
    assert run([sys.executable, "-c", snippets(server, "/ui/start")["boto3"]]) == "hello\n"


def test_the_python_client(server: ServerProcess) -> None:
    code = snippets(server, "/ui/start")["Baton's Python client"]
    assert run([sys.executable, "-c", code]) == "{'order': 7}\n"


def test_the_aws_command_line(server: ServerProcess) -> None:
    assert "/orders" in run(["sh", "-c", snippets(server, "/ui/start")["AWS command line"]])


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: ServerProcess) -> None:
    code = snippets(server, "/ui/start")["curl"]
    assert '"body":{"order": 7}' in run(["sh", "-ec", code])


def test_an_empty_server_shows_the_same_command(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as empty:
        request = urllib.request.Request(empty.url + "/", headers={"Accept": "text/html"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            page = answer.read().decode()
        (command,) = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
        assert "/orders" in run(["sh", "-c", unescape(command)])

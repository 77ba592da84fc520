"""`baton worker list`, `baton queue consumers`, and which server and key a worker uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batonq.cli.connection import use_for_client
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.main import build_parser
from batonq.cli.worker import expand
from tests.cli.support import Shell, environment


def test_consumers_and_workers_are_listed(shell: Shell) -> None:
    shell.good("queue", "create", "busy")
    done = shell("queue", "consumers", "busy")
    assert done.code == 0 and "Nobody receives from queue busy" in done.err
    shell.good("send", "busy", "x")
    shell.good("receive", "busy", "--consumer", "worker-7\x1b[2J")
    found = shell.json("queue", "consumers", "busy")
    assert [(each["holder"], each["inFlight"]) for each in found["holders"]] == [("worker-7\x1b[2J", 1)]
    said = shell.good("queue", "consumers", "busy")
    assert "HOLDER" in said and "worker-7\ufffd[2J" in said and "\x1b" not in said
    workers = shell.json("worker", "list")["workers"]
    assert [worker["queues"] for worker in workers] == [["busy"]]
    said = shell.good("worker", "list")
    assert said.splitlines()[0].startswith("WORKER ") and "busy" in said and "\x1b" not in said
    done = shell("queue", "consumers", "bussy")
    assert done.code == 3 and "Did you mean busy?" in done.err


def test_no_workers(nowhere: Shell) -> None:
    done = nowhere("worker", "list", BATON_URL="http://127.0.0.1:1")
    assert done.code == 4 and "No server listens at http://127.0.0.1:1" in done.err


def test_the_short_form_runs_an_application() -> None:
    assert expand(["jobs:app", "--processes", "2"]) == ["run", "jobs:app", "--processes", "2"]
    assert expand(["--processes", "2", "jobs:app"]) == ["run", "--processes", "2", "jobs:app"]
    for words in ([], ["run", "jobs:app"], ["list"], ["--help"]):
        assert expand(words) == words


def used(tmp_path: Path, *words: str, **variables: str) -> tuple[str | None, str | None]:
    """BATON_URL and the key after a command has read its flags."""
    arguments = build_parser("scale").parse_args(["scale", "q", "--max", "5", *words])
    with environment({"XDG_CONFIG_HOME": str(tmp_path), **variables}):
        use_for_client(arguments)
        return os.environ.get("BATON_URL"), os.environ.get("BATON_ACCESS_KEY_ID")


def test_what_the_python_client_uses(tmp_path: Path) -> None:
    shell = Shell(XDG_CONFIG_HOME=str(tmp_path))
    secret = tmp_path / "secret"
    secret.write_text("s")
    assert used(tmp_path) == (None, None)
    assert used(tmp_path, "--url", "http://flag", BATON_URL="http://env") == ("http://flag", None)
    shell.good("context", "add", "prod", "--url", "http://prod", "--key", "K", "--secret-file", str(secret))
    shell.good("context", "add", "token", "--url", "http://token", "--token-file", str(secret))
    assert used(tmp_path) == ("http://prod", "K")
    assert used(tmp_path, BATON_URL="http://env") == ("http://env", None)
    assert used(tmp_path, "--context", "prod", BATON_URL="http://env") == ("http://prod", "K")
    with pytest.raises(WrongUsage, match=r"context token has an admin token\. This command needs an access key"):
        used(tmp_path, "--context", "token")

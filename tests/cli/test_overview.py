"""`baton queue list`, `dlq list`, `top` and `doctor` against a server with queues in different states."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import CLEAN, WAIT_S, Shell, wait_for
from tests.system.process import ServerProcess


@pytest.fixture(scope="module")
def filled(server: ServerProcess) -> ServerProcess:
    shell = Shell(BATON_URL=server.url, XDG_CONFIG_HOME="/nonexistent")
    shell.good("queue", "create", "orders", "--dead-letter-queue", "orders-dead", "--max-receives", "2")
    shell.good("queue", "create", "emails.fifo")
    shell.good("send", "orders", "--lines", "-", stdin=b"a\nb\nc\n")
    message = shell.json("receive", "orders")["messages"][0]
    shell.good("nack", "orders", message["receiptHandle"], "--dead-letter", "--error-class", "Bad")
    shell.good("receive", "orders", "--visibility", "1h")
    return server


@pytest.fixture
def shell(filled: ServerProcess, tmp_path: Path) -> Shell:
    return Shell(BATON_URL=filled.url, XDG_CONFIG_HOME=str(tmp_path))


# --- queue list -------------------------------------------------------------------------------


def test_queues_are_listed_with_their_figures(shell: Shell) -> None:
    found = shell.json("queue", "list")
    assert [queue["name"] for queue in found["queues"]] == ["emails.fifo", "orders", "orders-dead"]
    head, fifo, orders, dead = shell.good("queue", "list").splitlines()
    assert head.startswith("QUEUE        TYPE      VISIBLE  IN FLIGHT  DELAYED  DEAD  OLDEST  SENT/S  RECV/S  ACK/S")
    assert fifo.split()[:6] == ["emails.fifo", "fifo", "0", "0", "0", "0"]
    assert orders.split()[:6] == ["orders", "standard", "1", "1", "0", "0"]
    assert dead.split()[:6] == ["orders-dead", "standard", "1", "0", "0", "0"]


def test_the_list_fits_on_a_terminal(shell: Shell) -> None:
    for columns in ("80", "60", "200"):
        said = shell.good("queue", "list", terminal=True, COLUMNS=columns, NO_COLOR="1")
        assert all(len(line) <= int(columns) for line in said.splitlines()) and "VISIBLE  IN FLIGHT" in said
    assert "RECV/S" in said and "RECV/S" not in shell.good("queue", "list", terminal=True, COLUMNS="80")


def test_the_list_is_searched_sorted_and_cut(shell: Shell) -> None:
    def names(*words: str) -> list[str]:
        return shell.good("queue", "list", "--names", *words).split()

    assert names("orders") == ["orders", "orders-dead"]
    assert names("--reverse") == ["orders-dead", "orders", "emails.fifo"]
    assert names("--sort", "inFlight")[0] == "orders"
    assert names("--sort", "depth", "--reverse")[0] == "emails.fifo"
    assert names("--limit", "1") == ["emails.fifo"]
    assert names("--all", "--limit", "1") == ["emails.fifo", "orders", "orders-dead"]
    assert "2 more queues: use --limit or --all." in shell("queue", "list", "--limit", "1").err
    done = shell("queue", "list", "nothing-like-it")
    assert (done.code, done.out) == (0, "") and "No queue contains 'nothing-like-it' in its name" in done.err


def test_queues_with_dead_letters_are_listed(shell: Shell) -> None:
    assert [queue["name"] for queue in shell.json("dlq", "list")["queues"]] == ["orders-dead"]
    head, row = shell.good("dlq", "list").splitlines()
    assert head.split() == ["QUEUE", "DEAD", "LETTERS", "OLDEST", "FROM"]
    assert row.split()[:2] == ["orders-dead", "1"] and row.endswith("  orders")


def test_series_of_a_queue_and_of_the_server(shell: Shell) -> None:
    found = shell.json("queue", "series", "orders", "--range", "15m")
    assert found["queue"] == "orders" and len(set(map(len, found["values"].values()))) == 1
    said = shell.good("queue", "series", "orders")
    assert said.startswith("queue orders from ") and "UTC, one value per " in said
    assert shell.good("queue", "series").startswith("the server from ")
    shell.json("queue", "series")
    done = shell("queue", "series", "ordes")
    assert done.code == 3 and "Did you mean orders" in done.err
    assert "unknown value '2h'." in shell("queue", "series", "orders", "--range", "2h").err


# --- doctor -----------------------------------------------------------------------------------


def test_doctor_reports_what_will_hurt(shell: Shell) -> None:
    report = shell.json("doctor", code=6)
    found = {(each["check"], each["subject"]) for each in report["findings"] if each["level"] != "ok"}
    assert {("few receives", "orders"), ("dead-letter queue", "emails.fifo")} <= found
    done = shell("doctor", "--quiet")
    assert done.code == 6 and "    baton queue set orders --max-receives 5\n" in done.out
    assert "ok  clock" not in done.out and "ok  clock" in shell("doctor").out


def test_doctor_measures_how_long_messages_are_processed(shell: Shell) -> None:
    shell.good("queue", "create", "slow", "--visibility", "30s", "--dead-letter-queue", "slow-dead")

    def reported() -> list[dict[str, Any]]:
        """Each message is processed for 50 seconds of the server's clock."""
        shell.good("send", "slow", "x")
        receipt = shell.json("receive", "slow", "--visibility", "2m")["messages"][0]["receiptHandle"]
        shell.good("clock", "advance", "50s")
        shell.good("ack", "slow", receipt)
        findings: list[dict[str, Any]] = shell.json("doctor", code=6)["findings"]
        return [each for each in findings if (each["check"], each["subject"]) == ("visibility timeout", "slow")]

    (finding,) = wait_for(reported)
    assert finding["level"] == "critical" and finding["remedy"].startswith("baton queue set slow --visibility ")
    shell.good("queue", "delete", "slow", "--yes")
    shell.good("queue", "delete", "slow-dead", "--yes")


def test_doctor_of_a_data_directory(shell: Shell, filled: ServerProcess, tmp_path: Path) -> None:
    done = shell("doctor", "--data", str(tmp_path / "nowhere"))
    assert done.code == 1 and "does not exist" in done.err
    with ServerProcess(tmp_path / "data") as server:
        near = Shell(XDG_CONFIG_HOME=str(tmp_path))
        near.good("queue", "create", "alone", "--url", server.url)
        online = near("doctor", "--data", str(tmp_path / "data"))
        assert online.code == 6 and f"{server.url} (--data {tmp_path / 'data'}) answers." in online.out
        assert server.terminate() == 0
    offline = near.json("doctor", "--data", str(tmp_path / "data"), code=6)
    found = {(each["check"], each["subject"]) for each in offline["findings"] if each["level"] != "ok"}
    assert ("dead-letter queue", "alone") in found
    checks = {each["check"] for each in offline["findings"]}
    assert {"permissions", "disk", "sync", "server"} <= checks


# --- top --------------------------------------------------------------------------------------


def test_one_screen_of_top(shell: Shell) -> None:
    shown = shell.json("top")
    assert shown["total"] == 3 and shown["status"]["queues"] == 3
    lines = shell.good("top", "--once", "--sort", "name").splitlines()
    assert "3 queues  2 visible  1 in flight" in lines[1]
    assert [line.split()[0].strip("!") or line.split()[1] for line in lines[4:]] == [
        "emails.fifo",
        "orders",
        "orders-dead",
    ]
    assert all(len(line) <= 80 for line in lines)
    only = shell.good("top", "emails", "--once").splitlines()
    assert only[1].startswith("1 queue  ") and [line.split()[0] for line in only[4:]] == ["emails.fifo"]
    done = shell("top")
    assert done.code == 2 and "`baton top` needs a terminal. Use `baton top --once` in a script." in done.err
    done = shell("top", "--interval", "1ms")
    assert done.code == 2 and "--interval must be at least 0.2s." in done.err


class Screen:
    """`baton top` in a terminal of 80x24."""

    def __init__(self, url: str, home: str) -> None:
        self._handle, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        environment = {**CLEAN, "BATON_URL": url, "XDG_CONFIG_HOME": home, "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "batonq", "top", "--interval", "500ms"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
        )
        self.text = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while text not in self.text and time.monotonic() < deadline:
            if select.select([self._handle], [], [], 0.1)[0]:
                self.text += os.read(self._handle, 65_536).decode()
        assert text in self.text, self.text[-2_000:]

    def press(self, keys: bytes) -> None:
        self.text = ""
        os.write(self._handle, keys)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._terminal)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(WAIT_S)
        os.close(self._handle)
        os.close(self._terminal)


@pytest.fixture
def screen(filled: ServerProcess, tmp_path: Path) -> Iterator[Screen]:
    shown = Screen(filled.url, str(tmp_path))
    yield shown
    shown.close()


def test_top_is_live_and_restores_the_terminal(screen: Screen, shell: Shell) -> None:
    screen.wait_for("q quit")
    assert "\x1b[?1049h" in screen.text and "*" not in screen.text.split("QUEUE")[0]
    screen.press(b"s")  # from depth, the last, to name, the first
    screen.wait_for("emails.fifo")
    shell.good("send", "emails.fifo", "x", "--group", "g", "--dedup-key", str(time.time()))
    screen.wait_for("3 visible")
    screen.press(b"q")
    screen.wait_for("\x1b[?1049l")
    assert screen.process.wait(WAIT_S) == 0
    assert screen.settings() == screen.before

"""Backups of a running server: taken while clients send and messages move between shards, and restored elsewhere."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import convert

from batonq.cli.json_shapes import shape_of
from batonq.log import opening
from batonq.log.backup_files import Backup
from batonq.log.disk import RealDisk
from batonq.log.frames import Frame
from batonq.log.layout import log_directory
from tests.system.process import STOP_TIMEOUT_S, ServerProcess, baton

SENDERS = 3
BACKUPS = 4
BATCH = 20


class Caller:
    """One connection to the REST API."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=STOP_TIMEOUT_S)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __call__(self, method: str, path: str, value: Any = None) -> Any:
        self._connection.request(method, path, None if value is None else json.dumps(value), self._headers)
        response = self._connection.getresponse()
        text = response.read()
        assert response.status < 300, (path, response.status, text)
        return json.loads(text) if text else None

    def close(self) -> None:
        self._connection.close()


class Load:
    """Sends messages from several connections, and moves most of them to a dead-letter queue on another shard."""

    def __init__(self, url: str, pause_s: float = 0.0) -> None:
        self._url = url
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.sent: set[str] = set()  # acknowledged
        self.begun: set[str] = set()
        self.moved = 0
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(SENDERS)]
        self._failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _run(self, sender: int) -> None:
        call = Caller(self._url)
        queue = f"/v1/queues/work-{sender}/messages"
        number = 0
        try:
            while not self._stop.is_set():
                bodies = [f"{sender}-{number + one}" for one in range(BATCH)]
                number += BATCH
                self.begun.update(bodies)
                call("POST", f"{queue}:batch", {"messages": [{"body": body} for body in bodies]})
                self.sent.update(bodies)
                taken = call("POST", f"{queue}:receive", {"maxMessages": BATCH - 4})["messages"]
                failed = [{"receiptHandle": one["receiptHandle"], "deadLetter": True} for one in taken]
                if failed:
                    call("POST", f"{queue}:nack", {"messages": failed})
                    self.moved += len(failed)
                self._stop.wait(self._pause_s)
        except BaseException as problem:
            self._failures.append(problem)
        finally:
            call.close()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        assert not self._failures, self._failures


def make_queues(url: str) -> None:
    call = Caller(url)
    for number in range(SENDERS):
        call("POST", "/v1/queues", {"name": f"dead-{number}"})
    for number in range(SENDERS):  # the next queue's shard is another one than its dead-letter queue's
        call("POST", "/v1/queues", {"name": f"work-{number}", "deadLetterQueue": f"dead-{(number + 1) % SENDERS}"})
    call.close()


def everything(url: str) -> Iterator[str]:
    """The body of every message of every queue, whatever its state."""
    call = Caller(url)
    for queue in call("GET", "/v1/queues")["queues"]:
        after = 0
        while True:
            page = call("GET", f"/v1/queues/{queue['name']}/messages?limit=100&after={after}")
            yield from (message["body"] for message in page["messages"])
            if "nextAfter" not in page:
                break
            after = page["nextAfter"]
    call.close()


@pytest.mark.parametrize("flags", [("--shards", "3"), ("--shards", "3", "--processes", "2")], ids=["one", "two"])
def test_a_backup_under_load_has_exactly_what_was_committed_at_its_point(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    paths = [tmp_path / f"backup-{number}" for number in range(BACKUPS)]
    with ServerProcess(tmp_path / "data", *flags) as server:
        make_queues(server.url)
        load = Load(server.url)
        before: set[str] = set()
        begun: set[str] = set()
        for path in paths:
            before = set(load.sent)
            done = baton("backup", "--output", str(path), "--url", server.url, "--json")
            assert done.returncode == 0, done.stderr
            begun = set(load.begun)
        load.end()
        assert load.moved > 100
        assert server.terminate() == 0
    for path in paths:
        checked = baton("restore", str(path), "--check", "--json")
        assert checked.returncode == 0, checked.stderr
        assert convert(json.loads(checked.stdout), shape_of("restore")).data is None
    check_against_the_log(paths[-1], tmp_path / "data")
    assert convert(json.loads(done.stdout), shape_of("backup")).path == str(paths[-1])
    restored = baton("restore", str(paths[-1]), "--data", str(tmp_path / "restored"), "--json")
    assert restored.returncode == 0, restored.stderr
    with ServerProcess(tmp_path / "restored") as server:
        found = list(everything(server.url))
        assert server.terminate() == 0
    assert len(found) == len(set(found)) == json.loads(restored.stdout)["messages"], "nothing is doubled"
    assert before <= set(found) <= begun, "what was acknowledged before is there, what was sent later is not"


def check_against_the_log(path: Path, data: Path) -> None:
    """Byte by byte, the backup is the beginning of the logs that the server went on writing."""
    with Backup(str(path)) as backup:
        for log in backup.manifest.logs:
            stored: list[Frame] = []
            opening.load(
                RealDisk(),
                log_directory(str(data), log.shard),
                shard=log.shard,
                cluster=int(backup.manifest.cluster, 16),
                stop=log.next,
                on_frame=stored.append,
            )
            assert list(backup.frames(log)) == stored and stored, log.title


def test_a_secured_server_is_backed_up_with_its_token_and_restored_with_a_new_one(tmp_path: Path) -> None:
    data, saved = tmp_path / "data", tmp_path / "saved.tar"
    created = baton("keys", "create", "--name", "worker", "--role", "read", "--data", str(data), "--json")
    key = json.loads(created.stdout)
    with ServerProcess(data, "--secure") as server:
        token = (data / "admin-token").read_text().strip()
        call = Caller(server.url, token)
        call("POST", "/v1/queues", {"name": "orders"})
        call("POST", "/v1/queues/orders/messages", {"body": "kept"})
        (held,) = call("POST", "/v1/queues/orders/messages:receive", {"visibilityTimeoutSeconds": 600})["messages"]
        refused = baton("backup", "--output", str(saved), "--url", server.url)
        assert refused.returncode == 5 and not saved.exists() and list(tmp_path.glob("*unfinished*")) == []
        done = baton("backup", "--output", str(saved), "--data", str(data))
        assert done.returncode == 0 and "checked" in done.stdout, done.stderr
        assert saved.stat().st_mode & 0o077 == 0
        again = baton("backup", "--output", str(saved), "--data", str(data))
        assert again.returncode == 2 and "already exists" in again.stderr
        call.close()
        assert server.terminate() == 0
    restored = tmp_path / "restored"
    assert baton("restore", str(saved), "--data", str(restored)).returncode == 0
    assert not (restored / "admin-token").exists() and restored.stat().st_mode & 0o077 == 0
    with ServerProcess(restored, "--secure") as server:
        new_token = (restored / "admin-token").read_text().strip()
        assert new_token != token
        call = Caller(server.url, new_token)
        (listed,) = call("GET", "/v1/keys")["keys"]
        assert (listed["keyId"], listed["name"], listed["role"]) == (key["keyId"], "worker", "read")
        assert call("GET", "/v1/queues/orders/stats")["inFlight"] == 1
        call("POST", f"/v1/queues/orders/messages/{held['receiptHandle']}:ack")  # the lease and its receipt go on
        assert call("GET", "/v1/queues/orders/stats")["inFlight"] == 0
        call.close()
        assert server.terminate() == 0


def test_what_restore_refuses(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        make_queues(server.url)
        assert baton("backup", "--output", str(tmp_path / "saved"), "--url", server.url).returncode == 0
        assert server.terminate() == 0
    full = baton("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "data"))
    assert full.returncode == 1 and "not an empty directory" in full.stderr
    none = baton("restore", str(tmp_path / "nothing"), "--data", str(tmp_path / "new"))
    assert none.returncode == 1 and "is not a backup" in none.stderr
    both = baton("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"), "--check")
    assert both.returncode == 1 and "either --data" in both.stderr
    (tmp_path / "empty").mkdir()
    done = baton("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "empty"))
    assert done.returncode == 0 and "baton serve --data" in done.stderr
    frames = tmp_path / "saved" / "shard-0000.frames"
    frames.write_bytes(frames.read_bytes()[:-3])
    cut = baton("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"))
    assert cut.returncode == 1 and "ends in the middle of frame" in cut.stderr
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.restoring").exists()

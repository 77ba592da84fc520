"""`baton serve --processes`: real processes that are started, killed and stopped, and another number of them next."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest

from batonq.cli.supervisor import Supervisor
from batonq.node.settings import Settings
from tests.cluster.processes import runs, wait_until
from tests.system.process import STOP_TIMEOUT_S, Client, NotAnswered, ServerProcess, baton
from tests.system.test_kills import LEASE_S, Ledger, drain
from tests.system.test_process import sqs

KILLS = 4
WORKERS = 3
CONNECTIONS = 12  # some to each of the two processes
TRIES = 1_000


class Two(ServerProcess):
    """A server of two processes."""

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, "--processes", "2", *flags)

    def pids(self) -> dict[str, list[int]]:
        """Of each process, all that served, the last one last."""
        found: dict[str, list[int]] = {"p0": [], "p1": []}
        for event in list(self.events):
            if event["event"] == "process_serving":
                found[event["process"]].append(event["pid"])
        return found

    def kill_process(self, name: str) -> None:
        os.kill(self.pids()[name][-1], signal.SIGKILL)

    def wait_started(self, name: str, times: int) -> None:
        wait_until(lambda: len(self.pids()[name]) >= times, f"{name} was not started again: {self.events[-5:]}")


def post(url: str, path: str, body: bytes = b"\xc0") -> int:
    """The status of a request on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=STOP_TIMEOUT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/msgpack"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """For tests that leave it as it is."""
    # A path that is too long for the address of a Unix socket.
    with Two(tmp_path_factory.mktemp("directory") / ("long" * 20) / ("longer" * 10)) as running:
        yield running


@pytest.fixture
def clients(server: Two) -> Iterator[list[Client]]:
    """On connections of their own, some of which are answered by each process: the kernel chooses for each."""
    made: list[Client] = []
    there: set[str] = set()
    for _ in range(TRIES):
        client = Client(server.url)
        process = answering(client)
        if len(made) < CONNECTIONS - 1 or there | {process} == {"p0", "p1"}:
            made.append(client)
            there.add(process)
        else:
            client.close()  # another one from a process that has some already
        if len(made) == CONNECTIONS:
            break
    assert there == {"p0", "p1"}
    yield made
    for client in made:
        client.close()


def answering(client: Client) -> str:
    """Which process a connection leads to: the one whose requests are one more afterwards than those of the other."""
    counts = [requests_of(client) for _ in range(2)]
    (process,) = [name for name in counts[1] if counts[1][name] > counts[0].get(name, 0)]
    return process


def requests_of(client: Client) -> dict[str, int]:
    found = re.findall(r'^baton_http_requests_total\{process="(p\d)"\} (\d+)$', client.get("/metrics")[1], re.MULTILINE)
    return {name: int(count) for name, count in found}


# --- one server, for whoever uses it -----------------------------------------------------------------


def test_every_process_answers_for_all_queues(server: Two, clients: list[Client]) -> None:
    client = clients[0]
    names = ("even", "odd", "wide")
    queues = [
        client.call("CreateQueue", QueueName=name, Attributes={"Baton.Spread": "2"} if name == "wide" else {})[
            "QueueUrl"
        ]
        for name in names
    ]
    for each in clients:
        for queue in queues:
            each.call("SendMessage", QueueUrl=queue, MessageBody="hello")
    shown = client.get("/metrics")[1]
    for name in names:
        assert f'baton_queue_messages{{account="000000000000",queue="{name}",state="visible"}} {CONNECTIONS}\n' in shown
    requests = {name: f'baton_http_requests_total{{process="{name}"}}' in shown for name in ("p0", "p1")}
    assert requests == {"p0": True, "p1": True}
    assert all(f'baton_shard_up{{shard="{shard}"}} 1' in shown for shard in (0, 1))
    page = client.get("/", {"Accept": "text/html"})[1]
    assert "All well: 3 queues" in page and "not served" not in page
    for each in clients:
        assert each.get("/readyz") == (200, "ok\n")
        listed = json.loads(each.get("/v1/history?names=true")[1])
        assert [shard["shard"] for shard in listed["shards"]] == [0, 1] and listed["unavailable"] == []
        assert all("wide" in {queue["name"] for queue in shard["queues"]} for shard in listed["shards"])
        for shard in listed["shards"]:
            status, frames = each.get_bytes(f"/v1/history/{shard['shard']}?max_bytes=1")
            assert status == 200 and frames
        assert each.get("/v1/history/7")[0] == 404
    for queue in queues:
        bodies = [body for each in clients for body, _ in drain(each, queue)]
        assert bodies == ["hello"] * CONNECTIONS


def test_what_one_process_changed_all_know(clients: list[Client]) -> None:
    for at, (one, other) in enumerate(pairwise(clients)):
        queue = one.call("CreateQueue", QueueName=f"known-{at}")["QueueUrl"]
        one.call("TagQueue", QueueUrl=queue, Tags={"at": str(at)})
        assert other.call("ListQueueTags", QueueUrl=queue) == {"Tags": {"at": str(at)}}
        other.call("DeleteQueue", QueueUrl=queue)
        assert queue not in one.call("ListQueues", QueueNamePrefix="known").get("QueueUrls", [])


def test_the_clock_of_all_is_moved(clients: list[Client]) -> None:
    for name in ("first", "second"):
        queue = clients[0].call("CreateQueue", QueueName=f"later-{name}")["QueueUrl"]
        clients[1].call("SendMessage", QueueUrl=queue, MessageBody="later", DelaySeconds=600)
        assert clients[2].call("ReceiveMessage", QueueUrl=queue) == {}
    clients[3].advance(600)
    for name in ("first", "second"):
        queue = clients[0].call("GetQueueUrl", QueueName=f"later-{name}")["QueueUrl"]
        assert clients[4].call("ReceiveMessage", QueueUrl=queue)["Messages"][0]["Body"] == "later"


def test_the_command_line_finds_it(server: Two, tmp_path: Path) -> None:
    shown = baton("cluster", "status", "--url", server.url)
    assert shown.returncode == 0, shown
    assert "owns catalog, 0\n" in shown.stdout and "owns 1\n" in shown.stdout
    assert "\n1               1 p1 " in shown.stdout, "a data directory is one replica"
    moved = baton("cluster", "move", "0", "--to", "p1", "--url", server.url)
    assert moved.returncode == 1 and "--processes" in moved.stderr
    assert post(server.url, "/internal/node/status") == 200
    assert post(server.url, "/internal/shards/0/next_sequence") == 403, "only by the sockets in the data directory"
    port = server.url.rpartition(":")[2]
    second = baton("serve", "--processes", "2", "--port", port, "--data", str(tmp_path))
    assert second.returncode == 1 and f"port {port}" in second.stderr and "--port" in second.stderr


def test_a_secured_server(tmp_path: Path) -> None:
    with Two(tmp_path, "--secure") as server:
        made = baton("keys", "create", "--data", str(tmp_path))
        key, secret = (line.partition("=")[2] for line in made.stdout.splitlines()[:2])
        for _ in range(CONNECTIONS):
            client = sqs(server.url, key, secret)
            client.create_queue(QueueName="orders")
            client.close()
        assert post(server.url, "/internal/node/status") != 200
        assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.sock")} == {0o600}
        assert server.terminate() == 0
    assert not list(tmp_path.glob("*.sock"))


# --- kills --------------------------------------------------------------------------------------------


def work(server: Two, queues: list[str], ledger: Ledger, enough: threading.Event, seed: int) -> None:
    """Send, receive and delete; when a process goes away, go on with another."""
    random = Random(seed)
    while not enough.is_set():
        client = Client(server.url)
        try:
            while not enough.is_set():
                some_work(client, random.choice(queues), ledger, random)
        except NotAnswered:
            continue
        finally:
            client.close()


def some_work(client: Client, queue: str, ledger: Ledger, random: Random) -> None:
    bodies = [f"message {next(ledger.numbers)}" for _ in range(random.randint(1, 10))]
    with ledger.lock:
        ledger.tried.update(bodies)
    entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
    answer = client.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
    with ledger.lock:
        ledger.acknowledged.update(bodies[int(entry["Id"])] for entry in answer.get("Successful", []))
    answer = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=random.randint(1, 10))
    held = [(message["Body"], message["ReceiptHandle"]) for message in answer.get("Messages", [])]
    ledger.take(held)
    for body, receipt in held[: len(held) // 2]:
        with ledger.lock:
            ledger.deleting.add(body)
        client.call("DeleteMessage", QueueUrl=queue, ReceiptHandle=receipt)
        with ledger.lock:
            ledger.deleted.add(body)


def make_queues(url: str) -> list[str]:
    """One on each shard, and one on both."""
    client = Client(url)
    same = {"VisibilityTimeout": str(LEASE_S), "Baton.StrictReceipts": "true"}
    spreads = {"first": "1", "second": "1", "wide": "2"}
    queues = [
        str(client.call("CreateQueue", QueueName=name, Attributes={**same, "Baton.Spread": spread})["QueueUrl"])
        for name, spread in spreads.items()
    ]
    client.close()
    return queues


def judge(url: str, ledger: Ledger) -> None:
    """Nothing acknowledged is lost, nothing deleted comes back, every lease is kept."""
    client = Client(url)
    queues = [client.call("GetQueueUrl", QueueName=name)["QueueUrl"] for name in ("first", "second", "wide")]
    waiting = [found for queue in queues for found in drain(client, queue)]
    ledger.take(waiting)
    assert ledger.wrong == []
    client.advance(LEASE_S + 3_600)  # what was held comes back now
    left = {body for body, _ in waiting} | {body for queue in queues for body, _ in drain(client, queue)}
    client.close()
    lost = ledger.acknowledged - ledger.deleting - left
    assert not lost, f"{len(lost)} of {len(ledger.acknowledged)} acknowledged messages are gone"
    assert not left & ledger.deleted
    assert left <= ledger.tried


def test_kills_of_each_process_under_load_lose_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    with Two(tmp_path) as server:
        queues = make_queues(server.url)
        enough = threading.Event()
        threads = [threading.Thread(target=work, args=(server, queues, ledger, enough, at)) for at in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            for kill in range(KILLS):
                before = len(ledger.acknowledged)
                wait_until(lambda before=before: len(ledger.acknowledged) > before + 50, "no progress")  # type: ignore[misc]
                server.kill_process(f"p{kill % 2}")
                server.wait_started(f"p{kill % 2}", 2 + kill // 2)
        finally:
            enough.set()
            for thread in threads:
                thread.join(STOP_TIMEOUT_S)
        assert not any(thread.is_alive() for thread in threads)
        judge(server.url, ledger)
        assert server.terminate() == 0
    ended = [event for event in server.events if event["event"] == "process_ended"]
    assert [event["code"] for event in ended] == [-signal.SIGKILL] * KILLS
    assert baton("log", "verify", str(tmp_path)).returncode == 0


def test_a_killed_supervisor_leaves_nobody_behind(tmp_path: Path) -> None:
    ledger = Ledger()
    with Two(tmp_path) as server:
        queues = make_queues(server.url)
        client = Client(server.url)
        for number in range(20):
            some_work(client, queues[number % 3], ledger, Random(number))
        client.close()
        pids = [pid for pids in server.pids().values() for pid in pids]
        server.kill()  # which waits until nobody has its standard error any more
        wait_until(lambda: not any(map(runs, pids)), f"some of {pids} still run")
    with Two(tmp_path) as server:
        judge(server.url, ledger)
        assert server.terminate() == 0


def test_a_process_ends_when_nobody_holds_the_other_end_of_its_socket() -> None:
    """Where the system cannot tie a process to the one that started it, the socket between them does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "batonq.cli.process", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    ours.close()
    assert process.wait(STOP_TIMEOUT_S) == 1


def test_while_a_process_is_away_the_others_answer(tmp_path: Path) -> None:
    """It cannot come back, because its log is damaged: it is tried again and again, and the rest goes on."""
    with Two(tmp_path) as server:
        queues = make_queues(server.url)
        client = Client(server.url)
        for queue in queues:
            client.call("SendMessage", QueueUrl=queue, MessageBody="hello")
        client.close()
        segment = tmp_path / "shard-0001" / "segment-00000000000000000001.log"
        flip(segment)  # before it is killed: it may be back in no time
        server.kill_process("p1")
        wait_until(lambda: len(ended(server)) >= 2, "it should not come up")
        client = Client(server.url)
        shown = client.get("/metrics")[1]
        assert 'baton_shard_up{shard="0"} 1' in shown and 'baton_shard_up{shard="1"} 0' in shown
        # "stopped", or "opening" while it is tried again.
        assert "shard 1 is " in client.get("/", {"Accept": "text/html"})[1]
        client.call("SendMessage", QueueUrl=queues[0], MessageBody="here")
        for _ in range(4):
            client.call("SendMessage", QueueUrl=queues[2], MessageBody="on the other shard")
        with pytest.raises(NotAnswered):
            client.call("SendMessage", QueueUrl=queues[1], MessageBody="nobody has it")
        assert json.loads(client.get("/v1/history")[1])["unavailable"] == [1]
        client.close()
        flip(segment)
        server.wait_started("p1", 2)
        client = Client(server.url)
        client.call("SendMessage", QueueUrl=queues[1], MessageBody="again")
        assert [body for body, _ in drain(client, queues[1])] == ["hello", "again"]
        client.close()
        assert server.terminate() == 0
    pauses = [event["text"] for event in ended(server)]
    assert "in 0.1 s" in pauses[0] and "in 0.2 s" in pauses[1], pauses


def test_the_pause_before_a_process_is_started_again_grows_though_it_had_served_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It served for a while and was killed; since then it does not come up."""
    monkeypatch.setattr("batonq.cli.supervisor.STEADY_S", 0.0)
    monkeypatch.setattr("batonq.cli.supervisor.AGAIN_FIRST_S", 0.01)
    pauses: list[float] = []

    async def main() -> None:
        supervisor = Supervisor(Settings(data=str(tmp_path), processes=1))
        supervisor._all_served = True
        child = supervisor._children[0]
        lives = iter([True, False, False, False])

        def start(control: int) -> subprocess.Popen[bytes]:
            """A process that ends at once, and says before it does that it serves if it is the first."""
            if next(lives):
                asyncio.get_running_loop().call_soon(served)
            return subprocess.Popen([sys.executable, "-c", ""])

        def served() -> None:
            child.served_s = asyncio.get_running_loop().time()

        def noted(name: str, text: str, **_: object) -> None:
            pauses.append(child.pause_s)
            if len(pauses) == 4:
                supervisor._stop.set()

        monkeypatch.setattr(supervisor, "_start", start)
        monkeypatch.setattr("batonq.cli.supervisor.events.warning", noted)
        supervisor._ownership.take()
        try:
            await supervisor._keep(child)
        finally:
            supervisor._ownership.close()

    asyncio.run(main())
    assert pauses == [0.01, 0.02, 0.04, 0.08]


def flip(segment: Path) -> None:
    """A bit of the first frame."""
    with segment.open("r+b") as file:
        file.seek(70)
        byte = file.read(1)[0]
        file.seek(70)
        file.write(bytes([byte ^ 1]))


def ended(server: Two) -> list[dict[str, Any]]:
    return [event for event in list(server.events) if event["event"] == "process_ended"]


# --- stop and start -----------------------------------------------------------------------------------


def test_a_stop_answers_those_who_wait_wherever_they_wait(tmp_path: Path) -> None:
    with Two(tmp_path) as server:
        queues = make_queues(server.url)
        answers: list[dict[str, Any]] = []

        stopping = threading.Event()

        def poll(queue: str) -> None:
            waiting = Client(server.url)
            answer: dict[str, Any] | None = None
            while answer is None or not stopping.is_set():  # again only if it takes the others so long to come
                answer = waiting.call("ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=20)
            answers.append(answer)
            waiting.close()

        polls = [threading.Thread(target=poll, args=(queue,)) for queue in queues[:2] for _ in range(4)]
        for thread in polls:
            thread.start()
        client = Client(server.url)

        def waiting() -> bool:
            shown = client.get("/metrics")[1]
            return all(f'queue="{name}"}} 4' in shown for name in ("first", "second"))

        wait_until(waiting, "nobody waits")
        client.close()
        stopping.set()
        server.process.send_signal(signal.SIGINT)
        for thread in polls:
            thread.join(STOP_TIMEOUT_S)
        assert answers == [{}] * 8
        assert server._end() == 0
        assert server.events[-1]["event"] == "stopped"
        assert not [event for event in server.events if event["level"] in ("warning", "error")]


def test_the_number_of_processes_changes_between_starts(tmp_path: Path) -> None:
    ledger = Ledger()
    for start, make in enumerate((ServerProcess, Two, ServerProcess)):
        flags = ("--shards", "2") if start else ()
        with make(tmp_path, *flags) as server:
            client = Client(server.url)
            for name in ("first", "second", "wide")[: start + 1]:
                attributes = {"VisibilityTimeout": str(LEASE_S), "Baton.StrictReceipts": "true"}
                queue = client.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
                for number in range(5):
                    some_work(client, queue, ledger, Random(number))
            client.close()
            if start == 2:
                judge(server.url, ledger)
            assert server.terminate() == 0
    assert sorted(path.name for path in tmp_path.glob("shard-*")) == ["shard-0000", "shard-0001"]
    assert baton("log", "verify", str(tmp_path)).returncode == 0


def test_a_process_that_cannot_start_ends_the_start(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--shards", "2") as server:
        make_queues(server.url)
        server.kill()
    segment = tmp_path / "shard-0001" / "segment-00000000000000000001.log"
    flip(segment)
    done = baton("serve", "--processes", "2", "--port", "0", "--data", str(tmp_path))
    assert done.returncode == 1
    assert str(segment) in done.stderr and "process p1" in done.stderr


def test_one_process_is_the_plain_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--processes", "1") as server:
        assert not Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
        assert server.terminate() == 0

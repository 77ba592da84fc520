"""Three real nodes and their log: any node answers any request, and owners may go as they like."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.processes import (
    ANSWER_S,
    LEASE_S,
    START_S,
    STEADY_LEASE_S,
    Cluster,
    NodeProcess,
    wait_until,
)
from tests.support.nats import NatsServers, nats_servers

SLEEPER_S = 5  # how long an answer of a node that may be stopped is waited for
_numbers = count(1)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServers]:
    with nats_servers(1) as servers:
        yield servers


@contextmanager
def running(nats: NatsServers, directory: Path, lease_s: int) -> Iterator[Cluster]:
    log = f"{nats.address}/cluster_{next(_numbers)}?replicas=1&{nats.monitoring}"
    with Cluster(directory, log, "--shards", "3", "--hold-s", "3600", lease_s=lease_s) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def steady(nats: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its leases outlast whatever a machine that is slow does to it."""
    with running(nats, tmp_path_factory.mktemp("steady"), STEADY_LEASE_S) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(nats: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its leases end soon, for tests in which owners go."""
    with running(nats, tmp_path_factory.mktemp("nodes"), LEASE_S) as cluster:
        yield cluster


def url(node: NodeProcess, queue: str) -> str:
    return f"{node.url}/000000000000/{queue}"


def create(cluster: Cluster, queue: str, **attributes: str) -> None:
    cluster.any().sqs().create_queue(QueueName=queue, Attributes=attributes)


def shard_of(cluster: Cluster, queue: str) -> int:
    for node in cluster.nodes:
        if node.running:
            for each in node.ask("status")["queues"]:
                if each["name"] == queue:
                    return int(each["shard"])
    raise AssertionError(f"nobody knows {queue}")


class Load:
    """Producers and consumers that talk to any node, and remember what they were told."""

    def __init__(self, cluster: Cluster, queue: str, answer_s: float = ANSWER_S) -> None:
        """`answer_s` is how long they wait for a node that may be stopped."""
        self.sent: set[str] = set()  # acknowledged
        self.tried: set[str] = set()
        self.received: list[str] = []
        self.deleted: set[str] = set()
        self.errors = 0
        self.send_errors = 0
        self.problems: list[str] = []
        self.last_sent_s = time.monotonic()
        self.gaps: list[float] = []
        self._cluster = cluster
        self._queue = queue
        self._answer_s = answer_s
        self._asked: dict[int, NodeProcess] = {}  # by number of the call
        self._calls = count()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_sent(self, more: int = 20, seconds: float = START_S) -> None:
        """Until so many more sends were acknowledged."""
        wanted = len(self.sent) + more
        wait_until(lambda: len(self.sent) >= wanted, f"nothing is sent any more: {self.problems[-3:]}", seconds)

    def leave(self, node: NodeProcess) -> None:
        """Ask a node nothing more; returns when it has answered all that it was asked."""
        with self._lock:
            self._cluster.away.append(node)
        wait_until(lambda: node not in list(self._asked.values()), f"{node.name} does not answer")

    @contextmanager
    def _asking(self, clients: dict[str, Any]) -> Iterator[tuple[Any, str]]:
        """A client of any node, and the address of the queue there."""
        call = next(self._calls)
        with self._lock:
            node = self._asked[call] = self._cluster.any()
        try:
            yield clients[node.name], url(node, self._queue)
        finally:
            del self._asked[call]

    def _produce(self) -> None:
        clients = {node.name: node.sqs(self._answer_s) for node in self._cluster.nodes}
        for number in count():
            if self._stop.is_set():
                return
            body = str(number)
            self.tried.add(body)
            try:
                with self._asking(clients) as (client, address):
                    client.send_message(QueueUrl=address, MessageBody=body)
            except (ClientError, BotoCoreError) as problem:
                self.send_errors += 1
                self._failed(problem)
                continue
            now_s = time.monotonic()
            self.gaps.append(now_s - self.last_sent_s)
            self.last_sent_s = now_s
            self.sent.add(body)
            time.sleep(0.005)

    def _consume(self) -> None:
        clients = {node.name: node.sqs(self._answer_s) for node in self._cluster.nodes}
        while not self._stop.is_set():
            try:
                with self._asking(clients) as (client, address):
                    answer = client.receive_message(QueueUrl=address, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                for message in answer.get("Messages", []):
                    self.received.append(message["Body"])
                    with self._asking(clients) as (client, address):
                        client.delete_message(QueueUrl=address, ReceiptHandle=message["ReceiptHandle"])
                    self.deleted.add(message["Body"])
            except (ClientError, BotoCoreError) as problem:
                self._failed(problem)

    def _failed(self, problem: Exception) -> None:
        self.errors += 1
        self.problems.append(str(problem))
        if isinstance(problem, ClientError):
            assert problem.response["ResponseMetadata"]["HTTPStatusCode"] in (429, 503), problem
        time.sleep(0.02)

    def check(self) -> None:
        """After everything is drained: nothing that was acknowledged is lost, nothing came from nowhere."""
        node = self._cluster.any()
        client, address = node.sqs(), url(node, self._queue)
        deadline_s = time.monotonic() + START_S
        while self.sent - set(self.received):
            assert time.monotonic() < deadline_s, f"lost: {sorted(self.sent - set(self.received))[:10]}"
            for message in client.receive_message(QueueUrl=address, MaxNumberOfMessages=10, WaitTimeSeconds=1).get(
                "Messages", []
            ):
                self.received.append(message["Body"])
                client.delete_message(QueueUrl=address, ReceiptHandle=message["ReceiptHandle"])
        assert set(self.received) <= self.tried, "delivered and never sent"


def test_any_node_takes_any_request(steady: Cluster) -> None:
    create(steady, "dead")
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    create(steady, "work", RedrivePolicy=policy, VisibilityTimeout="0")
    for number in range(30):
        node = steady.any()
        node.sqs().send_message(QueueUrl=url(node, "work"), MessageBody=str(number))
    for _ in range(2):  # received once, and dead the next time
        wait_until(lambda: not receive(steady, "work"), "the queue is not empty")
    found: set[str] = set()
    while len(found) < 30:
        for message in receive(steady, "dead", 10, VisibilityTimeout=300):
            assert message["Body"] not in found
            found.add(message["Body"])
            node = steady.any()
            node.sqs().delete_message(QueueUrl=url(node, "dead"), ReceiptHandle=message["ReceiptHandle"])
    assert found == {str(number) for number in range(30)}
    node = steady.any()
    node.sqs().delete_queue(QueueUrl=url(node, "work"))
    other = steady.any()
    with pytest.raises(ClientError, match=r"NonExistentQueue|does not exist"):
        other.sqs().send_message(QueueUrl=url(other, "work"), MessageBody="to nobody")


def receive(cluster: Cluster, queue: str, wait_s: int = 0, **options: Any) -> list[dict[str, Any]]:
    node = cluster.any()
    answer = node.sqs().receive_message(
        QueueUrl=url(node, queue), MaxNumberOfMessages=10, WaitTimeSeconds=wait_s, **options
    )
    return list(answer.get("Messages", []))


def test_a_long_poll_at_one_node_is_ended_by_a_send_at_another(steady: Cluster) -> None:
    create(steady, "polled")
    got: list[dict[str, Any]] = []
    nodes = steady.nodes

    def poll(node: NodeProcess) -> None:
        while not (
            messages := node.sqs().receive_message(QueueUrl=url(node, "polled"), WaitTimeSeconds=20).get("Messages")
        ):
            pass  # so slow a machine that nobody had sent anything yet
        got.extend(messages)

    threads = [threading.Thread(target=poll, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    wait_until(lambda: ask_rest(steady, "GET", "/queues/polled/stats")["waitingReceives"] == 3, "nobody waits")
    for node in nodes:
        node.sqs().send_message(QueueUrl=url(node, "polled"), MessageBody="wake up")
    for thread in threads:
        thread.join(START_S)
    assert len(got) == 3


def ask_rest(cluster: Cluster, method: str, path: str, body: Any = None) -> Any:
    node = cluster.any()
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{node.url}/v1{path}", data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.loads(answer.read() or b"null")


def test_rest_too(steady: Cluster) -> None:
    ask = partial(ask_rest, steady)
    ask("POST", "/queues", {"name": "rest", "defaultVisibilityTimeoutSeconds": 3_600})
    ask("POST", "/queues/rest/messages:batch", {"messages": [{"body": f"m{number}"} for number in range(50)]})
    leased: list[Any] = []
    while len(leased) < 50:
        leased += ask("POST", "/queues/rest/messages:receive", {"maxMessages": 20})["messages"]
    assert sorted(message["body"] for message in leased) == sorted(f"m{number}" for number in range(50))


def test_a_planned_move_waits_for_no_lease_and_loses_nothing(steady: Cluster) -> None:
    create(steady, "moved")
    shard = shard_of(steady, "moved")
    with Load(steady, "moved") as load:
        for _ in range(5):
            load.wait_sent()
            owner = steady.owner(shard)
            target = next(node for node in steady.nodes if node is not owner)
            owner.ask("move", [shard, target.name])
            wait_until(partial(_owns, steady, shard, target), "the owner is another one")
        load.wait_sent()
    load.check()
    assert load.errors == 0, load.problems
    assert max(load.gaps) < STEADY_LEASE_S, max(load.gaps)


def _owns(cluster: Cluster, shard: int, node: NodeProcess) -> bool:
    return cluster.owner(shard) is node


def test_nodes_are_restarted_one_after_the_other_without_an_error(steady: Cluster) -> None:
    """Those that are asked meanwhile are the others: what a node has is handed over before it stops."""
    create(steady, "rolling")
    with Load(steady, "rolling") as load:
        for node in list(steady.nodes):
            load.wait_sent()
            load.leave(node)
            assert node.terminate() == 0
            node.start()
            steady.wait_ready(node)
            steady.away.remove(node)
        load.wait_sent()
    load.check()
    assert load.errors == 0, load.problems
    assert max(load.gaps) < STEADY_LEASE_S, max(load.gaps)


def test_sends_to_a_spread_queue_do_not_wait_for_an_owner_that_is_killed(steady: Cluster) -> None:
    create(steady, "spread", VisibilityTimeout="4", **{"Baton.Spread": "3"})
    with Load(steady, "spread") as load:
        load.wait_sent()
        victim = steady.owner(shard_of(steady, "spread"))
        load.leave(victim)
        errors = load.send_errors
        victim.kill()
        load.wait_sent(60, STEADY_LEASE_S / 2)  # while its leases last, its shards have no other owner
        assert load.send_errors <= errors + 1, (
            load.problems
        )  # what the victim was at when it died, and nothing after it
        victim.start()
        steady.wait_ready(victim)
        steady.away.remove(victim)
        load.wait_sent()
    load.check()


def test_an_owner_that_slept_past_its_lease_writes_nothing_more(cluster: Cluster) -> None:
    create(cluster, "slept")
    shard = shard_of(cluster, "slept")
    sleeper = cluster.owner(shard)
    with Load(cluster, "slept", SLEEPER_S) as load:
        load.wait_sent()
        cluster.away.append(sleeper)
        sleeper.signal(signal.SIGSTOP)
        wait_until(lambda: cluster.owner(shard) is not sleeper, "nobody took over")
        load.wait_sent()
        sleeper.signal(signal.SIGCONT)
        cluster.away.remove(sleeper)
        load.wait_sent(60)
    load.check()


def test_all_nodes_are_killed_and_come_back(cluster: Cluster) -> None:
    create(cluster, "all", VisibilityTimeout="4")
    with Load(cluster, "all") as load:
        load.wait_sent()
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        for node in cluster.nodes:
            cluster.wait_ready(node)
        load.wait_sent()
    load.check()


def test_an_owner_is_killed_under_load(cluster: Cluster) -> None:
    create(cluster, "killed", VisibilityTimeout="4")
    shard = shard_of(cluster, "killed")
    with Load(cluster, "killed") as load:
        load.wait_sent()
        victim = cluster.owner(shard)
        victim.kill()
        load.wait_sent()
        victim.start()
        cluster.wait_ready(victim)
        load.wait_sent()
    load.check()

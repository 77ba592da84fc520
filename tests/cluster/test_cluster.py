"""Three real nodes and their log: any node answers any request, and owners may go as they like."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.processes import LEASE_S, Cluster, NodeProcess, wait_until
from tests.support.nats import NatsServers, nats_servers

_numbers = count(1)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServers]:
    with nats_servers(1) as servers:
        yield servers


@pytest.fixture(scope="module")
def cluster(nats: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    log = f"{nats.address}/cluster_{next(_numbers)}?replicas=1&{nats.monitoring}"
    with Cluster(tmp_path_factory.mktemp("nodes"), log, "--shards", "3", "--hold-s", "3600") as running:
        yield running


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

    def __init__(self, cluster: Cluster, queue: str) -> None:
        self.sent: set[str] = set()  # acknowledged
        self.tried: set[str] = set()
        self.received: list[str] = []
        self.deleted: set[str] = set()
        self.errors = 0
        self.problems: list[str] = []
        self.last_sent_s = time.monotonic()
        self.gaps: list[float] = []
        self._cluster = cluster
        self._queue = queue
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

    def _produce(self) -> None:
        clients = {node.name: node.sqs() for node in self._cluster.nodes}
        for number in count():
            if self._stop.is_set():
                return
            node = self._cluster.any()
            body = str(number)
            self.tried.add(body)
            try:
                clients[node.name].send_message(QueueUrl=url(node, self._queue), MessageBody=body)
            except (ClientError, BotoCoreError) as problem:
                self._failed(problem)
                continue
            now_s = time.monotonic()
            self.gaps.append(now_s - self.last_sent_s)
            self.last_sent_s = now_s
            self.sent.add(body)
            time.sleep(0.005)

    def _consume(self) -> None:
        clients = {node.name: node.sqs() for node in self._cluster.nodes}
        while not self._stop.is_set():
            node = self._cluster.any()
            address = url(node, self._queue)
            try:
                answer = clients[node.name].receive_message(QueueUrl=address, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                for message in answer.get("Messages", []):
                    self.received.append(message["Body"])
                    other = self._cluster.any()
                    clients[other.name].delete_message(
                        QueueUrl=url(other, self._queue), ReceiptHandle=message["ReceiptHandle"]
                    )
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
        deadline_s = time.monotonic() + 60
        while self.sent - set(self.received):
            assert time.monotonic() < deadline_s, f"lost: {sorted(self.sent - set(self.received))[:10]}"
            for message in client.receive_message(QueueUrl=address, MaxNumberOfMessages=10, WaitTimeSeconds=1).get(
                "Messages", []
            ):
                self.received.append(message["Body"])
                client.delete_message(QueueUrl=address, ReceiptHandle=message["ReceiptHandle"])
        assert set(self.received) <= self.tried, "delivered and never sent"


def sent_after(load: Load, moment_s: float) -> float:
    """How long after a moment the next send was acknowledged."""
    wait_until(lambda: load.last_sent_s > moment_s, "nothing is sent any more", 30)
    return load.last_sent_s - moment_s


def test_any_node_takes_any_request(cluster: Cluster) -> None:
    create(cluster, "dead")
    arn = "arn:aws:sqs:us-east-1:000000000000:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    create(cluster, "work", RedrivePolicy=policy, VisibilityTimeout="0")
    for number in range(30):
        node = cluster.any()
        node.sqs().send_message(QueueUrl=url(node, "work"), MessageBody=str(number))
    for _ in range(2):  # received once, and dead the next time
        wait_until(lambda: not receive(cluster, "work"), "the queue is not empty")
    found: set[str] = set()
    while len(found) < 30:
        for message in receive(cluster, "dead", 10, VisibilityTimeout=300):
            assert message["Body"] not in found
            found.add(message["Body"])
            node = cluster.any()
            node.sqs().delete_message(QueueUrl=url(node, "dead"), ReceiptHandle=message["ReceiptHandle"])
    assert found == {str(number) for number in range(30)}
    node = cluster.any()
    node.sqs().delete_queue(QueueUrl=url(node, "work"))
    other = cluster.any()
    with pytest.raises(ClientError, match=r"NonExistentQueue|does not exist"):
        other.sqs().send_message(QueueUrl=url(other, "work"), MessageBody="to nobody")


def receive(cluster: Cluster, queue: str, wait_s: int = 0, **options: Any) -> list[dict[str, Any]]:
    node = cluster.any()
    answer = node.sqs().receive_message(
        QueueUrl=url(node, queue), MaxNumberOfMessages=10, WaitTimeSeconds=wait_s, **options
    )
    return list(answer.get("Messages", []))


def test_a_long_poll_at_one_node_is_ended_by_a_send_at_another(cluster: Cluster) -> None:
    create(cluster, "polled")
    got: list[dict[str, Any]] = []
    nodes = cluster.nodes

    def poll(node: NodeProcess) -> None:
        answer = node.sqs().receive_message(QueueUrl=url(node, "polled"), WaitTimeSeconds=20)
        got.extend(answer.get("Messages", []))

    threads = [threading.Thread(target=poll, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for node in nodes:
        node.sqs().send_message(QueueUrl=url(node, "polled"), MessageBody="wake up")
    for thread in threads:
        thread.join(15)
    assert len(got) == 3


def test_rest_too(cluster: Cluster) -> None:
    def ask(method: str, path: str, body: Any = None) -> Any:
        node = cluster.any()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{node.url}/v1{path}", data, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    ask("POST", "/queues", {"name": "rest"})
    ask("POST", "/queues/rest/messages:batch", {"messages": [{"body": f"m{number}"} for number in range(50)]})
    leased: list[Any] = []
    while len(leased) < 50:
        leased += ask("POST", "/queues/rest/messages:receive", {"maxMessages": 20})["messages"]
    assert sorted(message["body"] for message in leased) == sorted(f"m{number}" for number in range(50))


def test_a_planned_move_takes_less_than_a_second_and_loses_nothing(cluster: Cluster) -> None:
    create(cluster, "moved")
    shard = shard_of(cluster, "moved")
    with Load(cluster, "moved") as load:
        took_s = []
        for _ in range(5):
            owner = cluster.owner(shard)
            target = next(node for node in cluster.nodes if node is not owner)
            began_s = time.monotonic()
            owner.ask("move", [shard, target.name])
            sent_after(load, time.monotonic())
            took_s.append(load.last_sent_s - began_s)
            wait_until(partial(_owns, cluster, shard, target), "the owner is another one")
    load.check()
    assert median(took_s) < 1, took_s
    assert load.errors == 0, load.problems


def _owns(cluster: Cluster, shard: int, node: NodeProcess) -> bool:
    return cluster.owner(shard) is node


def test_nodes_are_restarted_one_after_the_other_without_an_error(cluster: Cluster) -> None:
    """Those that are asked meanwhile are the others: what a node has is handed over before it stops."""
    create(cluster, "rolling")
    with Load(cluster, "rolling") as load:
        for node in list(cluster.nodes):
            cluster.away.append(node)
            time.sleep(0.1)  # what it was asked before is answered
            assert node.terminate() == 0
            node.start()
            cluster.wait_ready(node)
            cluster.away.remove(node)
    load.check()
    assert load.errors == 0 and max(load.gaps) < 5, (load.errors, max(load.gaps))


def test_an_owner_that_slept_past_its_lease_writes_nothing_more(cluster: Cluster) -> None:
    create(cluster, "slept")
    shard = shard_of(cluster, "slept")
    sleeper = cluster.owner(shard)
    with Load(cluster, "slept") as load:
        time.sleep(0.5)
        cluster.away.append(sleeper)
        sleeper.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_until(lambda: cluster.owner(shard) is not sleeper, "nobody took over")
        assert sent_after(load, stopped_s + LEASE_S) < 10
        sleeper.signal(signal.SIGCONT)
        cluster.away.remove(sleeper)
        time.sleep(1)
    load.check()


def test_all_nodes_are_killed_and_come_back(cluster: Cluster) -> None:
    create(cluster, "all", VisibilityTimeout="4")
    with Load(cluster, "all") as load:
        time.sleep(0.5)
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        for node in cluster.nodes:
            cluster.wait_ready(node)
        assert sent_after(load, time.monotonic()) < 10
    load.check()


def test_an_owner_is_killed_under_load(cluster: Cluster) -> None:
    create(cluster, "killed", VisibilityTimeout="4")
    shard = shard_of(cluster, "killed")
    with Load(cluster, "killed") as load:
        time.sleep(0.5)
        victim = cluster.owner(shard)
        victim.kill()
        killed_s = time.monotonic()
        assert sent_after(load, killed_s + 0.5) < 10, "service was not back in time"
        victim.start()
        cluster.wait_ready(victim)
        time.sleep(0.5)
    load.check()
    assert load.sent


def test_sends_to_a_spread_queue_do_not_wait_for_an_owner_that_is_killed(cluster: Cluster) -> None:
    create(cluster, "spread", VisibilityTimeout="4", **{"Baton.Spread": "3"})
    with Load(cluster, "spread") as load:
        time.sleep(0.5)
        victim = cluster.owner(shard_of(cluster, "spread"))
        sent = len(load.sent)
        victim.kill()
        wait_until(lambda: len(load.sent) > sent + 20, "sends wait for the shard that has no owner", 4)
        assert sent_after(load, time.monotonic() + 1) < 4
        victim.start()
        cluster.wait_ready(victim)
        time.sleep(0.5)
    load.check()

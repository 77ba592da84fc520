"""Real processes: an owner is killed with SIGKILL after it has committed a send and before it has answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cluster.lines import Loss, Relay
from tests.cluster.processes import Cluster, NodeProcess, wait_until
from tests.support.nats import nats_servers
from tests.system.process import Client, NotAnswered

T = TypeVar("T")
SENDS = ("/submit",)


class Relays:
    """A relay on the line to each node, in a thread of their own."""

    def __init__(self) -> None:
        self.of: dict[str, Relay] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def put_before(self, node: NodeProcess) -> None:
        relay = self.of[node.name] = Relay()
        self.run(relay.listen())
        relay.lead_to(node.host, node.port)
        node.advertise(f"http://127.0.0.1:{relay.port}")

    def close(self) -> None:
        for relay in self.of.values():
            self.run(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def relays() -> Iterator[Relays]:
    made = Relays()
    try:
        yield made
    finally:
        made.close()


def count(client: Client, queue: str) -> int:
    """Messages of a queue, once its shard has an owner."""
    told: list[int] = []

    def look() -> bool:
        try:
            answer = client.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
        except NotAnswered:
            return False
        told.append(int(answer["Attributes"]["ApproximateNumberOfMessages"]))
        return True

    wait_until(look, "nobody serves the queue")
    return told[-1]


def test_a_send_whose_owner_is_killed_before_it_answers_is_executed_once(tmp_path: Path) -> None:
    """The sender has no name for its request, so nothing but the call between the nodes protects it."""
    with nats_servers(1) as nats, relays() as lines, ExitStack() as clients:
        log = f"{nats.address}/killed?replicas=1&{nats.monitoring}"
        cluster = Cluster(tmp_path, log, "--shards", "1", "--hold-s", "3600", nodes=2)
        for node in cluster.nodes:
            lines.put_before(node)
        with cluster:
            owner = cluster.owner(0)
            asked = next(node for node in cluster.nodes if node is not owner)
            client = clients.enter_context(closing(Client(asked.url)))
            queue = client.call("CreateQueue", QueueName="work")["QueueUrl"]
            client.call("SendMessage", QueueUrl=queue, MessageBody="first")
            relay = lines.of[owner.name]
            calls = len(relay.requests_to(SENDS))
            assert calls, "the send was forwarded, and its connection is kept"

            async def kill() -> None:
                """Committed, and not answered. Nobody listens there from now on."""
                relay.refuse()
                await asyncio.to_thread(owner.kill)

            relay.loss = Loss(SENDS, kill)
            with pytest.raises(NotAnswered, match="may or may not"):
                client.call("SendMessage", QueueUrl=queue, MessageBody="second")
            assert len(relay.requests_to(SENDS)) == calls + 1, "it was asked"
            assert cluster.owner(0) is asked
            assert count(client, queue) == 2
            got = client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
            assert sorted(message["Body"] for message in got) == ["first", "second"]

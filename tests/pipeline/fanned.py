"""A day with topics and schedules, made by real requests: copies on both shards, filters, a full queue, firings."""

from __future__ import annotations

from batonq.client.models import Outgoing
from batonq.sync import Baton
from tests.support.server import TestServer

QUEUES = 5


def make(directory: str) -> None:
    """Fill `directory` with the logs of such a day; the server is stopped when this returns."""
    with TestServer(directory, shards=2) as server, Baton(server.url) as baton:
        topic = baton.create_topic("news")
        queues = [baton.create_queue(f"reader-{number}") for number in range(QUEUES)]
        queues.append(baton.create_queue("small", max_messages=2))
        for number, queue in enumerate(queues):
            topic.subscribe(queue.name, filter={"kind": ["odd"]} if number == 1 else None)
        ticks = baton.create_queue("ticks")
        ticks.schedules.create("often", {"tick": 1}, rate=10.0, missed="all")
        ticks.schedules.create("seldom", {"tick": 2}, rate=25.0)
        for number in range(6):
            topic.publish_many(
                [
                    Outgoing({"news": number, "part": part}, attributes={"kind": ("even", "odd")[part % 2]})
                    for part in (0, 1)
                ]
            )
            topic.publish({"flash": number})
            server.advance(11)
            for queue in (*queues, ticks):
                queue.ack_many([message.receipt for message in queue.receive(10, wait=0)])
        ticks.schedules.delete("seldom")
        ticks.schedules.create("seldom", {"tick": 3}, rate=20.0)
        server.advance(65)  # so that the other shard's history continues long enough to be compared
        for queue in queues[:QUEUES]:
            queue.send("last")

"""A day with topics, schedules and replays, made by real requests: copies on both shards, filters, a full queue,
firings, messages that are sent again from history, dead letters of copies that are redriven, a purge.
"""

from __future__ import annotations

from typing import Any

from batonq.client.models import Outgoing
from batonq.sync import Baton
from tests.support.server import TestServer

QUEUES = 5


def make(directory: str, *, truncates: bool = False, **settings: Any) -> None:
    """Fill `directory` with the logs of such a day; the server is stopped when this returns.

    `truncates`: now and then what no message needs is dropped, as far as the settings let it.
    """
    with TestServer(directory, shards=2, **settings) as server, Baton(server.url) as baton:
        topic = baton.create_topic("news")
        queues = [baton.create_queue(f"reader-{number}") for number in range(QUEUES)]
        queues.append(baton.create_queue("small", max_messages=2))
        lost = baton.create_queue("lost")
        frail = baton.create_queue("frail", max_receives=1, dead_letter_queue="lost", dead_letter_on="failure")
        kept = baton.create_queue("kept", retain=86_400.0)
        for number, queue in enumerate((*queues, frail, kept)):
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
            for queue in (*queues, ticks, kept):
                queue.ack_many([message.receipt for message in queue.receive(10, wait=0)])
            for message in frail.receive(10, wait=0):
                message.nack(error_class="Torn")
            if number in (2, 4):
                lost.redrive(rate=1000).wait()
                kept.replay(rate=1000).wait()
            if number == 3:
                queues[0].send_many(["late", "later"])
                queues[0].purge()
            if truncates:
                server.run(server.node.maintenance.step)
        ticks.schedules.delete("seldom")
        ticks.schedules.create("seldom", {"tick": 3}, rate=20.0)
        server.advance(65)  # so that the other shard's history continues long enough to be compared
        for queue in queues[:QUEUES]:
            queue.send("last")

"""Calls from node to node: one that may have been run is made again only to the owner that remembers it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from batonq.core.commands import Accepted, Command, Sent
from batonq.errors import BatonError, Unavailable
from batonq.log.interface import Lease
from batonq.node.cluster import routing
from batonq.node.cluster.node_server import Answering, Served
from batonq.node.cluster.peers import PREFIX, NoAnswer, NotSent
from batonq.node.cluster.routing import Routing
from batonq.node.routing import wire
from batonq.node.routing.submission import Done
from tests.node.nodes import make_send
from tests.support import brokers
from tests.support.ask import batch

SHARD = 1


class Owner:
    """A node that serves a shard, from its start to its death; it is only asked to send."""

    def __init__(self, epoch: int, sent: list[int]) -> None:
        self.epoch = epoch
        self.answering = Answering(cast(Served, self))
        self._sent = sent

    def port_here(self, shard: int) -> Any:
        return self

    def epoch_here(self, shard: int) -> int:
        return self.epoch

    def submit(self, command: Command, done: Done) -> None:
        self._sent.append(self.epoch)
        done(Sent(SHARD, 0, 1, [Accepted(len(self._sent), "id", False)]))


class Cluster:
    """What the node that asks knows of the others, and the way to them."""

    node = "asking"

    def __init__(self) -> None:
        self.sent: list[int] = []  # the epochs of those who ran it
        self.served = Owner(5, self.sent)
        self.lease = Lease(SHARD, "owner", "http://owner", 5)  # as it is known where it is asked
        self.lost = 0  # answers to be lost
        self.dies = False  # with the next answer that is lost: another process takes its place at once
        self.asked: list[str] = []
        self.away = False  # it cannot be reached

    def owner(self, shard: int) -> Lease:
        return self.lease

    async def refresh(self) -> None:
        self.lease = Lease(SHARD, "owner", "http://owner", self.served.epoch)

    async def next_change(self, timeout_s: float) -> None:
        await asyncio.sleep(0.001)

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append(call)
        if self.away:
            raise NotSent(f"{address} cannot be reached")
        try:
            answer = await self.served.answering.handle(path.removeprefix(PREFIX), call, body)
        except BatonError as problem:
            raise wire.decode_problem(wire.encode_problem(problem)) from None
        if self.lost:
            self.lost -= 1
            if self.dies:
                self.served = Owner(self.served.epoch + 1, self.sent)
            raise NoAnswer("the answer was lost")
        return answer

    def close(self) -> None:
        pass

    async def send(self) -> list[Accepted | BatonError]:
        async def no_catalog(name: str, data: bytes) -> bytes | None:
            return None

        way = Routing(
            owners=self,
            peers=self,
            local=lambda shard: None,
            catalog=no_catalog,
            new_call=lambda: "a-call",
        )
        return await brokers.send_at(way.port(SHARD), 7, [make_send("once")])


def test_an_answer_that_was_lost_comes_from_the_owners_memory() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.lost = 2
        assert await cluster.send() == [Accepted(1, "id", False)]
        assert cluster.sent == [5] and cluster.asked == ["a-call-5"] * 3

    asyncio.run(main())


def test_an_owner_that_died_and_has_its_own_lease_again_does_not_run_a_call_twice() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.lost, cluster.dies = 1, True
        with pytest.raises(Unavailable, match="may or may not"):
            await cluster.send()
        assert cluster.sent == [5], "the next one was asked, by the lease that was known, and refused"
        assert cluster.asked == ["a-call-5", "a-call-5"]
        assert await cluster.send() == [Accepted(2, "id", False)], "another call is meant for the one that is there"
        assert cluster.sent == [5, 6]

    asyncio.run(main())


def test_a_client_is_not_told_the_address_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "OWNER_WAIT_S", 0.01)

    async def main() -> None:
        cluster = Cluster()
        cluster.away = True
        with pytest.raises(Unavailable, match="Node owner cannot be reached") as told:
            await cluster.send()
        assert "http" not in told.value.message

    asyncio.run(main())


def test_who_is_told_of_another_epoch_before_anything_was_run_asks_again() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.served = Owner(6, cluster.sent)
        assert await cluster.send() == [Accepted(1, "id", False)]
        assert cluster.sent == [6] and cluster.asked == ["a-call-5", "a-call-6"]

    asyncio.run(main())


def test_a_call_that_names_no_epoch_is_run_by_whoever_serves_the_shard() -> None:
    async def main() -> None:
        cluster = Cluster()
        body = wire.encode_commands([batch(7, [make_send("x")])])
        for name in ("", "0123456789abcdef"):
            await cluster.served.answering.handle(f"shards/{SHARD}/submit", name, body)
        assert cluster.sent == [5, 5]

    asyncio.run(main())

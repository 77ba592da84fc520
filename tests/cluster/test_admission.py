"""What a starting node is asked before it joins, with leases in memory and members that answer what a test says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batonq.cli import serve
from batonq.core.records import FORMAT_VERSION
from batonq.errors import AccessDenied, BatonError, InvalidInput, Unavailable
from batonq.log.backend import NameTaken
from batonq.node.cluster.admission import CLOCK_OFF_MAX_MS, HELLO, NO_SECRET, SECRET, Admission, Credentials, Hello
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import NotSent
from batonq.node.settings import Settings
from tests.cluster.memory import Hub, MemoryLeases, run_simulated
from tests.support.doubles import double
from tests.support.ports import reserve_port

CLUSTER = 77
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
GOOD, WRONG = b"0123456789abcdef0123456789abcdef", b"fedcba9876543210fedcba9876543210"


class Cluster:
    """`answers` has what answers at each address: a process that introduces itself, or an error."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.answers: dict[str, Hello | BatonError] = {}

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        answer = self.answers.get(address, NotSent(f"{address} cannot be reached"))
        if isinstance(answer, BatonError):
            raise answer
        return msgspec.msgpack.encode(answer)

    def close(self) -> None:
        pass

    def leases(self, name: str) -> MemoryLeases:
        return MemoryLeases(self.hub, name, f"http://{name}", 60)

    async def announce(self, name: str, incarnation: str) -> None:
        leases = self.leases(name)
        leases.incarnate(incarnation)
        await leases.announce("{}")

    async def run_member(self, name: str, ahead_ms: int = 0) -> None:
        await self.announce(name, f"{name}-1")
        self.answers[f"http://{name}"] = Hello(name, f"{name}-1", CLUSTER, FORMAT_VERSION, NOW_MS + ahead_ms)

    async def start(self, name: str, incarnation: str, secret: bytes = GOOD) -> None:
        """Start a process, which listens at its address before it joins. Raises what refuses it."""
        self.answers[f"http://{name}"] = Hello(name, incarnation, CLUSTER, 0, NOW_MS)
        leases = self.leases(name)
        admission = Admission(
            Settings(node=name, advertise=f"http://{name}", cluster_secret_file="secret" if secret else ""),
            Credentials(secret, CLUSTER, incarnation),
            leases=leases,
            peers=self,
            wall_ms=lambda: NOW_MS,
            clock_off_max_ms=CLOCK_OFF_MAX_MS,
        )
        await admission.enter(lambda: leases.announce("{}"))

    def joined(self) -> dict[str, str]:
        return {name: member.incarnation for name, (member, _) in self.hub.members.items()}


def run(main: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def inner() -> None:
        await main(Cluster())

    run_simulated(inner())


# --- the secret -----------------------------------------------------------------------------------


def test_a_killed_node_that_restarts_with_a_wrong_secret_is_refused_although_it_answers_itself() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.run_member("b")
        await cluster.start("a", "a-1")
        cluster.answers["http://b"] = AccessDenied("The signature does not match.")
        del cluster.hub.facts[SECRET]  # as in a cluster of an earlier release: only the members can tell
        with pytest.raises(AccessDenied, match="Node b refuses"):
            await cluster.start("a", "a-2", WRONG)
        assert cluster.joined()["a"] == "a-1" and not cluster.hub.facts

    run(main)


def test_a_killed_cluster_may_be_given_a_secret_within_the_lease_term() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start("a", "a-1", b"")
        assert cluster.hub.facts == {SECRET: NO_SECRET}
        await cluster.start("a", "a-2", GOOD)
        assert cluster.joined() == {"a": "a-2"}
        with pytest.raises(AccessDenied, match="this node has none"):
            await cluster.start("a", "a-3", b"")

    run(main)


# --- the clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "store_ms", "differs_from"),
    [
        ({"b": HOUR_MS}, 0, ""),  # either may be wrong
        ({"b": HOUR_MS, "c": 0}, 0, ""),
        ({"b": HOUR_MS, "c": -HOUR_MS}, 0, ""),
        ({"b": HOUR_MS, "c": -HOUR_MS}, HOUR_MS, "1 h behind the clocks of the running nodes (b) and the clock of"),
        ({"b": 0, "c": 0}, HOUR_MS, ""),
        ({"b": HOUR_MS}, HOUR_MS, "1 h behind the clocks of the running nodes (b) and the clock of the log's server."),
        ({"b": -HOUR_MS, "c": -HOUR_MS}, 0, "1 h ahead of the clocks of the running nodes (b, c)."),
        ({}, -HOUR_MS, "1 h ahead of the clock of the log's server."),
        ({"b": HOUR_MS}, None, "1 h behind the clocks of the running nodes (b)."),
        ({}, None, ""),
    ],
)
def test_a_node_is_refused_if_its_clock_differs_from_most(
    members: dict[str, int], store_ms: int | None, differs_from: str
) -> None:
    async def main(cluster: Cluster) -> None:
        cluster.hub.time_ms = 0 if store_ms is None else NOW_MS + store_ms
        for name, ahead_ms in members.items():
            await cluster.run_member(name, ahead_ms)
        if differs_from:
            with pytest.raises(InvalidInput, match=re.escape(differs_from)):
                await cluster.start("a", "a-1")
        else:
            await cluster.start("a", "a-1")
        assert ("a" in cluster.joined()) is not bool(differs_from)

    run(main)


# --- the start ------------------------------------------------------------------------------------


@double()
class Waiting(ClusterNode):
    """A node with its log store in memory, whose start never ends."""

    hub: Hub

    def __init__(self, settings: Settings, **more: Any) -> None:
        super().__init__(settings, open_store=self.hub.store_of(settings.node), **more)

    async def _open_logs(self) -> None:
        self._lose_name(NameTaken(self.settings.node, "http://127.0.0.9:1"))
        await asyncio.Event().wait()


def test_a_node_that_loses_its_name_while_it_starts_ends_with_that_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "hub", Hub(), raising=False)
    monkeypatch.setattr(serve, "ClusterNode", Waiting)
    port = reserve_port()
    address = f"http://127.0.0.1:{port}"
    settings = Settings(data=str(tmp_path), port=port, log_url="nats://memory", node="a", advertise=address)
    with pytest.raises(NameTaken, match=re.escape("running as node a, at http://127.0.0.9:1")):
        asyncio.run(serve.serve(settings))


def test_a_node_whose_log_store_is_not_open_yet_says_that_it_is_starting(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        settings = Settings(data=str(tmp_path), log_url="nats://memory", node="a", advertise="http://a")
        node = ClusterNode(settings, open_store=cluster.hub.store_of("a"), peers=cluster)
        with pytest.raises(Unavailable, match="is starting"):
            await node.answering.handle(f"node/{HELLO}", "", b"")

    run(main)

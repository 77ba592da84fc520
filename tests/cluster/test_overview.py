"""The overview of a whole cluster, as any node shows it: read over signed calls, and without those who are away."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq.core.catalog.entries import QueueEntry
from batonq.errors import AccessDenied, BatonError
from batonq.node.cluster.peers import PREFIX, Peers
from tests.cluster.lines import Loss, Relay
from tests.cluster.wired import WiredNodes, run_wired
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

SECRET = "a secret that all nodes of the cluster know"


def test_any_node_shows_the_whole_cluster(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    losses = 0
    relays: list[Relay] = []

    async def main(nodes: WiredNodes) -> None:
        broker = nodes["a"].broker
        for at in range(3):
            queue = await broker.create_queue(ACCOUNT, f"orders-{at}", {}, {})
            await brokers.send(broker, queue, [make_send("x")] * (at + 1), first_try=True)
        await nodes.until(lambda: all(nodes.owner(shard) is not None for shard in range(3)))
        for name in "abc":
            overview = await nodes[name].overview()
            assert [queue.counters.visible for queue in overview.queues] == [1, 2, 3]
            assert overview.missing == 0 and overview.nodes[0].name == name
            assert sorted(told.name for told in overview.nodes) == ["a", "b", "c"]
            assert {shard.owner for shard in overview.shards} <= {"a", "b", "c"}
            assert {shard.state for shard in overview.shards} == {"serving"}
        relays.append(nodes.relays["c"])
        nodes.relays["c"].loss = Loss("node/read", lost_answer)
        lost = sum(shard.owner == "c" for shard in overview.shards)
        overview = await nodes["a"].overview()
        away = next(told for told in overview.nodes if told.name == "c")
        assert "did not answer" in away.problem and not away.started_ms
        assert overview.missing == sum(queue.shard in nodes["c"].ownership_loop.serving() for queue in catalog(nodes))
        assert sum(shard.state == "stopped" for shard in overview.shards) == lost
        assert not any(told.problem for told in (await nodes["a"].overview()).nodes), "asked again, it answers"

        stranger = Peers(b"another secret, of another cluster")
        with pytest.raises(BatonError):
            await stranger.ask(nodes.address("b"), f"{PREFIX}node/read", "", b"", 5)
        stranger.close()
        nobody = Peers()
        with pytest.raises(AccessDenied):
            await nobody.ask(nodes.address("b"), f"{PREFIX}node/read", "", b"", 5)
        nobody.close()

    async def lost_answer() -> None:
        nonlocal losses
        losses += 1
        if losses == 1:  # a question that may have been lost on an idle connection is asked once more
            relays[0].loss = Loss("node/read", lost_answer)

    def catalog(nodes: WiredNodes) -> list[QueueEntry]:
        return list(nodes["a"].catalog.current().queues.values())

    run_wired(tmp_path, main, "a", "b", "c", cluster_secret_file=str(secret))

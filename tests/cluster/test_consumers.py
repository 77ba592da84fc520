"""Consumers of a cluster, as any node lists them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.wired import WiredNodes, run_wired
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers


def test_any_node_lists_all_consumers_and_holders(tmp_path: Path) -> None:
    async def main(nodes: WiredNodes) -> None:
        brokers_of = {name: nodes[name].broker for name in "abc"}
        queues = [await brokers_of["a"].create_queue(ACCOUNT, f"orders-{at}", {}, {}) for at in range(3)]
        await nodes.until(lambda: all(nodes.owner(shard) is not None for shard in range(3)))
        for name, queue in zip("abc", queues, strict=True):
            broker = brokers_of[name]
            await brokers.send(broker, queue, [make_send("x")] * 2, first_try=True)
            poll = broker.consumers.polls(ACCOUNT, queue.number, f"worker of {name}", f"10.0.0.1:{name}", b"test")
            got = await brokers.receive(broker, queue, 2, 60_000, 1_000, f"worker of {name}")
            poll.answered(len(got))
        await nodes.until(lambda: all(len(nodes[name].everywhere.others.names()) == 2 for name in "abc"))
        for name in "abc":
            rows = await brokers_of[name].consumers.listed()
            assert [(row.name, row.node, row.received) for row in rows] == [(f"worker of {o}", o, 2) for o in "abc"]
            (row,) = await brokers_of[name].consumers.listed(queues[1].number)
            assert (row.name, row.queues) == ("worker of b", [queues[1].number])
            held = await brokers_of[name].holders()
            assert sorted((one.holder, one.in_flight) for one in held) == [(f"worker of {o}", 2) for o in "abc"]

    run_wired(tmp_path, main, "a", "b", "c")

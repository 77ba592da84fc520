"""Kinds of shards at the start of a node: what is opened, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq.core.catalog.machine import Catalog, Rules
from batonq.errors import InvalidAttributeValue, InvalidInput
from batonq.node.node import kinds_to_open
from batonq.node.settings import Settings
from tests.node.nodes import ACCOUNT, make_node, open_node
from tests.node.support import VirtualLoop, run_virtual


def catalog(**kinds: int) -> Catalog:
    """Shards by kind, as in `catalog(r3=2)`, of a log that has three replicas."""
    made = Catalog(Rules(replicas=3))
    made.take_ownership(1, 1)
    for name, count in kinds.items():
        made.open_shards(count, 1, replicas=int(name[1:]))
    return made


def test_what_is_missing_is_opened() -> None:
    assert kinds_to_open(catalog(), 6, {}) == [(3, 6)]
    assert kinds_to_open(catalog(), 2, {1: 2, 5: 1}) == [(3, 2), (1, 2), (5, 1)]
    assert kinds_to_open(catalog(r3=6), 6, {}) == []
    assert kinds_to_open(catalog(r3=6), 2, {}) == [], "they never become fewer"
    assert kinds_to_open(catalog(r3=6, r1=1), 6, {1: 3}) == [(1, 3)]
    with pytest.raises(InvalidInput, match="Set their number with --shards"):
        kinds_to_open(catalog(), 2, {3: 2})


def test_other_shards_are_counts_by_replicas() -> None:
    assert Settings(other_shards="1:2,5:4").kinds() == {1: 2, 5: 4}
    assert Settings().kinds() == {}
    for wrong in ("1", "2:2", "1:0", "1:x", "1:2;5:4"):
        with pytest.raises(InvalidInput, match="replicas:count"):
            Settings(other_shards=wrong).check()
    with pytest.raises(InvalidInput, match="maximum of 256 shards"):
        Settings(shards=200, other_shards="1:57").check()
    with pytest.raises(InvalidInput, match="several nodes instead of --processes"):
        Settings(shards=2, processes=2, other_shards="3:1").check()


def test_a_log_in_the_data_directory_has_one_replica(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(
            InvalidInput, match=r"Shards with 3 replicas need a log in NATS JetStream.* has one replica"
        ):
            await make_node(loop, tmp_path, other_shards="3:1").start()
        node = await open_node(loop, tmp_path, shards=2)
        queue = await node.broker.create_queue(ACCOUNT, "one", {"Baton.Durability": "1"}, {})
        assert queue.attributes["Baton.Durability"] == "1"
        with pytest.raises(InvalidAttributeValue, match="no shard has 3 replicas"):
            await node.broker.create_queue(ACCOUNT, "three", {"Baton.Durability": "3"}, {})
        with pytest.raises(InvalidAttributeValue, match="no shard has 3 replicas"):
            await node.broker.set_attributes(queue, {"Baton.Durability": "3"})
        await node.stop()

    run_virtual(main)

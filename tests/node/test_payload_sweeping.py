"""The sweeper of a node's payload store, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.errors import Unavailable
from batonq.log.layout import CATALOG_SHARD
from tests.node.nodes import ACCOUNT, Faults, open_node
from tests.node.support import VirtualLoop, run_virtual, until

SWEEP_S = 1.0
REOPEN_S = 5.0


def test_sweeping_goes_on_after_the_catalog_was_unavailable(tmp_path: Path) -> None:
    unneeded = tmp_path / "store" / "2020010100" / ("a" * 64)
    unneeded.parent.mkdir(parents=True)
    faults = Faults()

    async def main(loop: VirtualLoop) -> None:
        store = {"payload_store": f"file://{tmp_path}/store", "payload_sweep_s": SWEEP_S}
        node = await open_node(loop, tmp_path / "data", faults=faults, reopen_first_s=REOPEN_S, **store)
        faults.planned[CATALOG_SHARD] = ["refuse"]
        with pytest.raises(Unavailable):
            await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(2 * SWEEP_S)
        assert not node.catalog.serving
        unneeded.write_bytes(b"nobody needs it")
        await until(lambda: node.catalog.serving)
        await asyncio.sleep(2 * SWEEP_S)
        assert not unneeded.exists()
        await node.stop()

    run_virtual(main)

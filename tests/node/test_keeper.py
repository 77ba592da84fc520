"""When a log fails: everybody is answered, all state is dropped, and the shard starts over from what is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batonq.errors import LogCorrupt, OverLimit, OwnershipHeld, Unavailable
from batonq.log.layout import CATALOG_SHARD
from batonq.node.shard_host.keeper import KeeperState
from tests.node.nodes import ACCOUNT, Faults, drain, make_node, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.support import brokers


def test_a_shard_whose_log_failed_comes_back_with_what_was_acknowledged(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "kept")
        polling = loop.create_task(receive(node, queue, wait_ms=20_000, visibility_ms=0))
        await polling
        epoch = node.shards[0].host().shard.epoch
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable):
            await send(node, queue, "refused")
        assert node.not_ready() and node.alarms.active()
        with pytest.raises(Unavailable):
            await send(node, queue, "too early")
        await asyncio.sleep(1)
        assert node.shards[0].state is KeeperState.SERVING and not node.not_ready()
        assert not node.alarms.active() and node.shards[0].failures == 1
        assert node.shards[0].host().shard.epoch > epoch
        assert await drain(node, queue) == ["kept"]
        await node.stop()

    run_virtual(main)


def test_an_append_that_failed_after_all_may_be_kept_and_is_never_doubled(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[0] = ["fail after writing"]
        with pytest.raises(Unavailable):
            await send(node, queue, "written")
        await asyncio.sleep(1)
        assert await drain(node, queue) == ["written"]
        await node.stop()

    run_virtual(main)


def test_the_pause_before_a_shard_is_opened_again_grows(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults, reopen_first_s=1.0, reopen_max_s=5.0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[0] = ["refuse"] * 5  # the send, and the first record of four owners
        with pytest.raises(Unavailable):
            await send(node, queue, "refused")
        began_s = loop.time()
        await until(lambda: node.shards[0].serving)
        assert 1 + 2 + 4 + 5 + 5 <= loop.time() - began_s < 18
        await send(node, queue, "taken")
        await node.stop()

    run_virtual(main)


def test_a_log_found_damaged_is_not_opened_again(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        segment = tmp_path / "shard-0000" / "segment-00000000000000000001.log"
        content = segment.read_bytes()
        segment.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable):
            await send(node, queue, "refused")
        await asyncio.sleep(60)
        assert node.shards[0].state is KeeperState.BROKEN
        with pytest.raises(Unavailable, match=segment.name):
            await send(node, queue, "b")
        assert node.alarms.active()[0].severity == "critical"
        await node.stop()
        with pytest.raises(LogCorrupt):
            await open_node(loop, tmp_path)

    run_virtual(main)


def test_the_catalog_comes_back_too(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[CATALOG_SHARD] = ["refuse"]
        with pytest.raises(Unavailable):
            await node.broker.create_queue(ACCOUNT, "other", {}, {})
        with pytest.raises(Unavailable):
            node.broker.queue(ACCOUNT, "orders")
        await asyncio.sleep(1)
        assert node.broker.queue(ACCOUNT, "orders") == queue
        await send(node, queue, "a")
        receipt = (await receive(node, queue))[0].receipt
        assert await brokers.delete(node.broker, queue, [receipt]) == [None]
        await node.broker.create_queue(ACCOUNT, "other", {}, {})
        await node.stop()

    run_virtual(main)


def test_a_queue_that_the_catalog_kept_after_all_works(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        faults.planned[CATALOG_SHARD] = ["fail after writing"]
        with pytest.raises(Unavailable):
            await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(1)
        queue = node.broker.queue(ACCOUNT, "orders")
        await send(node, queue, "a")
        await node.stop()

    run_virtual(main)


def test_the_answer_to_a_create_waits_for_the_queue_s_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable):
            await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(1)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        await node.stop()

    run_virtual(main)


def test_a_client_that_goes_does_not_leave_half_a_queue(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        creating = loop.create_task(node.broker.create_queue(ACCOUNT, "orders", {}, {}))
        await asyncio.sleep(0)
        creating.cancel()
        await settle()
        queue = node.broker.queue(ACCOUNT, "orders")
        await send(node, queue, "a")
        await node.stop()

    run_virtual(main)


def test_a_second_node_on_the_same_directory_is_told_who_has_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        node.ownership.set_address("http://127.0.0.1:9324")
        with pytest.raises(OwnershipHeld, match=r"process \d+ .* serving http://127.0.0.1:9324"):
            await make_node(loop, tmp_path).start()
        await node.stop()
        again = await open_node(loop, tmp_path)
        await again.stop()

    run_virtual(main)


def test_a_command_that_breaks_off_is_not_half_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "kept")
        shard = node.shards[0].host().shard
        whole = shard.send

        def half(*arguments: Any) -> Any:
            whole(*arguments)
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr(shard, "send", half)
        with pytest.raises(Unavailable, match="a mistake of ours"):
            await send(node, queue, "half")
        with pytest.raises(Unavailable):
            await send(node, queue, "too early")
        await asyncio.sleep(1)
        assert await drain(node, queue) == ["kept"]
        await node.stop()

    run_virtual(main)


def test_a_refusal_is_no_reason_to_start_over(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.MaximumInFlight": "1"}, {})
        await send(node, queue, "a", "b")
        await receive(node, queue, 1)
        with pytest.raises(OverLimit):
            await receive(node, queue, 1)
        assert node.shards[0].failures == 0 and node.shards[0].serving
        await node.stop()

    run_virtual(main)

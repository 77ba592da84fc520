"""What every store of leases must do. It joins by a class that inherits LeaseSuite and gives it a `nodes`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from batonq.errors import Fenced, OwnershipHeld
from batonq.log.backend import LogStore, NameTaken
from batonq.log.interface import Lease, Member, OwnershipLeases

SHARD = 3
WAIT_S = 120.0
LONG_S = 600.0
SHORT_S = 2.0
SEEN_S = 5.0  # long enough that a watcher sees it before it ends


class Nodes:
    """Nodes of one cluster, each over a store of its own."""

    def __init__(self, open_store: Callable[[], Awaitable[LogStore]]) -> None:
        self._open_store = open_store
        self._stores: list[LogStore] = []

    async def node(self, name: str, ttl_s: float = LONG_S) -> OwnershipLeases:
        store = await self._open_store()
        self._stores.append(store)
        return store.leases(name, f"{name}:9324", ttl_s)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(2 * WAIT_S):
                await work
        finally:
            for store in self._stores:
                await store.close()


async def acquired_by(leases: OwnershipLeases, shard: int = SHARD) -> int:
    """Try until it is ours."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await leases.acquire(shard)
            except OwnershipHeld:
                await asyncio.sleep(0.05)


async def announced(
    leases: OwnershipLeases, note: str, members: Callable[[], Awaitable[list[Member]]], wanted: list[Member]
) -> None:
    """Say it until it is heard: it does not last long, and may be over before anybody looks."""
    async with asyncio.timeout(WAIT_S):
        found: list[Member] = []
        while len(found) < len(wanted):
            await leases.announce(note)
            found = await members()
    assert found == wanted


async def ann_is_taken(leases: OwnershipLeases) -> bool:
    try:
        await leases.announce("mine")
    except NameTaken as taken:
        return "node ann, at ann:9324" in taken.message
    return False


class Watching:
    """What a watcher is told, as it comes."""

    def __init__(self, leases: OwnershipLeases) -> None:
        self._changes: AsyncGenerator[Lease, None] = leases.watch()

    async def next(self) -> Lease:
        async with asyncio.timeout(WAIT_S):
            return await anext(self._changes)

    async def close(self) -> None:
        await self._changes.aclose()


class LeaseSuite:
    def test_one_node_has_a_shard_and_others_are_told_who(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left"), await nodes.node("right")
            epoch = await left.acquire(SHARD)
            with pytest.raises(OwnershipHeld, match="owned by node left at left:9324"):
                await right.acquire(SHARD)
            other = await right.acquire(SHARD + 1)
            assert (left.held(), right.held()) == ([SHARD], [SHARD + 1])
            assert await right.holders() == {
                SHARD: Lease(SHARD, "left", "left:9324", epoch),
                SHARD + 1: Lease(SHARD + 1, "right", "right:9324", other),
            }

        nodes.run(run())

    def test_epochs_rise_above_the_logs_and_above_each_other(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left"), await nodes.node("right")
            assert await left.acquire(SHARD) == 1
            await left.release(SHARD)
            assert await right.acquire(SHARD, above=7) == 8
            await right.release(SHARD)
            assert await left.acquire(SHARD, above=3) == 9
            assert await left.acquire(SHARD) == 10, "its own, taken again after a crash"

        nodes.run(run())

    def test_of_many_that_try_at_once_one_gets_it(self, nodes: Nodes) -> None:
        async def run() -> None:
            leases = [await nodes.node(f"node-{at}") for at in range(5)]
            outcomes = await asyncio.gather(*(each.acquire(SHARD) for each in leases), return_exceptions=True)
            assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
            assert all(isinstance(outcome, int | OwnershipHeld) for outcome in outcomes)

        nodes.run(run())

    def test_a_lease_that_is_not_renewed_ends_and_its_holder_is_told(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left", SHORT_S), await nodes.node("right")
            first = await left.acquire(SHARD)
            assert await acquired_by(right) > first
            with pytest.raises(Fenced, match="has expired"):
                await left.renew(SHARD)
            assert left.held() == []
            await left.release(SHARD)
            assert (await left.holders())[SHARD].node == "right", "what is not ours is not given up"

        nodes.run(run())

    def test_a_lease_that_ran_out_is_renewed_unless_somebody_had_it_meanwhile(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left", SHORT_S), await nodes.node("right")
            epoch = await left.acquire(SHARD)
            async with asyncio.timeout(WAIT_S):
                while await right.holders():  # noqa: ASYNC110 - nobody is told of it here
                    await asyncio.sleep(0.1)
            async with asyncio.timeout(WAIT_S):
                found: Lease | None = None
                while found is None:  # it may run out again before anybody looks
                    await left.renew(SHARD)
                    found = (await right.holders()).get(SHARD)
            assert found == Lease(SHARD, "left", "left:9324", epoch)
            await acquired_by(right)
            await right.release(SHARD)
            with pytest.raises(Fenced, match="has expired"):
                await left.renew(SHARD)
            assert left.held() == []

        nodes.run(run())

    def test_a_lease_that_is_renewed_stays(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left", SHORT_S), await nodes.node("right")

            async def kept(until_s: float) -> bool:
                """Renewed in time until then; False: this process was so slow that it was not in time."""
                renewed_s = loop.time()
                while loop.time() < until_s:
                    await asyncio.sleep(SHORT_S / 4)
                    asked_s = loop.time()
                    try:
                        await right.acquire(SHARD)
                    except OwnershipHeld:
                        await left.renew(SHARD)
                        renewed_s = asked_s
                        continue
                    assert loop.time() - renewed_s >= SHORT_S, "somebody else got it before it had run out"
                    return False
                return True

            loop = asyncio.get_running_loop()
            async with asyncio.timeout(WAIT_S):
                while True:
                    epoch = await left.acquire(SHARD)
                    if await kept(loop.time() + 3 * SHORT_S):
                        break
                    await right.release(SHARD)
            assert (await right.holders()).get(SHARD, Lease(SHARD, "left", "left:9324", epoch)).epoch == epoch

        nodes.run(run())

    def test_what_was_never_acquired_cannot_be_renewed(self, nodes: Nodes) -> None:
        async def run() -> None:
            left = await nodes.node("left")
            with pytest.raises(Fenced):
                await left.renew(SHARD)
            await left.release(SHARD)

        nodes.run(run())

    def test_a_watcher_hears_of_every_change_of_owner(self, nodes: Nodes) -> None:
        async def run() -> None:
            left, right = await nodes.node("left"), await nodes.node("right", SEEN_S)
            first = await left.acquire(SHARD)
            watching = Watching(await nodes.node("watcher"))
            assert await watching.next() == Lease(SHARD, "left", "left:9324", first)
            await left.renew(SHARD)
            await left.release(SHARD)
            assert await watching.next() == Lease(SHARD, "", "", first)
            second = await right.acquire(SHARD)
            assert await watching.next() == Lease(SHARD, "right", "right:9324", second)
            assert await watching.next() == Lease(SHARD, "", "", second), "it ran out"
            await watching.close()

        nodes.run(run())

    def test_members_are_those_who_say_so_in_time(self, nodes: Nodes) -> None:
        async def main() -> None:
            ann, ben = await nodes.node("ann"), await nodes.node("ben", SHORT_S)
            assert await ann.members() == []
            await ann.withdraw()
            await ann.announce("first")
            await ann.announce("idle")
            both = [Member("ann", "ann:9324", "idle"), Member("ben", "ben:9324", "busy")]
            await announced(ben, "busy", lambda: ben.members(), both)
            async with asyncio.timeout(WAIT_S):
                while len(await ann.members()) > 1:  # noqa: ASYNC110 - a store tells nobody of members
                    await asyncio.sleep(0.1)
            await announced(ben, "back", lambda: ann.members(), [both[0], both[1]._replace(note="back")])
            await ann.withdraw()
            assert [member.node for member in await ben.members()] == ["ben"]
            assert await ben.holders() == {}, "members own nothing by that"

        nodes.run(main())

    def test_a_name_belongs_to_one_process_until_its_announcement_expires(self, nodes: Nodes) -> None:
        async def main() -> None:
            first, second = await nodes.node("ann", SHORT_S), await nodes.node("ann")
            third = await nodes.node("ann")
            first.incarnate("one")
            await first.announce("first")
            second.incarnate("two")
            third.incarnate("three", replaces="two")
            async with asyncio.timeout(WAIT_S):
                while await ann_is_taken(second):  # noqa: ASYNC110 - until that of the first one has expired
                    await asyncio.sleep(0.1)
            with pytest.raises(NameTaken):
                await first.announce("first")
            await first.withdraw()
            assert [member.incarnation for member in await second.members()] == ["two"], "that of another is not ended"
            await third.announce("third")
            await third.announce("again")
            with pytest.raises(NameTaken):
                await second.announce("second")
            assert [member.incarnation for member in await second.members()] == ["three"]

        nodes.run(main())

    def test_nodes_agree_on_a_text_and_it_is_replaced_only_by_those_who_know_it(self, nodes: Nodes) -> None:
        async def main() -> None:
            ann, ben = await nodes.node("ann"), await nodes.node("ben")
            told = await asyncio.gather(ann.agree("colour", "red"), ben.agree("colour", "blue"))
            assert told[0] == told[1] and told[0] in ("red", "blue")
            assert await ben.agree("colour", "green", ["yellow"]) == told[0]
            assert await ben.agree("colour", "green", ["yellow", told[0]]) == "green"
            assert await ann.agree("colour", "red") == "green"
            assert await ann.agree("shape", "round") == "round"

        nodes.run(main())

    def test_nodes_are_expected_until_they_are_not(self, nodes: Nodes) -> None:
        async def main() -> None:
            ann, ben = await nodes.node("ann", SHORT_S), await nodes.node("ben")
            before = {*await ben.expected()}
            for _ in range(2):
                await ann.expect("cid", True)
                await ben.expect("dan", True)
            assert {*await ben.expected()} - before == {"cid", "dan"}
            await ben.expect("cid", False)
            await ben.expect("nobody", False)
            assert {*await ann.expected()} - before == {"dan"}

        nodes.run(main())

    def test_the_store_tells_the_time(self, nodes: Nodes) -> None:
        async def main() -> None:
            ann = await nodes.node("ann")
            began_ms = time.time_ns() // 1_000_000
            told_ms = [await ann.store_time_ms() for _ in range(2)]
            assert began_ms - 1 <= told_ms[0] <= told_ms[1] <= time.time_ns() // 1_000_000 + 1

        nodes.run(main())

    def test_a_lease_that_is_given_up_while_it_is_renewed_is_given_up(self, nodes: Nodes) -> None:
        async def main() -> None:
            ann, ben = await nodes.node("ann"), await nodes.node("ben")
            for _ in range(20):
                await ann.acquire(SHARD)
                await asyncio.gather(ann.renew(SHARD), ann.release(SHARD))
                assert ann.held() == []
                await ben.acquire(SHARD)
                await ben.release(SHARD)

        nodes.run(main())

"""Reader groups on whole nodes: queues on several shards, failed commits, nodes that are killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.catalog.placement import Placement
from batonq.core.shard.commands.readers import Assignment
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.errors import BatonError, InvalidInput, ReaderExists, StaleMember
from batonq.node.broker import Queue
from batonq.node.messages.retained_reader import RetainedMessage
from batonq.node.node import Node
from batonq.node.routing.local_shard import LocalShard
from tests.node import wide
from tests.node.nodes import Faults, drain, kill, open_node, send
from tests.node.support import VirtualLoop, run_virtual, settle

GROUP = "audit"
CHANCE = 0.03  # that an append fails
RETAIN = {"Baton_RetainSeconds": "3600"}


async def make_group(node: Node, queue: Queue, dead: Queue | None = None, start: str = "start") -> None:
    settings = GroupSettings(3, dead.number if dead else 0, dead.name if dead else "", 30_000)
    await node.broker.readers.create(queue, GROUP, settings, Start(start))


class Member:
    """A consumer that commits what it has processed, and remembers what it was told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.shards: list[int] = []

    async def join(self, node: Node, queue: Queue) -> Assignment:
        own = await node.broker.readers.join(queue, GROUP, self.name)
        self.epoch, self.shards = own.epoch, own.shards
        return own

    async def fetch(
        self, node: Node, queue: Queue, limit: int = 10, wait_ms: int = 0
    ) -> list[tuple[int, RetainedMessage]]:
        found = await node.broker.readers.fetch(queue, GROUP, self.name, self.epoch, self.shards, {}, limit, wait_ms)
        return [(fetched.page.shard, message) for fetched in found for message in fetched.page.messages()]

    async def commit(self, node: Node, queue: Queue, shard: int, position: int) -> int:
        ((_, now),) = await node.broker.readers.commit(queue, GROUP, self.name, self.epoch, [(shard, position)])
        return now

    async def fail(self, node: Node, queue: Queue, shard: int, position: int) -> Any:
        return await node.broker.readers.fail(queue, GROUP, self.name, self.epoch, (shard, position), "no")


def test_the_members_of_a_group_share_the_shards_of_its_queue(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await wide.make(node, "wide", 3, **RETAIN)
        await make_group(node, queue)
        for at in range(30):
            await send(node, queue, f"{at}", dedup_id=f"{at}")
        await drain(node, queue)
        one, two = Member("one"), Member("two")
        assert (await one.join(node, queue)).shards == sorted(queue.shards)
        await two.join(node, queue)
        await one.join(node, queue)
        assert sorted(one.shards + two.shards) == sorted(queue.shards) and len(two.shards) == 1
        found = [await one.fetch(node, queue, 100), await two.fetch(node, queue, 100)]
        bodies = sorted(int(message.body) for some in found for _, message in some)
        assert bodies == [*range(30)]
        assert {shard for shard, _ in found[1]} == {*two.shards}
        view = await node.broker.readers.get(queue, GROUP)
        assert view.lag_messages == 30 and view.lag_ms >= 0
        for shard, message in found[0]:
            await one.commit(node, queue, shard, message.position)
        assert (await node.broker.readers.get(queue, GROUP)).lag_messages == len(found[1])
        ((listed),) = await node.broker.readers.groups(queue)
        assert listed == await node.broker.readers.get(queue, GROUP)
        waiting = loop.create_task(two.fetch(node, queue, 100, 20_000)) if not found[1] else None
        await node.stop()
        assert waiting is None or await waiting == []

    run_virtual(main)


def test_a_fetch_waits_at_all_its_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await wide.make(node, "wide", 3, **RETAIN)
        await make_group(node, queue)
        one = Member("one")
        await one.join(node, queue)
        for at in range(5):
            waiting = loop.create_task(one.fetch(node, queue, 100, 20_000))
            await settle()
            assert not waiting.done()
            await send(node, queue, f"{at}", dedup_id=f"{at}")
            ((shard, message),) = await waiting
            assert message.body == f"{at}".encode()
            await one.commit(node, queue, shard, message.position)
        before = loop.time()
        assert await one.fetch(node, queue, 100, 20_000) == []
        assert loop.time() - before == pytest.approx(20, abs=1)
        assert not any(keeper.host().reader_waits.waiting for keeper in node.shards)
        await node.stop()

    run_virtual(main)


def test_a_queue_that_grows_has_its_group_on_the_new_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await wide.make(node, "wide", 1, **RETAIN)
        await make_group(node, queue)
        await send(node, queue, *(f"{at}" for at in range(10)))
        one = Member("one")
        assert (await one.join(node, queue)).shards == [*queue.shards]
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        queue = wide.grown(node, queue)
        for at in range(10, 40):
            await send(node, queue, f"{at}", dedup_id=f"{at}")
        assert (await one.join(node, queue)).shards == sorted(queue.shards)
        assert len(one.shards) == 3
        found = await one.fetch(node, queue, 100)
        assert sorted(int(message.body) for _, message in found) == [*range(40)]
        for shard, message in found:
            await one.commit(node, queue, shard, message.position)
        assert (await node.broker.readers.get(queue, GROUP)).lag_messages == 0
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_group_that_is_created_twice_at_the_same_time_keeps_its_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await wide.make(node, "q", shards, **RETAIN)
        for at in range(12):
            await send(node, queue, f"{at}", dedup_id=f"{at}")
        begin, told = LocalShard.reader_begin_create, asyncio.Event()

        async def slow(self: LocalShard, *arguments: Any) -> int:
            """The answer of the second request is late."""
            created_ms = await begin(self, *arguments)
            if loop.time() > began_s:
                await told.wait()
            return created_ms

        began_s = loop.time()
        monkeypatch.setattr(LocalShard, "reader_begin_create", slow)
        await asyncio.sleep(1)
        second = asyncio.ensure_future(make_group(node, queue, start="end"))
        other = asyncio.ensure_future(node.broker.readers.create(queue, GROUP, GroupSettings(7), Start("start")))
        await asyncio.sleep(1)
        monkeypatch.undo()
        await make_group(node, queue)
        member = Member("m")
        await member.join(node, queue)
        found = await member.fetch(node, queue, 100)
        assert len(found) == 12
        first = dict(reversed(found))
        for shard, message in first.items():
            await member.commit(node, queue, shard, message.position)
        await asyncio.sleep(1)
        told.set()
        await second
        with pytest.raises(ReaderExists):
            await other
        assert await member.fetch(node, queue, 100) == [one for one in found if one[1] not in first.values()]
        await node.stop()

    run_virtual(main)


def test_a_seek_that_takes_longer_than_the_members_wait_is_not_undone_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await wide.make(node, "q", 3, **RETAIN)
        await make_group(node, queue)
        for at in range(30):
            await send(node, queue, f"{at}", dedup_id=f"{at}")
        member = Member("m")
        own = await member.join(node, queue)
        found = await member.fetch(node, queue, 100)
        last = queue.shards[-1]
        here = [message.position for shard, message in found if shard == last]
        await member.commit(node, queue, last, here[1])
        reader_set, told = LocalShard.reader_set, asyncio.Event()

        async def slow(self: LocalShard, *arguments: Any) -> Any:
            await told.wait()
            return await reader_set(self, *arguments)

        monkeypatch.setattr(LocalShard, "reader_set", slow)
        seek = loop.create_task(node.broker.readers.seek(queue, GROUP, None, [(last, here[0])]))
        await asyncio.sleep(11)
        again = await member.join(node, queue)  # which ends the seek: its node may be dead
        told.set()
        view = await seek
        assert {part.shard: part.reader.position for part in view.parts}[last] == here[0] - 1
        assert again.shards and again.epoch > again.reset_epoch > own.epoch  # so the member forgets what it fetched
        assert [message.position for shard, message in await member.fetch(node, queue, 100) if shard == last] == here
        await node.stop()

    run_virtual(main)


def test_a_group_stays_when_its_queue_leaves_the_first_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard coordinates the group. No member has read from the new shard when the first one is given up."""
    monkeypatch.setattr(Placement, "replicas_of", lambda self, shard: 3 if shard == 1 else 1)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(
            loop, tmp_path, shards=2, maintenance_every_s=600, idempotency_hours=1, producer_idle_hours=1
        )
        queue = await wide.make(node, "q", 1, **RETAIN)
        settings = GroupSettings(5, 0, "", 60_000)
        made, _ = await node.broker.readers.create(queue, GROUP, settings, Start("start"))
        await send(node, queue, "old")
        await drain(node, queue)
        await node.broker.set_attributes(queue, {"Baton.Durability": "3"})
        queue = wide.grown(node, queue)
        assert queue.shards == (0, 1)
        await asyncio.sleep(5 * 3600)
        queue = wide.grown(node, queue)
        assert queue.shards == (1,), "the queue has left the first shard"
        await send(node, queue, "new")
        view = await node.broker.readers.get(queue, GROUP)
        assert (view.reader.created_ms, view.reader.settings) == (made.reader.created_ms, settings)
        member = Member("m")
        await member.join(node, queue)
        assert [message.body for _, message in await member.fetch(node, queue)] == [b"new"]
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_queue_must_be_of_the_same_kind(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await wide.make(node, "orders", 1, **RETAIN)
        dead = await wide.make_fifo(node, "dead.fifo", 1)
        with pytest.raises(InvalidInput, match="must be a standard queue too"):
            await make_group(node, queue, dead)
        await node.stop()

    run_virtual(main)


def test_a_position_that_waits_for_a_full_dead_letter_queue_is_skipped_later(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await wide.make(node, "orders", 1, **RETAIN)
        dead = await wide.make(node, "dead", 1, Baton_MaximumMessages="1")
        await make_group(node, queue, dead)
        await send(node, dead, "in the way")
        await send(node, queue, "poison", "good")
        one = Member("one")
        await one.join(node, queue)
        ((shard, poison), _) = await one.fetch(node, queue)
        for _ in range(2):
            await one.fail(node, queue, shard, poison.position)
        failed = await one.fail(node, queue, shard, poison.position)
        assert (failed.failures, failed.is_skipped) == (3, False) and "is full" in failed.why
        assert [message.body for _, message in await one.fetch(node, queue)] == [b"poison", b"good"]
        assert await drain(node, dead) == ["in the way"]
        assert [message.body for _, message in await one.fetch(node, queue)] == [b"good"]
        assert await drain(node, dead) == ["poison"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("after", ["the send", "the commit"])
def test_a_node_that_dies_while_it_skips_a_position_leaves_one_dead_letter(tmp_path: Path, after: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await wide.make(node, "orders", 1, **RETAIN)
        dead = await wide.make(node, "dead", 1)
        await make_group(node, queue, dead)
        await send(node, queue, "poison", "good")
        one = Member("one")
        await one.join(node, queue)
        ((shard, poison), _) = await one.fetch(node, queue)
        for _ in range(2):
            await one.fail(node, queue, shard, poison.position)
        killed = loop.create_task(one.fail(node, queue, shard, poison.position))
        port = node.broker.port(shard)
        while not killed.done():  # until the dead letter, or the commit, is in the log
            await asyncio.sleep(0)
            if after == "the send" and (await port.counters(dead.number)).visible:
                break
        assert killed.done() == (after == "the commit")
        killed.cancel()
        await kill(node)
        with suppress(asyncio.CancelledError, BatonError):
            await killed
        node = await open_node(loop, tmp_path)
        reader = node.shards[0].host().shard.reader(queue.number, GROUP)
        assert reader.is_given_up == (after == "the send")
        assert [message.body for _, message in await one.fetch(node, queue)] == [b"good"]
        assert await drain(node, dead) == ["poison"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(12))
def test_no_commit_is_lost_and_order_is_kept_while_logs_fail_and_nodes_die(tmp_path: Path, seed: int) -> None:
    """Three members read a FIFO queue on three shards; some bodies always fail. Appends fail now and then, before or
    after they are written, and the node is killed in the middle of what it does."""

    async def main(loop: VirtualLoop) -> None:
        random, faults = Random(seed), Faults()
        node = await open_node(loop, tmp_path, shards=3, faults=faults)
        queue = await wide.make_fifo(node, "line.fifo", 3, **RETAIN)
        dead = await wide.make_fifo(node, "dead.fifo", 2)
        await make_group(node, queue, dead)
        members = [Member(f"m{at}") for at in range(3)]
        sent: dict[str, list[str]] = {}  # message group → bodies in the order in which they were acknowledged
        processed: dict[str, list[str]] = {}  # message group → bodies in the order of their first processing
        committed: dict[int, int] = {}  # shard → the highest position whose commit was acknowledged
        numbers = iter(range(10_000))

        async def produce() -> None:
            group = random.choice("abcdef")
            body = f"{next(numbers)}{' poison' if random.random() < 0.1 else ''}"
            (result,) = await send(node, queue, body, group=group, dedup_id=body)
            if not isinstance(result, BatonError):
                sent.setdefault(group, []).append(body)

        async def consume(member: Member) -> None:
            for shard, message in await member.fetch(node, queue, random.choice((1, 3, 10))):
                body = message.body.decode()
                if body.endswith("poison"):
                    await member.fail(node, queue, shard, message.position)
                    return  # later messages wait until it is skipped
                done = processed.setdefault(message.group, [])
                if body not in done:
                    done.append(body)
                now = await member.commit(node, queue, shard, message.position)
                assert now >= committed.get(shard, 0), "a commit was lost"
                committed[shard] = max(committed.get(shard, 0), message.position)

        faults.random, faults.chance = random, CHANCE
        for _ in range(150):
            member, done = random.choice(members), random.random()
            task = loop.create_task(
                produce()
                if done < 0.4
                else member.join(node, queue)
                if done < 0.55
                else node.broker.readers.leave(queue, GROUP, member.name)
                if done < 0.58
                else consume(member)
            )
            if random.random() < 0.05:
                for _ in range(random.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
                await kill(node)
                with suppress(asyncio.CancelledError, BatonError):
                    await task
                faults.chance = 0  # a node that cannot start at all is another test
                node = await open_node(loop, tmp_path, shards=3, faults=faults)
                faults.chance = CHANCE
                continue
            try:
                await task
            except StaleMember:
                with suppress(BatonError):
                    await member.join(node, queue)
            except BatonError:
                await asyncio.sleep(1)  # the shard is opened again
            if random.random() < 0.05:
                await asyncio.sleep(40)  # sessions end
        faults.random = None
        last = Member("last")
        await last.join(node, queue)
        await asyncio.sleep(31)  # the sessions of the others have ended, whenever this owner has begun them
        assert sorted((await last.join(node, queue)).shards) == sorted(queue.shards)
        for _ in range(400):
            if not (await node.broker.readers.get(queue, GROUP)).lag_messages:
                break
            await consume(last)
        assert (await node.broker.readers.get(queue, GROUP)).lag_messages == 0
        for group, bodies in sent.items():
            good = [body for body in bodies if not body.endswith("poison")]
            got = processed.get(group, [])
            assert [body for body in got if body in good] == good, "messages of a group are missing or out of order"
        letters = await drain(node, dead)
        assert len(letters) == len(set(letters)), "a position was skipped twice"
        poison = {body for bodies in sent.values() for body in bodies if body.endswith("poison")}
        assert poison <= set(letters)
        for keeper in node.shards:
            keeper.host().shard.validate()
        await node.stop()

    run_virtual(main)

"""What an operator does to messages, on one shard and on several, in place and over the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Accepted
from batonq.core.records import State
from batonq.core.shard.commands.operator import Destination
from batonq.errors import InvalidInput, JobConflict, MessageHeld, MessageNotFound, Unavailable
from batonq.node.broker import Queue
from batonq.node.jobs.job_control import Redrive
from batonq.node.messages import dead_letter_groups
from batonq.node.messages.dead_letter_groups import Group
from batonq.node.messages.dead_letter_traits import Traits
from batonq.node.messages.message_control import place_of
from batonq.node.messages.operator_actions import retry_message
from batonq.node.messages.peek import PeekFilter, PeekPage
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_ports import over_the_wire
from tests.support import brokers

PLACES = pytest.mark.parametrize(("shards", "wired"), [(1, False), (3, False), (3, True)])


async def open_pair(loop: VirtualLoop, path: Path, shards: int, wired: bool, fifo: bool = False) -> tuple[Any, ...]:
    node = await open_node(loop, path, shards=shards)
    end, more = (".fifo", {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}) if fifo else ("", {})
    spread = {"Baton.Spread": str(shards)}
    dead = await node.broker.create_queue(ACCOUNT, f"dead{end}", spread | more, {})
    policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, f"dead{end}"), "maxReceiveCount": 5})
    queue = await node.broker.create_queue(ACCOUNT, f"orders{end}", spread | more | {"RedrivePolicy": policy}, {})
    if wired:
        over_the_wire(node.broker)
    return node, queue, dead


async def kill(node: Node, queue: Queue, count: int, error: str = "ValueError", reason: str = "bad") -> None:
    left = count
    while left:
        for delivery in await receive(node, queue, left):
            await brokers.nack(node.broker, queue, delivery.receipt, 0, reason, error, True)
            left -= 1
    await until(lambda: not any(keeper.host().shard.unsettled() for keeper in node.shards))


async def bodies(node: Node, queue: Queue) -> list[bytes]:
    return sorted(peeked.body for peeked in await brokers.peek(node.broker, queue, 0, 1_000))


@PLACES
def test_delete_edit_and_retry_by_id(tmp_path: Path, shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node, queue, _ = await open_pair(loop, tmp_path, shards, wired)
        messages = node.broker.messages
        ids: dict[str, str] = {}
        for number in range(9):
            [sent] = await send(node, queue, f"{number}", delay_ms=60_000 if number == 8 else 0)
            ids[f"{number}"] = sent.message_id  # type: ignore[union-attr]
        await messages.delete(queue, ids["3"])
        with pytest.raises(MessageNotFound, match=ids["3"]):
            await messages.delete(queue, ids["3"])
        await messages.edit(queue, ids["4"], {"replaceBody": "four", "setAttributes": {"a": 1}})
        await messages.retry(queue, ids["8"])
        assert await bodies(node, queue) == [b"0", b"1", b"2", b"5", b"6", b"7", b"8", b"four"]
        page = await node.broker.peek(queue, 0, 10, PeekFilter(text="four"))
        assert page.messages[0].attributes and page.messages[0].current_id == ids["4"]
        assert not (await node.broker.peek(queue, 0, 10, PeekFilter(state=State.DELAYED))).messages
        with pytest.raises(InvalidInput, match="changes nothing"):
            await messages.edit(queue, ids["4"], {})
        with pytest.raises(InvalidInput, match="empty"):
            await messages.edit(queue, ids["4"], {"replaceBody": ""})
        held = await receive(node, queue, 10)
        while len(held) < 8:
            held += await receive(node, queue, 10)
        for act in (messages.delete(queue, ids["4"]), messages.retry(queue, ids["4"])):
            with pytest.raises(MessageHeld, match="tester holds"):
                await act
        await node.stop()

    run_virtual(main)


@PLACES
@pytest.mark.parametrize("fifo", [False, True])
def test_a_dead_letter_returns(tmp_path: Path, shards: int, wired: bool, fifo: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node, queue, dead = await open_pair(loop, tmp_path, shards, wired, fifo)
        messages = node.broker.messages
        for number in range(8):
            await send(node, queue, f"{number}", **({"group": f"g{number}", "dedup_id": f"{number}"} if fifo else {}))
        await kill(node, queue, 8)
        letters = await brokers.peek(node.broker, dead, 0, 100)
        assert len(letters) == 8
        for letter in letters[:3]:
            await messages.edit(dead, letter.message_id, {"replaceBody": f"mended {letter.body.decode()}"})
            await messages.retry(dead, letter.message_id)
        await until(lambda: not any(keeper.host().shard.unsettled() for keeper in node.shards))
        assert await bodies(node, queue) == sorted(b"mended " + letter.body for letter in letters[:3])
        assert await bodies(node, dead) == sorted(letter.body for letter in letters[3:])
        await node.broker.start_job(dead, Redrive(filter={"bodyContains": "nothing"}))
        if shards == 1:
            with pytest.raises(JobConflict):
                await messages.retry(dead, letters[3].message_id)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(("dead_shards", "wired"), [(1, False), (3, False), (3, True)])
def test_dead_letters_return_to_a_fifo_queue_that_grows(tmp_path: Path, dead_shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        fifo = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
        dead = await node.broker.create_queue(ACCOUNT, "dead.fifo", fifo | {"Baton.Spread": str(dead_shards)}, {})
        policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead.fifo"), "maxReceiveCount": 5})
        queue = await node.broker.create_queue(ACCOUNT, "orders.fifo", fifo | {"RedrivePolicy": policy}, {})
        if wired:
            over_the_wire(node.broker)
        for number in range(12):
            await send(node, queue, f"{number}", group=f"g{number}", dedup_id=f"{number}")
        await kill(node, queue, 12)
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        for letter in await brokers.peek(node.broker, dead, 0, 100):
            await node.broker.messages.retry(dead, letter.current_id)
        assert len(await bodies(node, node.broker.queue(ACCOUNT, "orders.fifo"))) == 12
        assert not await bodies(node, dead)
        await node.stop()

    run_virtual(main)


def test_a_retry_that_another_shard_refuses_is_no_success(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        [sent] = await send(node, dead, "a")
        assert isinstance(sent, Accepted)
        _, sequence = place_of(dead, sent.message_id)
        host = node.shards[dead.shard].host()
        with pytest.raises(Unavailable, match="has refused it"):
            await retry_message(host, dead.number, sequence, Destination(999, 1 - dead.shard))
        assert await bodies(node, dead) == [b"a"]
        await node.stop()

    run_virtual(main)


def test_a_search_that_was_cut_short_does_not_say_that_there_is_no_such_message(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node, queue, dead = await open_pair(loop, tmp_path, 3, False)
        messages = node.broker.messages
        await send(node, queue, *map(str, range(9)))
        await kill(node, queue, 9)
        last = (await brokers.peek(node.broker, dead, 0, 100))[-1]

        async def look(queue: Queue, after: int, limit: int, wanted: PeekFilter) -> PeekPage:
            page: PeekPage = await node.broker.peek(queue, after, limit, wanted, 2)
            return page

        messages._peek = look
        for act in (messages.delete, messages.retry):
            with pytest.raises(MessageNotFound, match=r"(?s)only its first 2 messages.*current id"):
                await act(dead, last.message_id)
        await messages.delete(dead, last.current_id)
        await node.stop()

    run_virtual(main)


@PLACES
def test_groups_of_dead_letters(tmp_path: Path, shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node, queue, dead = await open_pair(loop, tmp_path, shards, wired)
        await send(node, queue, *(f'{{"n":{number}}}' for number in range(12)), content=1)
        await kill(node, queue, 12, "KeyError", "order 17 is missing")
        await send(node, queue, "text 1", "text 2")
        await kill(node, queue, 2, "KeyError", "order 18 is missing")
        await send(node, queue, "text 3")
        await kill(node, queue, 1, "Timeout", "slow")
        found = await node.broker.messages.dead_letters(dead, only_dead=False)
        assert (found.examined, found.complete, found.omitted) == (15, True, 0)
        assert [(group.count, *group.traits) for group in found.groups] == [
            (12, "KeyError", "order <n> is missing", "object<n: number>", "orders"),
            (2, "KeyError", "order <n> is missing", "text <n>", "orders"),
            (1, "Timeout", "slow", "text <n>", "orders"),
        ]
        assert [len(group.examples) for group in found.groups] == [3, 2, 1]
        job = await node.broker.start_job(dead, Redrive(filter={"group": found.groups[1].key}, deletes=True))

        async def ended() -> bool:
            return bool((await node.broker.job(ACCOUNT, job.id)).state == "COMPLETED")

        await until(ended)
        assert len(await bodies(node, dead)) == 13
        assert [status.kind for status in (await node.broker.all_jobs(ACCOUNT, only_active=False))[0]] == ["delete"]
        assert await node.broker.all_jobs(ACCOUNT, only_active=True) == ([], True)
        await node.stop()

    run_virtual(main)


def test_the_newest_dead_letters_are_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node, queue, dead = await open_pair(loop, tmp_path, 1, False)
        for number in range(30):
            await send(node, queue, "x" * 500)
            await kill(node, queue, 1, f"Error{number:02}")
        port = node.broker.local_port(0)
        found = await port.dead_letters(dead.number, False, 10)
        assert (found.examined, found.complete) == (10, False)
        assert sorted(group.traits.error_class for group in found.groups) == [f"Error{n}" for n in range(20, 30)]
        monkeypatch.setattr(dead_letter_groups, "GROUPS_MAX", 4)
        monkeypatch.setattr(dead_letter_groups, "TURN_BYTES", 1_000)
        monkeypatch.setattr(dead_letter_groups, "READ_BYTES_MAX", 8_000)
        found = await port.dead_letters(dead.number, False, 100)
        assert len(found.groups) == 4 and 0 < found.omitted < 20 and not found.complete
        await node.stop()

    run_virtual(main)


def test_groups_of_several_shards_are_merged() -> None:
    traits = Traits("E", "r", "s", "q")

    def part(count: int, first_ms: int, last_ms: int) -> dead_letter_groups.DeadLetters:
        return dead_letter_groups.DeadLetters(
            count, True, [Group(traits.key, traits, f"at {last_ms}", count, first_ms, last_ms)]
        )

    (group,) = dead_letter_groups.merged([part(2, 5, 8), part(3, 4, 6), part(1, 9, 9)]).groups
    assert (group.count, group.first_ms, group.last_ms, group.reason) == (6, 4, 9, "at 9")

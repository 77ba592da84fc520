"""Commands for a shard that another node serves: the same outcomes as in place, few calls, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import (
    ChangeVisibility,
    Command,
    Delete,
    Failing,
    Nack,
    Once,
    Receive,
    Send,
    Sent,
)
from batonq.errors import BatonError, LeaseLost, OverLimit, QueueDoesNotExist, ReceiptInvalid, Unavailable
from batonq.node.broker import Broker, Queue
from batonq.node.messages import received as deliveries
from batonq.node.messages.received import Deliveries, Received
from batonq.node.node import Node
from batonq.node.routing import forwarding, wire
from batonq.node.routing.forwarding import PATIENCE_S, RemoteShard
from batonq.node.routing.submission import Waiting, submitted
from batonq.node.shard_host.command_groups import TOGETHER_BYTES_MAX, TOGETHER_MAX, size_of
from batonq.priorities import NORMAL_PRIORITY
from tests.node.nodes import ACCOUNT, Faults, make_send, open_node
from tests.node.support import VirtualLoop, run_virtual, settle
from tests.node.test_ports import over_the_wire
from tests.support import brokers
from tests.support.ask import batch

# --- the same in place as over the wire -----------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["in place", "over the wire"])
def remote(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def on_a_node(
    tmp_path: Path, remote: bool, main: Callable[[Node], Awaitable[None]], faults: Faults | None = None
) -> None:
    async def run(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, faults=faults)
        if remote:
            over_the_wire(node.broker)
        await main(node)
        await node.stop()

    run_virtual(run)


async def execute(broker: Broker, *commands: Command) -> list[Any]:
    """The outcomes of commands that arrive at shard 0 in one turn of the event loop; errors in their places."""
    port = broker._port(0)
    return await asyncio.gather(*(submitted(port.submit, command) for command in commands), return_exceptions=True)


def sending(queue: Queue, *texts: str, sender: str = "ann", request: int = 0) -> Send:
    return batch(queue.number, [make_send(text, sender=sender) for text in texts], request)


def receiving(queue: Queue, count: int, visibility_ms: int | None = None, **fields: Any) -> Receive:
    return Receive(queue.number, count, visibility_ms, "zoe", **fields)


def deleting(queue: Queue, *found: Received) -> Delete:
    return Delete(queue.number, [claim for one in found for claim in one.leases.claims()])


def bodies(outcomes: Sequence[Any]) -> list[list[str]]:
    return [[body.decode() for body in outcome.bodies] for outcome in outcomes]


def test_a_whole_life_in_three_turns(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        orders, other = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("orders", "other")]
        frames = node.shards[0].statistics.frames
        sent = await execute(
            broker,
            sending(orders, "a", "b"),
            sending(orders, "c"),
            sending(other, "x"),
            sending(orders, "d", sender="ben"),
        )
        ids = [[one.message_id for one in outcome.results()] for outcome in sent]
        assert len({one for some in ids for one in some}) == 5
        assert node.shards[0].statistics.frames == frames + 1
        found = await execute(
            broker, receiving(orders, 2), receiving(orders, 10, 5_000), receiving(other, 3), receiving(orders, 1)
        )
        assert bodies(found) == [["a", "b"], ["d"], ["x"], ["c"]]
        assert [outcome.message_ids() for outcome in found] == [ids[0], ids[3], ids[2], ids[1]]
        for outcome, visibility_ms in zip(found, (30_000, 5_000), strict=False):
            assert outcome.leases.deadline_ms - outcome.leases.leased_ms == visibility_ms
        done = await execute(
            broker, deleting(orders, found[0]), deleting(other, found[2]), deleting(orders, found[1], found[3])
        )
        assert done == [[None] * 2, [None], [None] * 2]
        assert node.shards[0].statistics.frames == frames + 3
        for queue in (orders, other):
            counters = await broker.counters(queue)
            assert (counters.visible, counters.in_flight) == (0, 0)

    on_a_node(tmp_path, remote, main)


def test_receipts_are_the_asking_nodes_own(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await execute(node.broker, sending(queue, "a", "b"))
        found = await brokers.received(node.broker, queue, 10, None, 0, "zoe")
        opened = [node.broker._receipts.open_at(ACCOUNT, queue.number, receipt)[1] for receipt in found.receipts]
        assert [tuple(claim) for claim in opened] == found.leases.claims() and len(opened) == 2
        assert await brokers.delete(node.broker, queue, found.receipts, strict=True) == [None, None]

    on_a_node(tmp_path, remote, main)


def test_errors_stand_in_their_places(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        small = await broker.create_queue(ACCOUNT, "small", {"Baton.MaximumMessages": "1"}, {})
        strict = await broker.create_queue(ACCOUNT, "strict", {"Baton.StrictReceipts": "true"}, {})
        gone = await broker.create_queue(ACCOUNT, "gone", {}, {})
        await broker.delete_queue(gone)
        await execute(broker, sending(strict, "x"))
        (held,) = await execute(broker, receiving(strict, 1, 0))
        await execute(broker, receiving(strict, 1))
        outcomes = await execute(
            broker,
            sending(gone, "a"),
            receiving(gone, 1),
            Delete(gone.number, [(1, 1, 1)]),
            sending(small, "a", "b"),
            deleting(strict, held),
            ChangeVisibility(strict.number, held.leases.claims(), [1_000], strict=True),
            Nack(strict.number, held.leases.claims(), [Failing(0, "no", "Odd")]),
            sending(queue, "b"),
        )
        assert [type(outcome) for outcome in outcomes[:3]] == [QueueDoesNotExist] * 3
        assert [isinstance(one, OverLimit) for one in outcomes[3].results()] == [False, True]
        assert [[type(one) for one in results] for results in outcomes[4:7]] == [[LeaseLost]] * 3
        assert isinstance(outcomes[7], Sent)

    on_a_node(tmp_path, remote, main)


def test_a_request_that_is_repeated_makes_no_second_message(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        (first,) = await execute(node.broker, sending(queue, "a", request=7))
        _, again = await execute(node.broker, sending(queue, "b"), sending(queue, "a", request=7))
        assert again[0] == first[0]._replace(duplicate=True)
        one, two = await execute(node.broker, sending(queue, "c", request=8), sending(queue, "c", request=8))
        assert two[0] == one[0]._replace(duplicate=True) and not one[0].duplicate, "also in the same turn"
        once = Once("name", "content", 60_000)
        named = batch(queue.number, [make_send("d")], once=once)
        (new,) = await execute(node.broker, named)
        (known,) = await execute(node.broker, named)
        assert (new.replayed, known.replayed) == (False, True) and known[0].message_id == new[0].message_id
        assert (await node.broker.counters(queue)).visible == 4

    on_a_node(tmp_path, remote, main)


def test_who_comes_too_late_gets_nothing_and_what_is_given_back_was_no_receive(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await execute(node.broker, sending(queue, "a", "b", "c"))
        found = await execute(node.broker, receiving(queue, 2), receiving(queue, 2), receiving(queue, 2))
        assert bodies(found) == [["a", "b"], ["c"], []]
        for outcome in found:
            outcome.give_back()
        await settle()
        (again,) = await execute(node.broker, receiving(queue, 10))
        assert [lease.receive_count for lease in again.leases] == [1, 1, 1]

    on_a_node(tmp_path, remote, main)


def test_messages_that_are_more_than_a_body(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await brokers.send(node.broker, queue, [make_send("traced", trace="root", priority=200), make_send("bare")])
        bare, traced = await execute(node.broker, receiving(queue, 1, whole=False), receiving(queue, 1, whole=True))
        told = [(one.body, one.trace, one.priority) for found in (bare, traced) for one in found.deliveries()]
        assert told == [(b"traced", "root", 200), (b"bare", "", NORMAL_PRIORITY)]
        await execute(node.broker, Nack(queue.number, bare.leases.claims(), [Failing(0, "no stock", "OutOfStock")]))
        (failed,) = (await execute(node.broker, receiving(queue, 1, whole=True)))[0].deliveries()
        assert failed.failure is not None and failed.failure.reason == "no stock" and failed.receive_count == 2

    on_a_node(tmp_path, remote, main)


def test_what_is_too_much_for_one_answer_is_given_back(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "ANSWER_BYTES_MAX", 10_000)
    monkeypatch.setattr(deliveries.Deliveries.read, "__defaults__", (10_000,))

    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await execute(node.broker, sending(queue, *(f"{number:01000}" for number in range(12))))
        (found,) = await execute(node.broker, receiving(queue, 12))
        assert 0 < len(found) < 12
        assert found.leases.whole is None, "what was given back must not be read with the rest"
        (left,) = await execute(node.broker, receiving(queue, 12))
        assert bodies([found])[0] + bodies([left])[0] == [f"{number:01000}" for number in range(12)]
        assert {lease.receive_count for lease in left.leases} == {1}

    on_a_node(tmp_path, remote, main)


def test_receives_of_one_turn_get_all_they_would_get_alone(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the wire, those for which one answer has no room ask again by themselves."""
    monkeypatch.setattr(wire, "ANSWER_BYTES_MAX", 3_000)
    calls: list[str] = []
    answer = wire.answer

    async def noted(port: Any, operation: str, data: bytes) -> bytes:
        calls.append(operation)
        answered = await answer(port, operation, data)
        assert len(answered) < 4_000
        return answered

    monkeypatch.setattr(wire, "answer", noted)

    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        texts = [f"{number:01000}" for number in range(7)]
        for text in texts:
            await execute(node.broker, sending(queue, text))
        calls.clear()
        receives = [receiving(queue, 1, wait_ms=0 if at % 2 else 20_000) for at in range(7)]
        found = await execute(node.broker, *receives)
        assert sorted(text for (text,) in bodies(found)) == texts
        assert {lease.receive_count for one in found for lease in one.leases} == {1}
        assert not remote or (calls[0] == "submit" and calls.count("poll") == 5)

    on_a_node(tmp_path, remote, main)


@pytest.mark.parametrize("method", ["read", "is_cold"])
def test_a_receive_that_cannot_be_answered_takes_no_answer_from_the_others(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        broken, sound = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("broken", "sound")]
        await execute(broker, sending(broken, "a"), sending(sound, "b"))
        works, failing = getattr(Deliveries, method), [broken.number]

        def fail(*given: Any) -> Any:
            leases = next(one for one in given if hasattr(one, "positions"))
            host = next(one for one in given if hasattr(one, "shard"))
            if failing and host.shard.columns.queue[leases.slots[0]] in failing:
                raise RuntimeError("broken by the test")
            return works(*given)

        monkeypatch.setattr(Deliveries, method, staticmethod(fail) if method == "is_cold" else fail)
        outcomes = await execute(broker, sending(sound, "c"), receiving(broken, 1), receiving(sound, 1))
        assert isinstance(outcomes[0], Sent) and type(outcomes[1]) is BatonError
        assert bodies(outcomes[2:]) == [["b"]]
        monkeypatch.undo()
        (again,) = await execute(broker, receiving(broken, 1))
        assert bodies([again]) == [["a"]] and again.leases[0].receive_count == 1, "its lease was given back"

    on_a_node(tmp_path, remote, main)


def test_what_could_not_be_committed_is_told_as_such(tmp_path: Path, remote: bool) -> None:
    faults = Faults()

    async def main(node: Node) -> None:
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[0] = ["refuse"]
        outcomes = await execute(node.broker, sending(queue, "a"), receiving(queue, 1))
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 2
        assert "may or may not" in outcomes[0].message

    on_a_node(tmp_path, remote, main, faults)


def test_whoever_does_not_wait_for_the_answer_takes_no_message_along(tmp_path: Path, remote: bool) -> None:
    """Before the command is sent, while it is executed, and at the moment of its answer."""

    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await execute(broker, sending(queue, "a"))
        for turns in range(15):
            receive = receiving(queue, 1, wait_ms=20_000 if turns % 2 else 0)
            asking = asyncio.create_task(submitted(broker._port(0).submit, receive))
            await settle(turns)
            asking.cancel()
            answers = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(answers[0], Received):
                answers[0].give_back()
            await settle(50)
            counters = await broker.counters(queue)
            assert (counters.visible, counters.in_flight) == (1, 0), turns
        (found,) = await execute(broker, receiving(queue, 1))
        assert found.leases[0].receive_count == 1
        assert await broker.waiting(queue) == 0

    on_a_node(tmp_path, remote, main)


def test_a_long_poll_that_is_abandoned_waits_no_more(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        told: list[Any] = []
        waiting = broker.receive(queue, receiving(queue, 1, wait_ms=20_000), told.append)
        assert waiting is not None
        await settle()
        assert await broker.waiting(queue) == 1
        waiting.abandon()
        await settle()
        assert await broker.waiting(queue) == 0
        await execute(broker, sending(queue, "a"))
        await settle()
        assert not told and (await broker.counters(queue)).visible == 1

    on_a_node(tmp_path, remote, main)


def test_messages_without_valid_receipts_are_given_back(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await execute(broker, sending(queue, "a"))
        for problem, told in ((ReceiptInvalid(), ReceiptInvalid), (KeyError("a mistake of ours"), BatonError)):

            def fail(*given: Any, problem: Exception = problem) -> Any:
                raise problem

            with monkeypatch.context() as patch:
                patch.setattr(broker._receipts, "seal_leases", fail)
                with pytest.raises(told):
                    await brokers.receive(broker, queue, 1, None, 0, "zoe")
            await settle()
        (found,) = await brokers.receive(broker, queue, 1, None, 0, "zoe")
        assert found.receive_count == 1

    on_a_node(tmp_path, remote, main)


# --- what goes over the wire ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Send(7, [b"a", b"\xff"]),
        Send(
            7,
            [b"a", b"b"],
            [b"0" * 16, b"1" * 16],
            "ann",
            1,
            [1, 2],
            [b"", b"attributes"],
            ["g", ""],
            ["", "d"],
            [True, False],
            ["", "root"],
            [0, 3],
            [None, 5],
            [60_000, None],
            [0, 2],
            "producer",
            [4, 5],
            2**63 + 5,
            Once("name", "content", 60_000),
        ),
        Receive(7, 10, None, "zoe", "attempt", 20_000, True),
        Delete(7, [(1, 2**47, 3), (4, 5, 6)], True),
        ChangeVisibility(7, [(1, 2, 3)], [0]),
        Nack(7, [(1, 2, 3)], [Failing(None, "why", "Kind", True, False)]),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_is_itself_again(command: Command) -> None:
    (again,) = wire.decode_commands(wire.encode_commands([command]))
    assert type(again) is type(command)
    for each in fields(command):
        value = getattr(command, each.name)
        assert getattr(again, each.name) == ([] if value == () else value), "a column that is absent is empty"


def test_an_answer_to_other_commands_than_were_asked_is_an_error_for_all() -> None:
    async def main(asking: Asking) -> None:
        asking.owner.extra = 1
        asking.add(1)
        asking.add(2)
        await settle()
        assert [type(asking.told[number]) for number in (1, 2)] == [BatonError] * 2
        asking.owner.extra = 0
        asking.add(3)
        await settle()
        assert isinstance(asking.told[3], Sent)

    run(main)


# --- how calls are made -----------------------------------------------------------------------------


class Owner:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.polls: list[int] = []
        self.problem: Exception | None = None
        self.extra = 0  # outcomes that nobody asked for
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(self, operation: str, data: bytes, wait_ms: int) -> bytes:
        commands = wire.decode_commands(data)
        if operation == wire.POLL:
            self.polls += [command.queue for command in commands]
            await asyncio.sleep(wait_ms / 1000)
            return wire.encode_outcomes([Received(3)])
        assert operation == wire.SUBMIT and not wait_ms
        self.asked.append([command.queue for command in commands])
        await self.may_answer.wait()
        if self.problem is not None:
            raise self.problem
        outcomes = [Received(3) if isinstance(each, Receive) else Sent(3, each.queue, 1) for each in commands]
        return wire.encode_outcomes(outcomes + [Received(3)] * self.extra)


class Asking:
    def __init__(self) -> None:
        self.owner = Owner()
        self.port = RemoteShard(self.owner.call)
        self.told: dict[int, Any] = {}

    def add(self, number: int, size: int = 1, **fields: Any) -> Waiting | None:
        def answered(outcome: Any) -> None:
            assert number not in self.told
            self.told[number] = outcome

        command = Receive(number, 1, None, "zoe", **fields) if fields else Send(number, [bytes(size)])
        return self.port.submit(command, answered)


def run(main: Callable[[Asking], Awaitable[None]]) -> None:
    async def start(loop: VirtualLoop) -> None:
        await main(Asking())

    run_virtual(start)


def test_those_of_one_turn_are_one_call_and_the_next_gathers_meanwhile() -> None:
    async def main(asking: Asking) -> None:
        asking.owner.may_answer.clear()
        asking.add(1)
        asking.add(2)
        await settle()
        for number in (3, 4, 5):
            asking.add(number)
            await settle()
        assert asking.owner.asked == [[1, 2]] and not asking.told
        asking.owner.may_answer.set()
        await settle()
        assert asking.owner.asked == [[1, 2], [3, 4, 5]]
        assert {number: outcome.first for number, outcome in asking.told.items()} == {at: at for at in range(1, 6)}

    run(main)


def test_calls_are_bounded_in_number_and_bytes() -> None:
    async def main(asking: Asking) -> None:
        for number in range(TOGETHER_MAX + 1):
            asking.add(number)
        await settle()
        assert [len(some) for some in asking.owner.asked] == [TOGETHER_MAX, 1]
        asking.owner.asked.clear()
        half = TOGETHER_BYTES_MAX // 2 - size_of(Send(1, [b""]))
        sizes = {1_001: half, 1_002: half, 1_003: 1, 1_004: 2 * TOGETHER_BYTES_MAX, 1_005: 1}
        for number, size in sizes.items():
            asking.add(number, size)
        await settle()
        assert asking.owner.asked == [[1_001, 1_002], [1_003], [1_004], [1_005]]

    run(main)


@pytest.mark.parametrize("problem", [Unavailable("may or may not"), ValueError("a mistake of ours")])
def test_what_got_no_answer_is_an_error_for_all_and_is_not_asked_again(problem: Exception) -> None:
    async def main(asking: Asking) -> None:
        asking.owner.problem = problem
        asking.add(1)
        asking.add(2)
        await settle()
        assert asking.owner.asked == [[1, 2]]
        expected = type(problem) if isinstance(problem, BatonError) else BatonError
        assert [type(asking.told[number]) for number in (1, 2)] == [expected] * 2
        asking.owner.problem = None
        asking.add(3)
        await settle()
        assert isinstance(asking.told[3], Sent)

    run(main)


def test_nobody_waits_behind_a_call_that_takes_long() -> None:
    async def main(asking: Asking) -> None:
        asking.owner.may_answer.clear()
        asking.add(1)
        await settle()
        asking.add(2)
        asking.add(3)
        await asyncio.sleep(PATIENCE_S / 2)
        assert asking.owner.asked == [[1]], "the call may be answered yet"
        await asyncio.sleep(PATIENCE_S)
        assert asking.owner.asked == [[1], [2, 3]]
        asking.add(4)
        await asyncio.sleep(2 * PATIENCE_S)
        asking.owner.asked.clear()
        asking.add(5)
        await settle()
        assert asking.owner.asked == [[5]], "when all calls take long, the next one begins at once"
        asking.owner.may_answer.set()
        await settle()
        assert sorted(asking.told) == [1, 2, 3, 4, 5]

    run(main)


def test_a_receive_asks_with_the_others_first_and_waits_by_a_call_of_its_own() -> None:
    async def main(asking: Asking) -> None:
        asking.add(1)
        waiting = asking.add(2, wait_ms=20_000)
        asking.add(3, wait_ms=0)
        await settle()
        assert asking.owner.asked == [[1, 2, 3]] and asking.owner.polls == [2]
        assert sorted(asking.told) == [1, 3]
        asking.add(4)
        await settle()
        assert sorted(asking.told) == [1, 3, 4], "nobody waits behind a long poll"
        left = asking.add(5, wait_ms=20_000)
        assert left is not None and waiting is not None
        left.abandon()
        await settle()
        assert asking.owner.polls == [2], "one that has gone does not wait"
        await asyncio.sleep(20)
        assert 5 not in asking.told and not asking.told[2]

    run(main)


def test_too_many_are_refused_until_some_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAITING_MAX", 2)

    async def main(asking: Asking) -> None:
        for number in (1, 2, 3):
            asking.add(number)
        assert isinstance(asking.told.pop(3), OverLimit)
        await settle()
        asking.add(4)
        await settle()
        assert sorted(asking.told) == [1, 2, 4]

    run(main)


def test_one_that_cannot_be_told_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(asking: Asking) -> None:
        asking.told[1] = "already"
        asking.add(1)
        asking.add(3)
        await settle()
        assert isinstance(asking.told[3], Sent)

    run(main)
    assert "could not be written" in caplog.text

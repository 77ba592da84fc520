"""Plain calls of another node's clients, run together by the owner: the same in place as over the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import FirstLeases
from batonq.core.payload import AS_IS
from batonq.errors import LeaseLost, Unavailable
from batonq.node.broker import Broker, Queue
from batonq.node.deliveries import ANSWER_BYTES_MAX, Deliveries
from batonq.node.host import ShardHost
from batonq.node.node import Node
from batonq.node.relayed import (
    RelayedAnswer,
    RelayedCall,
    RelayedDelete,
    RelayedDeliveries,
    RelayedDone,
    RelayedProblem,
    RelayedReceive,
    RelayedSend,
    RelayedSent,
    RelayedTexts,
    claims_of,
    without_leases,
)
from tests.node.nodes import ACCOUNT, Faults, make_send, open_node
from tests.node.support import VirtualLoop, run_virtual
from tests.node.test_ports import over_the_wire


@pytest.fixture(params=[False, True], ids=["in place", "over the wire"])
def remote(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def noted(runs: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        runs.append(name)
        return function(*given)

    return call


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


async def relay(broker: Broker, *calls: RelayedCall) -> list[RelayedAnswer]:
    return await broker.port(0).relay(calls)


def sending(queue: Queue, *texts: str, sender: str = "ann", invocation: int = 0) -> RelayedSend:
    bodies = [text.encode() for text in texts]
    digests = [md5(body, usedforsecurity=False).digest() for body in bodies]
    return RelayedSend(queue.number, sender, AS_IS, invocation, bodies, digests)


def receiving(queue: Queue, count: int, visibility_ms: int | None = None, holder: str = "zoe") -> RelayedReceive:
    return RelayedReceive(queue.number, queue.account, queue.name, holder, count, visibility_ms)


def deleting(queue: Queue, *found: RelayedAnswer) -> RelayedDelete:
    claims = [
        (claim.slot, claim.sequence, claim.epoch)
        for one in found
        if isinstance(one, RelayedTexts | RelayedDeliveries)
        for claim in claims_of(one)
    ]
    return RelayedDelete(queue.number, claims)


def firsts(answers: list[RelayedAnswer]) -> list[int]:
    return [answer.first if isinstance(answer, RelayedSent) else 0 for answer in answers]


def bodies(answers: list[RelayedAnswer]) -> list[list[str]]:
    return [[body.decode() for body in answer.bodies] if isinstance(answer, RelayedTexts) else [] for answer in answers]


def test_a_whole_life_in_three_calls(tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    for name in ("send_together", "receive_together", "delete_together"):
        monkeypatch.setattr(ShardHost, name, noted(runs, name, getattr(ShardHost, name)))

    async def main(node: Node) -> None:
        broker = node.broker
        orders, other = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("orders", "other")]
        frames = node.shards[0].statistics.frames
        sent = await relay(
            broker,
            sending(orders, "a", "b"),
            sending(orders, "c"),
            sending(other, "x"),
            sending(orders, "d", sender="ben"),
        )
        first = firsts(sent)[0]
        assert firsts(sent) == [first, first + 2, first + 3, first + 4], "those that are alike are one run"
        assert node.shards[0].statistics.frames == frames + 1
        found = await relay(
            broker, receiving(orders, 2), receiving(orders, 10, 5_000), receiving(other, 3), receiving(orders, 1)
        )
        assert bodies(found) == [["a", "b"], ["d"], ["x"], ["c"]]
        assert isinstance(found[0], RelayedTexts) and isinstance(found[1], RelayedTexts)
        assert found[0].deadline_ms - found[0].leased_ms == 30_000
        assert found[1].deadline_ms - found[1].leased_ms == 5_000
        done = await relay(
            broker, deleting(orders, found[0]), deleting(other, found[2]), deleting(orders, found[1], found[3])
        )
        assert done == [RelayedDone([])] * 3
        assert runs == ["send_together"] * 3 + ["receive_together"] * 3 + ["delete_together"] * 2
        for queue in (orders, other):
            counters = await broker.counters(queue)
            assert (counters.visible, counters.in_flight) == (0, 0)

    on_a_node(tmp_path, remote, main)


def test_receipts_are_the_same_as_the_owners_own(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await relay(broker, sending(queue, "a", "b"))
        (found,) = await relay(broker, receiving(queue, 10))
        assert isinstance(found, RelayedTexts)
        receipts = broker.seal_relayed(queue, found)
        opened = [broker._receipts.open_at(queue.account, queue.number, receipt)[1] for receipt in receipts]
        assert opened == claims_of(found)
        assert await broker.delete(queue, receipts, strict=True) == [None, None]

    on_a_node(tmp_path, remote, main)


def test_what_is_not_plain_here_is_not_run(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        slow = await broker.create_queue(ACCOUNT, "slow", {"DelaySeconds": "5"}, {})
        fifo = await broker.create_queue(ACCOUNT, "orders.fifo", {"FifoQueue": "true"}, {})
        gone = await broker.create_queue(ACCOUNT, "gone", {}, {})
        await broker.delete_queue(gone)
        answers = await relay(
            broker,
            sending(slow, "a"),
            sending(fifo, "a"),
            sending(gone, "a"),
            receiving(slow, 1),
            receiving(gone, 1),
            RelayedDelete(gone.number, [(1, 1, 1)]),
            sending(queue, "b"),
        )
        assert answers[:-1] == [None] * 6 and isinstance(answers[-1], RelayedSent)
        for each in (slow, fifo):
            assert (await broker.counters(each)).sent == 0

    on_a_node(tmp_path, remote, main)


def test_a_request_that_is_repeated_makes_no_second_message(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        (first,) = await relay(broker, sending(queue, "a", invocation=7))
        assert await relay(broker, sending(queue, "b"), sending(queue, "a", invocation=7)) == [
            RelayedSent(firsts([first])[0] + 1),
            first,
        ]
        twice = await relay(broker, sending(queue, "c", invocation=8), sending(queue, "c", invocation=8))
        assert twice == [None, None], "the general way tells them apart"
        assert (await broker.counters(queue)).visible == 2

    on_a_node(tmp_path, remote, main)


def test_who_comes_too_late_gets_nothing_and_a_lost_lease_is_told(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await relay(broker, sending(queue, "a", "b", "c"))
        found = await relay(broker, receiving(queue, 2), receiving(queue, 2), receiving(queue, 2))
        assert bodies(found) == [["a", "b"], ["c"], []] and found[2] is None
        broker.relaying.give_back(0, queue.number, claims_of(found[0]))  # type: ignore[arg-type]
        (again,) = await broker.receive(queue, 1, None, 1_000, "ben")
        assert again.receive_count == 1, "it was no receive"
        strict = await broker.create_queue(ACCOUNT, "strict", {"Baton.StrictReceipts": "true"}, {})
        await relay(broker, sending(strict, "x"))
        (held,) = await relay(broker, receiving(strict, 1, 0))
        await broker.receive(strict, 1, 30_000, 0, "ben")
        answers = await relay(broker, deleting(queue, found[1]), deleting(strict, held))
        assert answers[0] == RelayedDone([])
        assert isinstance(answers[1], RelayedDone)
        assert [type(problem) for problem in answers[1].problems()] == [LeaseLost]

    on_a_node(tmp_path, remote, main)


def test_messages_that_are_more_than_a_text(tmp_path: Path, remote: bool) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await broker.send(queue, [make_send("traced", trace="root"), make_send("plain")])
        found = await relay(broker, receiving(queue, 1), receiving(queue, 1))
        told = [one.deliveries for one in found if isinstance(one, RelayedDeliveries)]
        assert [[(one.body, one.trace) for one in some] for some in told] == [[(b"traced", "root")], [(b"plain", "")]]
        assert await broker.delete(queue, [some[0].receipt for some in told], strict=True) == [None, None]

    on_a_node(tmp_path, remote, main)


def test_what_is_too_much_for_one_answer_is_given_back(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ANSWER_BYTES_MAX > 1_000
    monkeypatch.setattr("batonq.node.relayed.ANSWER_BYTES_MAX", 1_000)

    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await relay(broker, sending(queue, *(letter * 400 for letter in "abcd")))
        found = await relay(broker, receiving(queue, 3), receiving(queue, 1))
        assert [len(some) for some in bodies(found)] == [3, 0], "the first gets its own, whatever its size"
        (left,) = await broker.receive(queue, 10, None, 0, "ben")
        assert left.body == b"d" * 400 and left.receive_count == 1

    on_a_node(tmp_path, remote, main)


def test_a_receive_that_cannot_be_answered_takes_no_answer_from_the_others(
    tmp_path: Path, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(node: Node) -> None:
        broker = node.broker
        broken, sound = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("broken", "sound")]
        await relay(broker, sending(broken, "a"), sending(sound, "b"))
        read = Deliveries.read

        def fail(host: ShardHost, leases: FirstLeases) -> Any:
            found = read(host, leases)
            if found is not None and found[2] == [b"a"]:
                raise RuntimeError("broken by the test")
            return found

        monkeypatch.setattr(Deliveries, "read", staticmethod(fail))
        answers = await relay(broker, sending(sound, "c"), receiving(broken, 1), receiving(sound, 1))
        assert isinstance(answers[0], RelayedSent) and isinstance(answers[1], RelayedProblem)
        assert bodies(answers[2:]) == [["b"]]
        monkeypatch.undo()
        (again,) = await broker.receive(broken, 1, None, 0, "ben")
        assert again.body == b"a" and again.receive_count == 1, "its lease was given back"

    on_a_node(tmp_path, remote, main)


def test_what_could_not_be_committed_is_told_as_such(tmp_path: Path, remote: bool) -> None:
    faults = Faults()

    async def main(node: Node) -> None:
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable, match="may or may not"):
            await relay(broker, sending(queue, "a"), receiving(queue, 1))

    on_a_node(tmp_path, remote, main, faults)


def test_answers_without_their_leases() -> None:
    calls: list[RelayedCall] = [
        RelayedSend(1, "", 0, 0, [b"x"], []),
        RelayedReceive(2, "", "", "", 1, None),
        RelayedReceive(3, "", "", "", 1, None),
        RelayedReceive(3, "", "", "", 1, None),
    ]
    texts = RelayedTexts([5], [9], [0], 0, 0, [0], [b""], [b"x"])
    left, leases = without_leases(calls, [RelayedSent(4), texts, RelayedDeliveries([6], [10], []), None])
    assert left == [RelayedSent(4), None, None, None]
    assert leases == [(2, [(5, 9, 1)]), (3, [(6, 10, 1)])]

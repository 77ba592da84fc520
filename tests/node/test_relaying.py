"""Calls that gather for another node's shard: one call at a time, in bounds, and nothing is asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from batonq.errors import BatonError, Unavailable
from batonq.node import relaying
from batonq.node.host import TOGETHER_BYTES_MAX, TOGETHER_MAX
from batonq.node.ports import ShardPort
from batonq.node.relayed import RelayedAnswer, RelayedCall, RelayedDelete, RelayedSent
from batonq.node.relaying import PATIENCE_S, Relaying
from tests.node.support import VirtualLoop, run_virtual, settle


class Owner:
    """A port that answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.known = True
        self.problem: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def relay(self, calls: Sequence[RelayedCall]) -> list[RelayedAnswer]:
        self.asked.append([call.queue for call in calls])
        await self.may_answer.wait()
        if self.problem is not None:
            raise self.problem
        return [RelayedSent(call.queue) if call.queue % 2 else None for call in calls]


class Asking:
    def __init__(self, loop: VirtualLoop) -> None:
        self.owner = Owner()
        self.relaying = Relaying(loop, lambda shard: cast(ShardPort, self.owner), lambda shard: self.owner.known)
        self.told: dict[int, Any] = {}

    def add(self, number: int, size: int = 1) -> None:
        def answered(answer: RelayedAnswer | BatonError) -> None:
            assert number not in self.told
            self.told[number] = answer

        self.relaying.add(3, RelayedDelete(number, []), size, answered)


def run(main: Callable[[Asking], Awaitable[None]]) -> None:
    async def start(loop: VirtualLoop) -> None:
        await main(Asking(loop))

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
        assert asking.told == {1: RelayedSent(1), 2: None, 3: RelayedSent(3), 4: None, 5: RelayedSent(5)}

    run(main)


def test_calls_are_bounded_in_number_and_bytes() -> None:
    async def main(asking: Asking) -> None:
        for number in range(TOGETHER_MAX + 1):
            asking.add(number)
        await settle()
        assert [len(some) for some in asking.owner.asked] == [TOGETHER_MAX, 1]
        asking.owner.asked.clear()
        sizes = {
            1_001: TOGETHER_BYTES_MAX // 2,
            1_002: TOGETHER_BYTES_MAX // 2,
            1_003: 1,
            1_004: 2 * TOGETHER_BYTES_MAX,
            1_005: 1,
        }
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
        assert asking.told[3] == RelayedSent(3)

    run(main)


def test_nobody_waits_behind_an_owner_that_does_not_answer() -> None:
    async def main(asking: Asking) -> None:
        asking.owner.may_answer.clear()
        asking.add(1)
        await settle()
        asking.add(3)
        assert asking.relaying.takes(3)
        await asyncio.sleep(2 * PATIENCE_S)
        assert asking.told == {3: None}, "it was not run, and goes the general way"
        assert not asking.relaying.takes(3) and asking.relaying.takes(4)
        asking.owner.may_answer.set()
        await settle()
        assert asking.told[1] == RelayedSent(1) and asking.relaying.takes(3)
        assert asking.owner.asked == [[1]]

    run(main)


def test_without_an_owner_or_with_too_many_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(asking: Asking) -> None:
        asking.owner.known = False
        assert not asking.relaying.takes(3)
        asking.owner.known = True
        monkeypatch.setattr(relaying, "WAITING_MAX", 2)
        asking.add(1)
        assert asking.relaying.takes(3)
        asking.add(2)
        assert not asking.relaying.takes(3)
        await settle()
        assert asking.relaying.takes(3)

    run(main)


def test_one_that_cannot_be_told_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(asking: Asking) -> None:
        asking.told[1] = "already"
        asking.add(1)
        asking.add(3)
        await settle()
        assert asking.told[3] == RelayedSent(3)

    run(main)
    assert "could not be answered" in caplog.text

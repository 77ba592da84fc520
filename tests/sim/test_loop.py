"""Virtual time, and the end of a life: what a crash of a whole node means for everything that it had under way."""

from __future__ import annotations

import asyncio

import pytest

from sim.loop import Life, SimLoop, Stuck, current_life


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop()


def test_time_jumps_to_the_next_timer_in_order(loop: SimLoop) -> None:
    seen: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((loop.time(), name))

    async def main() -> None:
        await asyncio.gather(sleeper("day", 86_400.0), sleeper("second", 1.0), sleeper("minute", 60.0))

    loop.run_until_complete(main())
    loop.close()
    assert seen == [(1.0, "second"), (60.0, "minute"), (86_400.0, "day")]


def test_waiting_for_what_never_comes_is_an_error_and_no_hang(loop: SimLoop) -> None:
    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Stuck):
        loop.run_until_complete(main())
    loop.close()


def test_other_threads_are_refused(loop: SimLoop) -> None:
    with pytest.raises(AssertionError, match="no other thread"):
        loop.run_in_executor(None, print)
    loop.close()


def test_a_life_that_ends_does_nothing_more(loop: SimLoop) -> None:
    seen: list[str] = []
    life = Life("node 1")

    async def part_of_a_node() -> None:
        assert current_life() is life
        try:
            await asyncio.sleep(10)
            seen.append("slept on")
        finally:
            loop.call_soon(seen.append, "scheduled while dying")
            seen.append("closed")

    async def main() -> None:
        task = loop.create_task(part_of_a_node(), context=life.context)
        loop.call_later(5, seen.append, "timer", context=life.context)
        await asyncio.sleep(1)
        loop.end_life(life)
        loop.call_soon(seen.append, "after the end", context=life.context)
        await asyncio.sleep(100)
        assert not task.done()

    loop.run_until_complete(main())
    loop.close()
    assert seen == ["closed"]
    assert current_life() is None


def test_what_a_life_awaits_from_outside_cannot_wake_it(loop: SimLoop) -> None:
    seen: list[str] = []
    life = Life("node 1")

    async def main() -> None:
        answer = loop.create_future()

        async def asks() -> None:
            seen.append(await answer)

        loop.create_task(asks(), context=life.context)
        await asyncio.sleep(0)
        loop.end_life(life)
        answer.set_result("late")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    assert seen == []


def test_a_system_call_that_takes_long_makes_everybody_wait(loop: SimLoop) -> None:
    async def main() -> tuple[float, float]:
        timer = loop.create_future()
        loop.call_later(0.5, lambda: timer.set_result(loop.time()))
        loop.pass_time(2.0)
        return loop.time(), await timer

    assert loop.run_until_complete(main()) == (2.0, 2.0)
    loop.close()

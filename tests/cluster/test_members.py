"""What nodes tell of themselves: load, and the time that they have."""

from __future__ import annotations

import asyncio

from batonq.node.cluster.members import Members
from batonq.node.events import AlarmBoard
from tests.cluster.memory import Hub, MemoryLeases

HOUR_MS = 3_600_000


class Clocks:
    def __init__(self) -> None:
        self.ahead_ms = dict.fromkeys("abc", 0)
        self.now_ms = 1_700_000_000_000
        self.alarms = AlarmBoard(lambda: self.now_ms, 10)
        hub = Hub()
        self.members = {name: self._member(hub, name) for name in "abc"}

    def _member(self, hub: Hub, name: str) -> Members:
        leases = MemoryLeases(hub, name, f"http://{name}", 60)
        return Members(
            name, leases=leases, alarms=self.alarms, wall_ms=lambda: self.now_ms + self.ahead_ms[name], term_s=1.0
        )

    async def meet(self) -> None:
        for _ in range(2):
            self.now_ms += 1_000
            for each in self.members.values():
                await each.announce({1: 2.5, 7: 1.0}, draining=each is self.members["c"])
            for each in self.members.values():
                await each.hear()


def test_everybody_hears_of_everybody() -> None:
    async def main() -> None:
        clocks = Clocks()
        await clocks.meet()
        for each in clocks.members.values():
            assert sorted(each.known) == ["a", "b", "c"]
            assert each.known["b"].weights == {1: 2.5, 7: 1.0}
            assert [name for name, known in each.known.items() if known.draining] == ["c"]
            assert not each.clock_is_off()

    asyncio.run(main())


def test_the_one_whose_clock_jumped_an_hour_takes_no_shards() -> None:
    async def main() -> None:
        clocks = Clocks()
        for jump_ms in (HOUR_MS, -HOUR_MS):
            clocks.ahead_ms["a"] = jump_ms
            await clocks.meet()
            off = [name for name, each in clocks.members.items() if each.clock_is_off()]
            assert off == ["a"]
            assert clocks.members["a"].clock_is_off()
            assert any(str(jump_ms) in alarm.text for alarm in clocks.alarms.active())
        clocks.ahead_ms["a"] = 1_500  # within what may be
        await clocks.meet()
        assert not any(each.clock_is_off() for each in clocks.members.values())

    asyncio.run(main())


def test_a_note_that_cannot_be_read_is_left_out() -> None:
    async def main() -> None:
        clocks = Clocks()
        await clocks.meet()
        for note in ("", "[]", '{"weights": 3}', '{"clock_ms": "x", "weights": {}, "draining": 0}'):
            await clocks.members["b"]._leases.announce(note)
            await clocks.members["a"].hear()
            assert sorted(clocks.members["a"].known) == ["a", "c"]

    asyncio.run(main())

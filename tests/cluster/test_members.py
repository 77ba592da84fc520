"""What nodes tell of themselves: load, and the time that they have."""

from __future__ import annotations

import asyncio
import json

from batonq.node.alarms.book import AlarmBook
from batonq.node.cluster.admission import Credentials
from batonq.node.cluster.members import Members
from tests.cluster.memory import Hub, MemoryLeases

HOUR_MS = 3_600_000
STARTED_MS = 1_699_999_000_000


class Clocks:
    def __init__(self) -> None:
        self.ahead_ms = dict.fromkeys("abc", 0)
        self.now_ms = 1_700_000_000_000
        self.alarms = AlarmBook(lambda: self.now_ms, 10)
        hub = Hub()
        self.members = {name: self._member(hub, name) for name in "abc"}

    def _member(self, hub: Hub, name: str) -> Members:
        leases = MemoryLeases(hub, name, f"http://{name}", 60)
        return Members(
            name,
            leases=leases,
            alarms=self.alarms,
            wall_ms=lambda: self.now_ms + self.ahead_ms[name],
            steady_ms=lambda: self.now_ms - STARTED_MS,
            term_s=1.0,
        )

    async def meet(self) -> None:
        for _ in range(2):
            self.now_ms += 1_000
            for name, each in self.members.items():
                await each.announce({1: 2.5, 7: 1.0}, draining=name == "c")
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


def test_the_time_is_that_of_most_as_soon_as_a_clock_jumps() -> None:
    async def main() -> None:
        clocks = Clocks()
        await clocks.meet()
        for jump_ms in (HOUR_MS, -HOUR_MS, 3_500):
            clocks.ahead_ms["a"] = jump_ms  # nobody has heard or told anything since
            for each in clocks.members.values():
                assert each.time_s() * 1000 == clocks.now_ms
        clocks.ahead_ms["a"] = 2_500
        assert clocks.members["a"].time_s() * 1000 == clocks.now_ms + 2_500, "what is within bounds is worked off"

    asyncio.run(main())


def test_times_that_were_long_under_way_make_no_clock_late() -> None:
    async def main() -> None:
        clocks = Clocks()
        clocks.ahead_ms["a"] = HOUR_MS
        await clocks.meet()
        for each in clocks.members.values():
            await each.announce({}, draining=False)
        clocks.now_ms += 5_000
        for each in clocks.members.values():
            await each.hear()
        assert clocks.members["a"].time_s() * 1000 == clocks.now_ms

    asyncio.run(main())


def test_two_clocks_cannot_tell_which_of_them_is_wrong() -> None:
    async def main() -> None:
        clocks = Clocks()
        del clocks.members["c"]
        clocks.ahead_ms["a"] = HOUR_MS
        await clocks.meet()
        for name, each in clocks.members.items():
            assert not each.clock_is_off() and each.time_s() * 1000 == clocks.now_ms + clocks.ahead_ms[name]

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


def test_an_older_release_is_accepted_although_a_newer_process_left_its_incarnation() -> None:
    """In PostgreSQL, an older release changes all of a member's row but the incarnation."""

    async def main() -> None:
        hub = Hub()
        alarms = AlarmBook(lambda: 0, 10)

        def member(name: str, secret: bytes) -> Members:
            leases = MemoryLeases(hub, name, f"http://{name}", 60)
            leases.incarnate(f"{name}-1")
            return Members(
                name,
                leases=leases,
                alarms=alarms,
                wall_ms=lambda: 0,
                steady_ms=lambda: 0,
                term_s=1.0,
                address=f"http://{name}",
                credentials=Credentials(secret, 77, f"{name}-1"),
            )

        a, b, stranger = member("a", b"secret"), member("b", b"secret"), member("stranger", b"other")
        for each in (a, b, stranger):
            await each.announce({}, draining=False)
        await a.hear()
        assert sorted(a.known) == ["a", "b"] and list(a.refused) == ["stranger"]

        told = json.loads(a.known["b"].member.note)
        older = {key: value for key, value in told.items() if key not in ("incarnation", "proof")}
        for note, is_refused in (
            (older, False),
            ({**older, "incarnation": "b-1"}, True),
            ({**older, "proof": told["proof"]}, False),
            ({**older, "proof": "made up"}, True),
        ):
            await b._leases.announce(json.dumps(note))
            await a.hear()
            assert ("b" in a.refused) is is_refused and ("b" in a.known) is not is_refused, note

    asyncio.run(main())

"""Plays cases against one server beside a canary, and judges what the server did meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.fuzz.asker import Asker, Refused
from tests.fuzz.bounds import MIB, STALL_MS_MAX, TURN_CPU_MS_MAX, busy_factor
from tests.fuzz.canary import ACCOUNT, Canary
from tests.fuzz.cases import ATTACKER, Case
from tests.fuzz.player import Played, Player, Stalled
from tests.fuzz.server import FuzzedServer, Turn

REPLAYS = 3
SUSPECTS_MAX = 24
STALLED_MAX = 64
LANES = 8
JUDGED_EVERY_S = 1.5
HANDLES_SLACK = 4  # files of a log that was begun meanwhile


@dataclass(slots=True)
class Finding:
    """Something that must not happen, and the case that made it happen if one did alone."""

    text: str
    cases: list[Case] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([self.text, *(case.show() for case in self.cases[:3])])


@dataclass(slots=True)
class Measured:
    """Figures of a session, for people and for the bounds."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    longest_turn_ms: float = 0.0
    canary_requests: int = 0
    canary_slowest_ms: float = 0.0
    start_bytes: int = 0
    peak_bytes: int = 0
    end_bytes: int = 0
    start_handles: int = 0
    end_handles: int = 0

    @property
    def peak_growth_bytes(self) -> int:
        return self.peak_bytes - self.start_bytes

    @property
    def growth_bytes(self) -> int:
        return self.end_bytes - self.start_bytes

    def __str__(self) -> str:
        common = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.cases:,} cases ({common}); longest turn {self.longest_turn_ms:.0f} ms of CPU; canary "
            f"{self.canary_requests:,} requests, slowest {self.canary_slowest_ms:.0f} ms; memory +"
            f"{self.peak_growth_bytes / MIB:.1f} MiB at its peak, {self.growth_bytes / MIB:+.1f} MiB at the end; "
            f"{self.end_handles - self.start_handles:+d} file descriptors"
        )


class Session:
    """Use `attacking(server)`. It ends early after so many findings."""

    def __init__(self, server: FuzzedServer, findings_max: int = 1, stall_ms_max: float = STALL_MS_MAX) -> None:
        self.server = server
        # Of turns that no case makes alone; without a limit where hundreds of connections are read in one turn.
        self.stall_ms_max = stall_ms_max
        self.findings_max = findings_max
        self.player = Player(server.port, server.context)
        self.measured = Measured()
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self._played: deque[Played] = deque()
        self._stalled: deque[Stalled] = deque()
        self._canary = Canary(server)
        self._judged_s = time.monotonic()
        self._judging = asyncio.Lock()

    async def play_all(self, cases: Iterable[Case], *, lanes: int = LANES) -> None:
        """Several cases at a time. Ends early when something was found."""
        left = iter(cases)

        async def lane() -> None:
            for case in left:
                if self._over():
                    return
                await self.play(case)
                if len(self._stalled) > STALLED_MAX:
                    self._stalled.popleft().close()
                await self._judge_now_and_then()

        await asyncio.gather(*(lane() for _ in range(lanes)))
        await self.judge()

    async def play(self, case: Case) -> Played:
        played = await self.player.play(case)
        self.measured.cases += 1
        self.measured.statuses.update(played.statuses)
        self._played.append(played)
        if played.problems:
            self.findings.append(Finding("; ".join(played.problems), [case]))
        if played.connection is not None:
            self._stalled.append(played.connection)
        return played

    def release(self) -> None:
        """Close the connections that were left open."""
        while self._stalled:
            self._stalled.popleft().close()

    async def judge(self) -> None:
        """Look at the turns of the event loop and at the log, and find which case was the cause."""
        async with self._judging:
            await self._judge()
            self._judged_s = time.monotonic()

    async def _judge(self) -> None:
        turns = await asyncio.to_thread(self.server.turns)
        alarms = self.server.new_alarms()
        played = list(self._played)
        self._played.clear()
        self.measured.longest_turn_ms = max(self.measured.longest_turn_ms, self.server.longest_turn_ms)
        for turn in sorted(turns, key=lambda turn: -turn.cpu_ms):
            if self._over():
                break
            if _too_long(turn):
                await self._blame_turn(turn, played)
        if alarms and not self._over():
            await self._blame_alarm(alarms[0], played)

    def _over(self) -> bool:
        return len(self.findings) >= self.findings_max or bool(self._canary.problems)

    async def _judge_now_and_then(self) -> None:
        """All lanes wait for a judgement, so that few cases are suspects."""
        if self._judging.locked():
            async with self._judging:
                return
        if time.monotonic() - self._judged_s > JUDGED_EVERY_S:
            await self.judge()

    async def _blame_turn(self, turn: Turn, played: list[Played]) -> None:
        """A request is to blame if it does the same alone, each time that it is tried."""
        suspects = [each.case for each in played if each.began_s <= turn.ended_s and each.ended_s >= turn.began_s]
        suspects.sort(key=lambda case: -len(case.data))
        for case in suspects[:SUSPECTS_MAX]:
            again = [await self._longest_turn(case)]
            while again[-1] is not None and len(again) < REPLAYS:
                again.append(await self._longest_turn(case))
            if again[-1] is not None:
                self.findings.append(Finding(f"a turn of the event loop took {again[-1]}", [case]))
                return
        if max(turn.cpu_ms, turn.process_ms) > self.stall_ms_max * busy_factor():
            text = f"a turn of the event loop took {turn}and no case does it alone; they ran at the same time"
            self.findings.append(Finding(text, suspects))
        else:
            self.notes.append(f"a turn of {turn.cpu_ms:.0f} ms, which no case makes alone")

    async def _longest_turn(self, case: Case) -> Turn | None:
        """The longest turn when this case is played alone, if it is too long."""
        await asyncio.to_thread(self.server.turns)
        played = await self.player.play(case)
        if played.connection is not None:
            played.connection.close()
        turns = await asyncio.to_thread(self.server.turns)
        long = [turn for turn in turns if _too_long(turn)]
        return max(long, key=lambda turn: turn.cpu_ms, default=None)

    async def _blame_alarm(self, alarm: str, played: list[Played]) -> None:
        """A case is to blame if it does the same alone, twice."""
        for each in played:
            if await self._alarms_alone(each.case) and await self._alarms_alone(each.case):
                self.findings.append(Finding(f"the server's log has\n{alarm}", [each.case]))
                return
        text = f"the server's log has\n{alarm}\nand no case does it alone; they ran before"
        self.findings.append(Finding(text, [each.case for each in played]))

    async def _alarms_alone(self, case: Case) -> bool:
        played = await self.player.play(case)
        if played.connection is not None:
            played.connection.close()
        await asyncio.to_thread(self.server.turns)  # it has done what it was asked before this
        return bool(self.server.new_alarms())

    async def begin(self) -> None:
        await self._canary.start()
        server, measured = self.server, self.measured
        await asyncio.to_thread(server.trim)
        server.longest_turn_ms = 0.0
        server.new_alarms()
        measured.start_handles = server.handles
        measured.start_bytes = server.memory_bytes
        server.forget_peak()

    async def end(self) -> None:
        await self.judge()
        self.measured.peak_bytes = self.server.peak_bytes
        self.release()
        await asyncio.to_thread(self.server.settle, self.measured.start_handles)
        await asyncio.to_thread(self.server.trim)
        self.measured.end_bytes = self.server.memory_bytes
        self.measured.end_handles = self.server.handles
        if self.measured.end_handles > self.measured.start_handles + HANDLES_SLACK:
            text = f"{self.measured.start_handles} file descriptors became {self.measured.end_handles}"
            self.findings.append(Finding(text))
        await self._work_normally()

    async def _work_normally(self) -> None:
        """After the attack a normal client works, also from the attacker's address."""
        asker = Asker(self.server, ATTACKER, ACCOUNT)
        queue = "/v1/queues/afterwards"
        try:
            await asker.good("POST", "/v1/queues", {"name": "afterwards"})
            await asker.good("POST", f"{queue}/messages", {"body": "still here"})
            [message] = (await asker.good("POST", f"{queue}/messages:receive", {}))["messages"]
            await asker.good("POST", f"{queue}/messages:ack", {"receiptHandles": [message["receiptHandle"]]})
        except (Refused, OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as problem:
            self.findings.append(Finding(f"a normal client does not work afterwards: {problem!r}"))
        finally:
            await asker.close()


@asynccontextmanager
async def attacking(
    server: FuzzedServer, findings_max: int = 1, stall_ms_max: float = STALL_MS_MAX
) -> AsyncIterator[Session]:
    """A session with its canary, which is judged when the block has ended."""
    session = Session(server, findings_max, stall_ms_max)
    canary = session._canary
    await session.begin()
    running = asyncio.ensure_future(canary.run())
    try:
        yield session
        await session.end()
    finally:
        session.release()
        await session.player.wait_closed()
        canary.stop()
        await asyncio.wait([running], timeout=120)
        if not running.done():
            running.cancel()
            canary.problems.append("the canary did not come to an end")
        session.measured.canary_requests = canary.asker.requests
        session.measured.canary_slowest_ms = canary.asker.slowest_ms
        session.findings += [Finding(problem) for problem in canary.problems]


def _too_long(turn: Turn) -> bool:
    """For one request."""
    factor = busy_factor()
    return turn.cpu_ms > TURN_CPU_MS_MAX * factor or turn.process_ms > STALL_MS_MAX * factor


def tell(session: Session, replay: Callable[[Case], str] | None = None) -> None:
    """Fail a test that has found something, with the bytes and with how to replay them."""
    lines = [str(session.measured)]
    for finding in session.findings:
        lines.append(f"FOUND {finding}")
        if replay is not None:
            lines += [f"Replay: {replay(case)}" for case in finding.cases[:3]]
    print("\n".join(lines))
    if session.findings:
        pytest.fail("\n".join(lines), pytrace=False)

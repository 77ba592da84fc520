"""The network between nodes, and between nodes and the log's servers. Messages take time, get lost, arrive twice, or
arrive after their sender has given up.

A message in transit belongs to no life: a node that dies takes back nothing that it has sent.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from batonq.log.backend import Leaderless, Unreachable
from sim.loop import SimLoop, current_life

SERVER = "log"  # the server of the streams and the leases
KEPT_SHARE = 0.3  # of messages on a cut link, arrive when the link is mended

Value = TypeVar("Value")


@dataclass(slots=True)
class Weather:
    """What the network currently does to messages."""

    delay_s: float = 0.001  # on average
    lost: float = 0.0  # share that never arrives
    twice: float = 0.0  # share that arrives a second time, later
    late: float = 0.0  # share that takes `late_s`
    late_s: float = 3.0


FAIR = Weather()


class Network:
    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.weather = FAIR
        self.random = random
        self.cut: set[tuple[str, str]] = set()  # from, to
        self.outside = contextvars.copy_context()
        self._kept: list[tuple[str, str, Callable[[], None]]] = []
        self._silences = 0

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> bool:
        """Send one message one way. Returns False when it is lost, which its sender cannot know."""
        life = current_life()
        if life is not None and not life.alive:
            return False
        if self.loses():
            return False
        self._later(source, target, deliver)
        weather = self.weather
        if weather.twice and self.random.random() < weather.twice:
            self._later(source, target, deliver)
        return True

    def loses(self) -> bool:
        """Whether the weather loses one message."""
        return bool(self.weather.lost) and self.random.random() < self.weather.lost

    def delay_s(self) -> float:
        """How long one message takes."""
        weather = self.weather
        delay_s = self.random.expovariate(1.0) * weather.delay_s
        if weather.late and self.random.random() < weather.late:
            delay_s += self.random.random() * weather.late_s
        return delay_s

    def connected(self, one: str, other: str) -> bool:
        """Whether messages pass in both directions."""
        return (one, other) not in self.cut and (other, one) not in self.cut

    def mend(self, *links: tuple[str, str]) -> None:
        """Restore links, and deliver some of the messages sent meanwhile."""
        self.cut.difference_update(links)
        kept, self._kept = self._kept, []
        for source, target, deliver in kept:
            if (source, target) in self.cut:
                self._kept.append((source, target, deliver))
            else:
                self._later(source, target, deliver)

    def _later(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        self.loop.call_later(self.delay_s(), self._arrive, source, target, deliver, context=self.outside)

    def _arrive(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if (source, target) not in self.cut:
            deliver()
        else:
            self.keep(source, target, deliver)

    def keep(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """A message on a cut link arrives when the link is mended, or never."""
        if self.random.random() < KEPT_SHARE:
            self._kept.append((source, target, deliver))

    async def ask_server(self, name: str, question: Callable[[], Value], timeout_s: float) -> Value:
        """Send the servers a request and return the answer. Raises Unreachable: it may be done already, or later."""
        answer: asyncio.Future[Value] = self.loop.create_future()

        def ask() -> None:
            try:
                value = question()
            except Exception as problem:
                self.send(SERVER, name, lambda problem=problem: _refuse(answer, problem))  # type: ignore[misc]
            else:
                self.send(SERVER, name, lambda: _settle(answer, value))

        self.send(name, SERVER, ask)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self._silences += 1  # every second time one server is up and reports that there is no leader
            raise (Unreachable, Leaderless)[self._silences % 2]("the servers do not answer") from None


def _settle(answer: asyncio.Future[Value], value: Value) -> None:
    if not answer.done():
        answer.set_result(value)


def _refuse(answer: asyncio.Future[Value], problem: Exception) -> None:
    if not answer.done():
        answer.set_exception(problem)
        answer.exception()  # marks it as retrieved: the caller may be dead by now

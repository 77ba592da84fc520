"""The state that all sections share: servers, report, and how rounds are run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from bench import bodies
from bench.clients import BenchError, Flow, Place, drive, drive_one
from bench.flows import Prepared, Tally, Work, consume_flow, greeted, send_flow
from bench.lab import Lab
from bench.machine import CpuTimes
from bench.report import Report, Sample
from bench.servers import Servers

STEAL_PERCENT_MAX = 10.0


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)


@dataclass(slots=True)
class Context:
    servers: Servers
    report: Report
    quick: bool
    rounds: int
    on_cluster: bool = False  # scenarios run on a cluster
    deep: dict[str, Any] = field(default_factory=dict)  # by build: a deep backlog, see sections/backlog.py
    deep_users: int = 0  # how many sections still need it
    _lab: Lab | None = None

    @property
    def lab(self) -> Lab:
        """Histories and lakes, created when the first section needs them."""
        if self._lab is None:
            self._lab = Lab(self.servers.directory / "lab")
        return self._lab

    def close(self) -> None:
        if self._lab is not None:
            self._lab.close()

    def release_deep(self) -> None:
        """One section less needs the deep backlogs; the last one discards them."""
        self.deep_users -= 1
        if self.deep_users <= 0:
            for filled in self.deep.values():
                filled.server.discard()
            self.deep.clear()

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def interleave(self, contestants: list[C], measure: Callable[[C], Sample]) -> dict[str, list[Sample]]:
        """Run each contestant once per round, in rotating order, after a warm-up round.

        A round in which other guests of the host took much of the CPU is repeated for all contestants, as long as there
        are no more such rounds than good ones.
        """
        samples: dict[str, list[Sample]] = {server.name: [] for server in contestants}
        for server in contestants:
            measure(server)
        spare = self.rounds
        number = 0
        while number < self.rounds:
            turn = number % len(contestants)
            taken = {server.name: measure(server) for server in contestants[turn:] + contestants[:turn]}
            steal = max(sample.get("steal %", 0.0) for sample in taken.values())
            if steal > STEAL_PERCENT_MAX and spare:
                spare -= 1
                self.report.note(f"a round with {steal:.0f} % steal is run again")
                continue
            number += 1
            for name, sample in taken.items():
                samples[name].append(sample)
        return samples


def run_flows(work: Work, make: Callable[[], Flow], connections: int, place: Place | None = None) -> float:
    """The same flow on each connection, to `place` or to the work's port. Returns the elapsed seconds."""
    place = work.port if place is None else place
    hello = getattr(work, "hello", None)
    flows = [make() if hello is None else greeted(hello, make()) for _ in range(connections)]
    if connections == 1:
        return drive_one(place, work.complete, flows[0])
    return drive(place, work.complete, flows)


class Metered(Protocol):
    def cpu_us(self) -> float:
        """The server's CPU time so far."""


class Meter:
    """Server CPU, client CPU and steal during an interval."""

    def __init__(self, server: Metered) -> None:
        self._server = server
        self._cpu_us = server.cpu_us()
        self._client_s = time.process_time()
        self._times = CpuTimes.now()

    def sample(self, messages: int, seconds: float) -> Sample:
        steal = CpuTimes.now().steal_percent_since(self._times)
        return {
            "messages/s": messages / seconds,
            "server µs/message": (self._server.cpu_us() - self._cpu_us) / messages,
            "client µs/message": (time.process_time() - self._client_s) * 1e6 / messages,
            "steal %": steal,
        }


def supply(work: Work, texts: list[str], messages: int, batch: int = 10) -> Iterator[Prepared]:
    """Batches from a few prepared ones, until `messages` are sent."""
    prepared = [work.prepare(some) for some in bodies.batches(texts, batch)]
    sent = 0
    for one in itertools.cycle(prepared):
        if sent >= messages:
            return
        sent += one.messages
        yield one


def send_all(work: Work, batches: Iterator[Prepared], connections: int) -> tuple[int, float]:
    tally = Tally()
    seconds = run_flows(work, lambda: send_flow(work, batches, tally), connections)
    return tally.sent, seconds


def consume_all(work: Work, messages: int, connections: int, batch: int = 10) -> float:
    tally = Tally(target=messages)
    seconds = run_flows(work, lambda: consume_flow(work, tally, batch), connections)
    if tally.deleted < messages:
        raise BenchError(f"only {tally.deleted} of {messages} messages came back")
    return seconds

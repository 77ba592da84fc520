"""Calls between nodes, as over HTTP: connections that are kept, refused or broken, and answers that get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from batonq.errors import BatonError
from batonq.node import wire
from batonq.node.cluster.peers import CONNECT_S, PREFIX, NoAnswer, NotSent
from batonq.sim.cluster.network import Network
from batonq.sim.loop import Life

if TYPE_CHECKING:
    from batonq.sim.cluster.machine import ClusterMachine

SCHEME = "http://"
RESET_SHARE = 0.5  # of lost messages are noticed, because the connection breaks


class SimPeers:
    """See peers.Asking. A connection is to one life of a node."""

    def __init__(self, network: Network, name: str, machines: Mapping[str, ClusterMachine]) -> None:
        self._network = network
        self._name = name
        self._machines = machines
        self._lines: dict[str, Life] = {}

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        machine = self._machines[address.removeprefix(SCHEME)]
        line = self._lines.get(machine.name)
        if line is None or not line.alive:
            line = await self._connect(machine)
        request = Request(self._network, self._name, machine, line, (path.removeprefix(PREFIX), call, body))
        try:
            async with asyncio.timeout(timeout_s):
                return await request.answer
        except TimeoutError:
            self._lines.pop(machine.name, None)
            raise NoAnswer(f"{address} did not answer") from None
        except NoAnswer:
            self._lines.pop(machine.name, None)
            raise
        finally:
            request.give_up()

    async def _connect(self, machine: ClusterMachine) -> Life:
        network = self._network
        if not network.connected(self._name, machine.name):
            await asyncio.sleep(CONNECT_S)
            raise NotSent(f"{machine.name} cannot be reached")
        await asyncio.sleep(network.weather.delay_s)
        if not machine.life.alive or machine.served is None:
            raise NotSent(f"{machine.name} refuses connections")
        self._lines[machine.name] = machine.life
        return machine.life

    def close(self) -> None:
        self._lines.clear()


class Request:
    """One request on its way, at work and back."""

    def __init__(
        self, network: Network, name: str, machine: ClusterMachine, line: Life, what: tuple[str, str, bytes]
    ) -> None:
        self.answer: asyncio.Future[bytes] = network.loop.create_future()
        self._network = network
        self._name = name
        self._machine = machine
        self._line = line
        self._what = what
        self._tasks: list[asyncio.Task[bytes]] = []
        self._send(name, machine.name, self._arrive)

    def _send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        network = self._network
        if not network.send(source, target, deliver) and network.random.random() < RESET_SHARE:
            network.loop.call_later(network.weather.delay_s, self._reset, context=network.outside)

    def _reset(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(NoAnswer(f"the connection to {self._machine.name} broke"))
            self.answer.exception()  # whoever asked may be dead by now

    def _arrive(self) -> None:
        machine, life = self._machine, self._line
        if not life.alive or machine.served is None:
            self._reset()
            return
        path, call, body = self._what
        handling = machine.served.answering.handle(path, call, body)
        task = self._network.loop.create_task(handling, context=life.context)
        self._tasks.append(task)
        machine.asked(self._reset)
        task.add_done_callback(self._handled, context=self._network.outside)

    def _handled(self, task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            return
        problem = task.exception()
        if not self._line.alive:
            return
        if problem is None:
            answer = task.result()
            self._send(self._machine.name, self._name, lambda: self._settle(answer))
            return
        if not isinstance(problem, BatonError):
            self._machine.wrong(problem)
            problem = BatonError("the node failed")
        told = wire.decode_problem(wire.encode_problem(problem))
        self._send(self._machine.name, self._name, lambda: self._refuse(told))

    def _settle(self, answer: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _refuse(self, problem: BatonError) -> None:
        if not self.answer.done():
            self.answer.set_exception(problem)
            self.answer.exception()

    def give_up(self) -> None:
        """Whoever asked has what it wanted, or has gone: then the connection is closed, if that can be told."""
        if self.answer.done() and not self.answer.cancelled():
            return
        if self.answer.get_loop().is_closed():
            return  # the run is over, and this was left of it
        if not self.answer.done():
            self.answer.cancel()
        self._network.send(self._name, self._machine.name, self._hang_up)

    def _hang_up(self) -> None:
        for task in self._tasks:
            if self._line.alive and not task.done():
                self._line.context.run(task.cancel)

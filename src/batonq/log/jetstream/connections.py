"""Connections to NATS: one to any of the servers, and one to each of them.

A request over the first is forwarded to the server that can answer it, a stream's leader or the one that has a
consumer, and so is each frame. If the name of that server is known, its direct connection is used. This only saves
work: if there is no direct connection, or something was not answered, the first one is used.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from nats.js import JetStreamContext

from batonq.errors import BatonError
from batonq.log.cancellation import end
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.client import LongClient
from batonq.log.jetstream.login import connect

CONNECT_S = 10.0
AGAIN_S = 5.0
DOUBTED_S = 30.0  # how long a direct connection that gave no answer is not used


class Line(NamedTuple):
    client: LongClient
    context: JetStreamContext


class Lines:
    """Wraps the existing connection; the others follow in the background, if the URL names the servers."""

    def __init__(self, address: NatsAddress, client: LongClient, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._straight: list[Line] = []
        self._doubted_s: dict[Line, float] = {}  # when a request was not answered
        self._opening: list[asyncio.Task[None]] = []
        self.home = self._line(client)

    def open(self) -> None:
        """Start to connect to each server."""
        servers = self._address.servers
        if len(servers) > 1:
            self._opening = [self._loop.create_task(self._open(server)) for server in servers]

    async def _open(self, server: str) -> None:
        address = replace(self._address, servers=(server,))
        while True:
            try:
                self._straight.append(self._line(await connect(address, CONNECT_S, stays=True)))
                return
            except BatonError:  # whatever it is, the other connection gets the error as well and reports it
                await asyncio.sleep(AGAIN_S)

    def _line(self, client: LongClient) -> Line:
        return Line(client, client.jetstream(timeout=self._timeout_s))

    def to(self, server: str) -> Line:
        """The connection to a server; the general one if its name is empty or there is no direct one."""
        if _is_at(self.home, server):
            return self.home
        ways = (line for line in self._straight if _is_at(line, server) and not self._is_doubted(line))
        return next(ways, self.home)

    def doubt(self, line: Line) -> None:
        """A request there was not answered."""
        self._doubted_s[line] = self._loop.time()

    def _is_doubted(self, line: Line) -> bool:
        return self._loop.time() - self._doubted_s.get(line, float("-inf")) < DOUBTED_S

    async def close(self) -> None:
        await end(*self._opening)
        for line in (*self._straight, self.home):
            await line.client.close()


def _is_at(line: Line, server: str) -> bool:
    return line.client.is_connected and line.client.server == server

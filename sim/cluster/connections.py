"""Connections between nodes, like TCP: bytes in order, in both directions, until one side or the network ends it.

The loop of a simulated cluster creates them where a real loop would open sockets. Both ends are therefore what
production runs: `asyncio.open_connection` in peers.py, and the HTTP server of the other node. A connection belongs to
one life of each node. It can break at every point of a call, see `LineFault`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from sim.cluster.network import Network
from sim.loop import Life, SimLoop, current_life

LOOPBACK = "127.0.0.1"  # nodes without a secret trust loopback
RESET_SHARE = 0.5  # of losses, end the connection at once
STALL_SHARE = 0.25  # of losses, stall the connection for good; the rest is retransmitted
AGAIN_S = 1.0
PATH_BYTES_MAX = 100
DONE = b"HTTP/1.1 200"
CALM_S = 3.0  # after a node died with an answer, during which another takes its shards
DEATH_TOLD_S = 0.4  # delay of the notice for half of the deaths: the next process may be up by then
SILENT_SHARE = 0.2  # of deaths that the other end notices only when it writes


class LineFault(Enum):
    """Where in a call its connection breaks."""

    BEFORE = "reset before the request arrives"
    CLOSED = "closed as if it had been idle for too long"
    AFTER = "reset once the request has arrived"
    UNANSWERED = "closed between commit and answer"
    HALF = "closed in the middle of the answer"
    DEATH = "the other node dies between commit and answer"


FAULTS: tuple[LineFault, ...] = (*LineFault, LineFault.DEATH)  # the worst one twice as often
OTHERS_SHARE = 0.25  # other calls than sends break less often: they are many, and most can be retried


class Flow:
    """One direction of a connection. Data arrives in order, or not at all."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._under_way: deque[Callable[[], None]] = deque()
        self._due = 0
        self._stalled = False
        self._last_s = 0.0
        self.ended = False  # nothing arrives any more

    def send(self, arrive: Callable[[], None], later_s: float = 0.0) -> None:
        if self.ended:
            return
        network = self._network
        self._last_s = max(self._last_s, network.loop.time() + network.delay_s() + later_s)
        self._under_way.append(arrive)
        network.loop.call_at(self._last_s, self._arrive, context=network.outside)

    def end(self) -> None:
        self.ended = True
        self._under_way.clear()

    def _arrive(self) -> None:
        self._due += 1
        self._deliver()

    def _go_on(self) -> None:
        self._stalled = False
        self._deliver()

    def _deliver(self) -> None:
        while self._due and self._under_way and not self._stalled:
            if (self._source, self._target) in self._network.cut:
                self._stalled = True  # until the link is mended, if at all
                self._network.keep(self._source, self._target, self._go_on)
                return
            self._due -= 1
            self._under_way.popleft()()


class End(asyncio.Transport):
    """One side of a connection: the counterpart of asyncio's transport for a socket."""

    def __init__(self, line: Line, life: Life, number: int) -> None:
        super().__init__({"peername": (LOOPBACK, number)})
        self.life = life
        self.writes = 0
        self.out: Flow
        self.other: End
        self._line = line
        self._loop = line.network.loop
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._reading = True
        self._unread: deque[Callable[[], None]] = deque()  # while reading is paused

    def begin(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # --- what the protocol does -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        self.writes += 1
        self._line.written(self, bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self.out.send(self.other.told_eof)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self.out.send(self.other.told_eof)
            self.lose(None)

    def abort(self) -> None:
        if not self._closing:
            self.out.send(self.other.told_reset)
            self.lose(None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        while self._unread and self._reading and not self._closing:
            self._unread.popleft()()

    def is_reading(self) -> bool:
        return self._reading

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    # --- what the network does ------------------------------------------------------------------

    def told(self, data: bytes) -> None:
        if self._closing:
            self._refuse()
        else:
            self._run(lambda: self._data_received(data))

    def told_eof(self) -> None:
        self._run(self._eof_received)

    def told_reset(self) -> None:
        self._run(lambda: self.lose(ConnectionResetError("the connection was reset")))

    def _refuse(self) -> None:
        """The process is gone: the operating system answers writes with a reset."""
        self.out.ended = False
        self.out.send(self.other.told_reset)

    def _run(self, work: Callable[[], None]) -> None:
        """Run work as part of the life that this end belongs to, while that lives."""
        self._loop.call_soon(self._happen, work, context=self.life.context)

    def _happen(self, work: Callable[[], None]) -> None:
        if self._reading or self._closing:
            work()
        else:
            self._unread.append(work)

    def _data_received(self, data: bytes) -> None:
        if not self._closing and self._protocol is not None:
            self._protocol.data_received(data)

    def _eof_received(self) -> None:
        if not self._closing and self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def lose(self, problem: Exception | None) -> None:
        """End the connection on this side. The protocol is told at the loop's next turn."""
        if self._closing:
            return
        self._closing = True
        self._unread.clear()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, problem, context=self.life.context)

    def die(self) -> None:
        """End together with the life. Nothing runs here any more; the other end may or may not notice."""
        if self._closing:
            return
        self._closing = True
        random = self._line.network.random
        if random.random() >= SILENT_SHARE:
            tell = random.choice((self.other.told_eof, self.other.told_reset))
            self.out.send(tell, random.choice((0.0, DEATH_TOLD_S)))


class Line:
    """A connection: `near` is the end that opened it and sends calls, `far` is the end that answers."""

    def __init__(self, lines: Lines, source: str, target: str, lives: tuple[Life, Life]) -> None:
        self.network = lines.network
        self._lines = lines
        self._target = target
        self._fault: LineFault | None = None
        self.near, self.far = (End(self, life, number) for number, life in enumerate(lives))
        self.near.out, self.far.out = Flow(self.network, source, target), Flow(self.network, target, source)
        self.near.other, self.far.other = self.far, self.near

    def written(self, end: End, data: bytes) -> None:
        if end is self.near:
            self._asked(data)
        else:
            self._answered(data)

    def _asked(self, data: bytes) -> None:
        path = data[:PATH_BYTES_MAX].split(b" ", 2)[1]
        fault = self._fault = self._lines.next_fault(path.endswith(b"/submit"))
        if fault is LineFault.BEFORE:
            self._reset()
        elif fault is LineFault.CLOSED:
            self.near.out.end()
            self._close_far()
        else:
            self._send(self.near, data)
            if fault is LineFault.AFTER:
                self.near.out.send(self._reset)

    def _answered(self, data: bytes) -> None:
        fault, self._fault = self._fault, None
        if not data.startswith(DONE):
            fault = None  # nothing was committed
        if fault is LineFault.UNANSWERED:
            self._close_far()
        elif fault is LineFault.HALF:
            self._send(self.far, data[: len(data) // 2])
            self._close_far()
        elif fault is LineFault.DEATH:
            self._lines.let_die(self._target)
        else:
            self._send(self.far, data)

    def _send(self, end: End, data: bytes) -> None:
        """Send data, which the network may lose, depending on the weather."""
        network, other = self.network, end.other
        if not network.loses():
            end.out.send(lambda: other.told(data))
            return
        fate = network.random.random()
        if fate < RESET_SHARE:
            self._reset()
        elif fate < RESET_SHARE + STALL_SHARE:
            end.out.end()
        else:
            end.out.send(lambda: other.told(data), AGAIN_S)

    def _close_far(self) -> None:
        self._run_at(self.far, self.far.close)

    def _reset(self) -> None:
        """A reset by the network: both ends notice."""
        for end in (self.near, self.far):
            end.out.end()
            end.told_reset()

    def _run_at(self, end: End, work: Callable[[], None]) -> None:
        self.network.loop.call_soon(work, context=end.life.context)


class Listener:
    """Accepts connections for a node: stands for asyncio's Server and its only socket."""

    def __init__(self, lines: Lines, host: str, port: int, life: Life, factory: Callable[[], asyncio.Protocol]) -> None:
        self.life = life
        self.factory = factory
        self.sockets = (self,)
        self._lines = lines
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._lines.forget(self)

    async def wait_closed(self) -> None:
        pass


class Lines:
    """All connections of a cluster. A share of `fault_share` of the sends meets a LineFault, and a smaller share of
    other calls. `kill` ends a node at once.
    """

    def __init__(self, network: Network, kill: Callable[[str], None]) -> None:
        self.network = network
        self.fault_share = 0.0
        self._kill = kill
        self._calm_until_s = 0.0
        self._listeners: dict[str, Listener] = {}
        self._open: dict[Life, list[Line]] = {}

    def next_fault(self, submits: bool) -> LineFault | None:
        random, share = self.network.random, self.fault_share * (1.0 if submits else OTHERS_SHARE)
        if not share or self.network.loop.time() < self._calm_until_s or random.random() >= share:
            return None
        return random.choice(FAULTS)

    def let_die(self, name: str) -> None:
        """Kill a node, and leave the others' reaction undisturbed for a while."""
        self._calm_until_s = self.network.loop.time() + CALM_S
        self._kill(name)

    def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Listener:
        life = current_life()
        assert life is not None
        listener = self._listeners[host] = Listener(self, host, port, life, factory)
        return listener

    def forget(self, listener: Listener) -> None:
        for host, each in list(self._listeners.items()):
            if each is listener:
                del self._listeners[host]

    async def connect(self, host: str, factory: Callable[[], asyncio.Protocol]) -> tuple[End, asyncio.Protocol]:
        """Connect to a node. Raises ConnectionRefusedError. Never returns when the node is unreachable."""
        network, life = self.network, current_life()
        assert life is not None
        source = life.name.partition(" ")[0]
        await asyncio.sleep(network.weather.delay_s + (AGAIN_S if network.loses() else 0.0))
        if not network.connected(source, host):
            await network.loop.create_future()
        listener = self._listeners.get(host)
        if listener is None or not listener.life.alive:
            raise ConnectionRefusedError(f"{host} refuses connections")
        line = Line(self, source, host, (life, listener.life))
        for each in (life, listener.life):
            lines = self._open[each] = [one for one in self._open.get(each, ()) if not one.near.is_closing()]
            lines.append(line)
        network.loop.call_soon(lambda: line.far.begin(listener.factory()), context=listener.life.context)
        protocol = factory()
        line.near.begin(protocol)
        return line.near, protocol

    def end_life(self, life: Life) -> None:
        """A node has died: end all of its connections."""
        for line in self._open.pop(life, ()):
            for end in (line.near, line.far):
                if end.life is life:
                    end.die()


class ClusterLoop(SimLoop):
    """Opens and accepts connections in `lines`, where the only addresses are names of nodes."""

    lines: Lines

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[End, asyncio.Protocol]:
        return await self.lines.connect(host, protocol_factory)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> Listener:
        return self.lines.listen(host, port, protocol_factory)

"""Answers other nodes: about the shards that this node serves, the catalog that it hosts, and itself.

Answers are remembered for some seconds under the name of the call, so that a call whose answer was lost can be repeated
without being executed again. The name includes the epoch of the owner that is meant: no other owner executes the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from batonq.core.commands import Receive
from batonq.errors import BatonError, InvalidInput, NotFound, NotOwner, Unavailable
from batonq.log.layout import CATALOG_SHARD
from batonq.node import events
from batonq.node.cluster.admission import HELLO, Hello
from batonq.node.cluster.catalog import SharedCatalog
from batonq.node.cluster.ownership import OwnershipLoop
from batonq.node.messages.received import Delivery, Received
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.routing import wire
from batonq.node.routing.ports import ShardPort
from batonq.node.routing.submission import Waiting, client_error
from batonq.node.tasks import Tasks

REMEMBERED_S = 20.0
REMEMBERED_MAX = 20_000
REMEMBERED_BYTES_MAX = 64 << 20
NAMES_MAX = 500_000  # of calls whose answers took too much memory: more than a node answers in REMEMBERED_S
SUBMIT = f"/{wire.SUBMIT}"
POLL = f"/{wire.POLL}"
MATCHING = "/receive_matching"
HINT = "/hint"
CANCELLED = (POLL, MATCHING)  # calls whose owner is told when no client waits for them any more
DIGITS_MAX = 18
Leases = list[tuple[int, list[tuple[int, int, int]]]]  # claims on messages of a queue
_take = msgspec.msgpack.Decoder(tuple[int, int])
_name = msgspec.msgpack.Decoder(str)
_move = msgspec.msgpack.Decoder(tuple[int, str])


def call_name(call: str, epoch: int) -> str:
    return f"{call}-{epoch}"


def _meant_epoch(name: str) -> int:
    """The epoch of the owner that a call is meant for; 0: the name has none."""
    return _number(name.rpartition("-")[2]) or 0 if "-" in name else 0


def _number(text: str) -> int | None:
    """Parse a number that a sender wrote; None: it is not a number, or too long."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


Answer = bytes | Exception
# Called with the answer. Returns True: the caller has it; False: the caller has disconnected; None: `confirm` or
# `abandon` follows.
Tell = Callable[[Answer], bool | None]


@dataclass(slots=True, eq=False)
class Call:
    path: str
    body: bytes = b""  # the request, for as long as it may have to be undone
    answer: Answer | None = None  # None: the call is still running
    work: Waiting | None = None  # stops the running call
    waiting: list[Asked] = field(default_factory=list)  # requests that wait for its answer
    told: bool = False  # some request got the answer
    instead: bytes = b""  # the answer from now on

    def size(self) -> int:
        return len(self.answer) if isinstance(self.answer, bytes) else 0


class Asked(NamedTuple):
    """A request that makes a call, or repeats it."""

    name: str
    call: Call
    tell: Tell


class Memory:
    """Remembers the last answers, limited in number, age and bytes. Calls that still run are not counted.

    When an answer is evicted before its time, the call's name stays, because the call must not be executed again. When
    there are too many such names, no new call is executed until the oldest name expires.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._names: dict[str, float] = {}  # names of evicted answers, and when their calls ended
        self._ends: dict[str, float] = {}  # when each call ended, in order of ending
        self._bytes = 0

    def find(self, name: str) -> Call | None:
        return self._calls.get(name)

    def has_lost(self, name: str) -> bool:
        """Whether the call was executed and its answer was evicted."""
        return name in self._names

    def is_full(self) -> bool:
        """Whether a further call could later not be told apart from a repetition."""
        if len(self._names) >= NAMES_MAX:
            self._shrink()
        return len(self._names) >= NAMES_MAX

    def add(self, name: str, call: Call) -> None:
        self._calls[name] = call
        self._shrink()

    def forget(self, name: str) -> None:
        call = self._calls.pop(name, None)
        if call is not None and self._ends.pop(name, None) is not None:
            self._bytes -= call.size()

    def end(self, name: str, call: Call) -> None:
        """A call has its answer."""
        if self._calls.get(name) is not call:
            return
        if isinstance(call.answer, NotOwner):
            del self._calls[name]  # the call was not executed, and may be next time
            return
        self._ends[name] = asyncio.get_running_loop().time()
        self._bytes += call.size()

    def _shrink(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._ends:
            oldest, ended_s = next(iter(self._ends.items()))
            over = len(self._ends) > REMEMBERED_MAX or self._bytes > REMEMBERED_BYTES_MAX
            young = now_s - ended_s <= REMEMBERED_S
            if young and not over:
                break
            self.forget(oldest)
            if young:
                self._names[oldest] = ended_s
        while self._names:
            oldest, ended_s = next(iter(self._names.items()))
            if now_s - ended_s <= REMEMBERED_S:
                return
            del self._names[oldest]


def _without_leases(call: Call, answer: bytes) -> tuple[list[Any], Leases]:
    """Split the outcomes of a call from the leases of its receives.

    A receive with an attempt id keeps its leases: the client asks for the same leases again.
    """
    outcomes = wire.decode_outcomes(answer)
    leases: Leases = []
    for at, (command, outcome) in enumerate(zip(wire.decode_commands(call.body), outcomes, strict=True)):
        if isinstance(outcome, Received) and isinstance(command, Receive) and outcome and not command.attempt:
            leases.append((command.queue, outcome.leases.claims()))
            outcomes[at] = Received(outcome.shard)
    return outcomes, leases


def _unknown(path: str) -> NotFound:
    return NotFound(f"Unknown internal path {path!r}: the calling node may run a newer release.")


class TaskWork:
    """A call that runs in a task."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[bytes]) -> None:
        self._task = task

    def abandon(self) -> None:
        self._task.cancel()


class Serving(Protocol):
    """A node or process with shards that others may ask for."""

    @property
    def catalog(self) -> SharedCatalog: ...
    def port_here(self, shard: int) -> ShardPort | None: ...
    def epoch_here(self, shard: int) -> int: ...
    @property
    def everywhere(self) -> Everywhere: ...
    def status(self) -> dict[str, Any]: ...
    async def give_back(self, found: Sequence[tuple[int, Delivery]]) -> None: ...


class Served(Serving, Protocol):
    """The parts of a cluster's node that other nodes may ask for."""

    @property
    def ownership_loop(self) -> OwnershipLoop: ...
    @property
    def opened(self) -> bool: ...
    def hello(self) -> Hello: ...


class ShardAnswering:
    """Answers calls about shards and the catalog."""

    def __init__(self, node: Serving) -> None:
        self._node = node
        self._memory = Memory()
        self._undoing = Tasks()

    async def handle(self, path: str, name: str, body: bytes) -> bytes:
        """The answer to a request below `/internal/`, by the name of the call if it has one. Raises BatonError."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        asked = self.begin(path, name, body, tell)
        try:
            answer = await answered
        except asyncio.CancelledError:
            self.abandon(asked)
            raise
        self._confirm(asked)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin(self, path: str, name: str, body: bytes, tell: Tell) -> Asked:
        """Start to answer a request like `handle`, without a task. `tell` gets the answer or an error, now or later."""
        call = self._memory.find(name) if name else None
        if call is not None:
            asked = Asked(name, call, tell)
            call.waiting.append(asked)
            if call.answer is not None:
                self._answer(asked, call.instead or call.answer)
            return asked
        call = Call(path)
        asked = Asked(name, call, tell)
        call.waiting.append(asked)
        if self._memory.has_lost(name):
            self._answer(
                asked,
                Unavailable("The request may or may not have been executed: its answer is no longer stored. Retry."),
            )
        elif name and self._memory.is_full():
            self._answer(
                asked,
                Unavailable(
                    f"The request was not executed: this node received more than {NAMES_MAX} requests in "
                    f"{REMEMBERED_S:g} s and could not tell whether this one was a repetition. Retry later."
                ),
            )
        else:
            if name:
                self._memory.add(name, call)
            self._start(name, call, body)
        return asked

    def abandon(self, asked: Asked) -> None:
        """The caller has disconnected before it was told."""
        call = asked.call
        if asked in call.waiting:
            call.waiting.remove(asked)
            if not call.waiting:  # else another request repeats the call, and wants its answer
                self._give_up(asked.name, call)

    def _answer(self, asked: Asked, answer: Answer) -> None:
        is_told: bool | None = False
        try:
            is_told = asked.tell(answer)
        except Exception:
            events.logger.exception("a response could not be written")
        if is_told:
            self._confirm(asked)
        elif is_told is not None:
            self.abandon(asked)

    def _confirm(self, asked: Asked) -> None:
        """The caller has the answer."""
        call = asked.call
        call.waiting.remove(asked)
        call.told = True
        if call.path.endswith(SUBMIT):
            call.body = b""

    # --- calls in progress

    def _start(self, name: str, call: Call, body: bytes) -> None:
        if not call.path.endswith((SUBMIT, POLL)):
            task = asyncio.get_running_loop().create_task(self._run(call.path, name, body))
            call.work = TaskWork(task)
            task.add_done_callback(partial(self._ran, name, call))
            return
        call.body = body
        try:
            port = self._port_of(call.path, name)
            work = wire.Execution(port, wire.decode_commands(body), partial(self._executed, name, call))
            if call.answer is None:
                call.work = work
        except Exception as problem:
            self._end(name, call, problem)

    def _executed(self, name: str, call: Call, outcomes: list[Any]) -> None:
        answer: Answer
        try:
            answer = wire.encode_outcomes(outcomes)
        except Exception as problem:
            wire.give_back_all(outcomes)
            answer = problem
        self._end(name, call, answer)

    def _ran(self, name: str, call: Call, task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            if call.answer is None:
                self._memory.forget(name)  # the call was not executed, and may be next time
                self._end(name, call, Unavailable("The request was cancelled. Retry."))
            return
        problem = task.exception()
        answer: Answer
        if problem is None:
            answer = task.result()
        else:
            answer = problem if isinstance(problem, Exception) else client_error(problem)
        if call.answer is None:
            self._end(name, call, answer)
        elif isinstance(answer, bytes):
            self._undo(call, answer)  # the caller gave up at the same time

    def _end(self, name: str, call: Call, answer: Answer) -> None:
        if call.answer is not None:
            return
        call.answer = answer
        call.work = None
        self._memory.end(name, call)
        is_wanted = bool(call.waiting)
        for asked in (*call.waiting,):
            self._answer(asked, answer)
        if not is_wanted:
            self._give_up(name, call)

    def _give_up(self, name: str, call: Call) -> None:
        """Handle a caller that disconnected. The call is still executed, but its received messages are given back."""
        if call.path.endswith(SUBMIT):
            self._undo_receives(call)
        elif call.path.endswith((*CANCELLED, HINT)):
            self._memory.forget(name)
            if isinstance(call.answer, bytes):
                self._undo(call, call.answer)
            elif call.work is not None:
                work = call.work
                self._end(name, call, Unavailable("The caller gave up the request."))
                work.abandon()

    def _undo(self, call: Call, answer: bytes) -> None:
        if call.path.endswith(MATCHING):
            self._undoing.spawn(self._node.give_back(wire.decode_answer(MATCHING[1:], answer)))
        elif call.path.endswith(POLL):
            self._undoing.spawn(self._give_back(call, _without_leases(call, answer)[1]))

    def _undo_receives(self, call: Call) -> None:
        """Undo the receives of a call that also did other things, when no caller is left that wants its answer.

        A caller that repeats the call is told that its receives were not executed. A caller that has repeated it
        meanwhile, or that got the answer, keeps the leases.
        """
        if call.waiting or call.told or call.instead or not isinstance(call.answer, bytes):
            return
        outcomes, leases = _without_leases(call, call.answer)
        if leases:
            call.instead = wire.encode_outcomes(outcomes)
            self._undoing.spawn(self._give_back(call, leases))

    async def _give_back(self, call: Call, leases: Leases) -> None:
        """Give leases back. Those that cannot be given back expire."""
        port = self._node.port_here(int(call.path.split("/")[1]))
        if port is not None:
            for queue, claims in leases:
                with suppress(BatonError):
                    await port.give_back(queue, claims)

    async def _run(self, path: str, name: str, body: bytes) -> bytes:
        match path.split("/"):
            case ["shards", _, operation]:
                return await wire.answer(self._port_of(path, name), operation, body)
            case ["catalog", command]:
                catalog = self._node.catalog
                if not catalog.owned:
                    raise NotOwner("This node does not own the catalog.")
                self._check_meant(CATALOG_SHARD, name)
                return await catalog.answer(command, body)
            case ["node", "read"]:
                return await self._node.everywhere.answer(body)
            case ["node", what]:
                return await self._own(what, body)
        raise _unknown(path)

    def _port_of(self, path: str, name: str) -> ShardPort:
        """The port of the shard that a path names."""
        match path.split("/"):
            case ["shards", text, _] if (number := _number(text)) is not None:
                port = self._node.port_here(number)
                if port is None:
                    raise NotOwner(f"This node does not own shard {number}.")
                self._check_meant(number, name)
                return port
        raise _unknown(path)

    def _check_meant(self, shard: int, name: str) -> None:
        meant, epoch = _meant_epoch(name), self._node.epoch_here(shard)
        if meant and meant != epoch:
            raise NotOwner(
                f"The request is for the owner with epoch {meant}, but this node owns the shard with epoch {epoch}."
            )

    async def _own(self, what: str, body: bytes) -> bytes:
        """Answer a question about the node itself."""
        raise NotImplementedError

    def _let_go(self, body: bytes) -> None:
        """Handle the notice that a caller no longer wants the answer to its call."""
        name = _name.decode(body)
        call = self._memory.find(name)
        if call is not None:
            self._give_up(name, call)


class Answering(ShardAnswering):
    def __init__(self, node: Served) -> None:
        super().__init__(node)
        self._served = node

    async def _run(self, path: str, name: str, body: bytes) -> bytes:
        if path == f"node/{HELLO}":
            return msgspec.msgpack.encode(self._served.hello())
        if not self._served.opened:
            raise NotOwner("This node is starting. Retry.")
        return await super()._run(path, name, body)

    async def _own(self, what: str, body: bytes) -> bytes:
        loop = self._served.ownership_loop
        try:
            if what == "status":
                await loop.others.look()
                return msgspec.msgpack.encode(self._node.status())
            if what == "take":
                await loop.take_now(*_take.decode(body))
            elif what == "move":
                await loop.move(*_move.decode(body))
            elif what == "drain":
                loop.leaves = True
                await loop.hand_over()
                if loop.serving():
                    raise Unavailable(
                        f"No other node can take shards right now, so {loop.node} keeps its own. It takes no new "
                        "ones. Retry when another node is ready."
                    )
            elif what == "undrain":
                loop.draining = loop.leaves = False
            elif what == "forget":
                await loop.others.forget(_name.decode(body))
            elif what == "give_up":
                self._let_go(body)
            else:
                raise NotFound(f"Unknown node command {what!r}.")
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None
        return msgspec.msgpack.encode(None)

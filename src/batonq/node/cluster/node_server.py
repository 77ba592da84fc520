"""What one node answers another: about shards that it serves, the catalog that it keeps, and itself.

Answers are remembered for some seconds by the name of the call, so that a call whose answer got lost can be made again
without being run again. The name says which owner is meant, by its epoch: no other one runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from batonq.core.commands import Receive
from batonq.errors import BatonError, InvalidInput, NotFound, NotOwner, Unavailable
from batonq.log.ending import heard
from batonq.log.layout import CATALOG_SHARD
from batonq.node.cluster.catalog import SharedCatalog
from batonq.node.cluster.ownership import OwnershipLoop
from batonq.node.messages.received import Delivery, Received
from batonq.node.routing import wire
from batonq.node.routing.ports import ShardPort

REMEMBERED_S = 20.0
REMEMBERED_MAX = 20_000
REMEMBERED_BYTES_MAX = 64 << 20
NAMES_MAX = 500_000  # of calls whose answers took too much room: more than a node answers in REMEMBERED_S
SUBMIT = f"/{wire.SUBMIT}"
POLL = f"/{wire.POLL}"
MATCHING = "/receive_matching"
CANCELLED = (POLL, MATCHING)  # calls that their owner is told of when nobody waits for them any more
DIGITS_MAX = 18
Leases = list[tuple[int, list[tuple[int, int, int]]]]  # claims on messages of a queue
_take = msgspec.msgpack.Decoder(tuple[int, int])
_name = msgspec.msgpack.Decoder(str)
_move = msgspec.msgpack.Decoder(tuple[int, str])


def call_name(call: str, epoch: int) -> str:
    return f"{call}-{epoch}"


def _meant_epoch(name: str) -> int:
    """Of the owner that a call is meant for; 0: it is not said."""
    return _number(name.rpartition("-")[2]) or 0 if "-" in name else 0


def _number(text: str) -> int | None:
    """What a sender wrote as a number; None: it is none, or none that there can be."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


@dataclass(slots=True, eq=False)
class Call:
    task: asyncio.Task[bytes]
    path: str
    body: bytes  # what was asked, as long as it may have to be undone
    waiting: int = 0  # requests that wait for its answer
    told: bool = False  # somebody was given the answer
    instead: bytes = b""  # what is answered from now on


class Memory:
    """The last answers: at most so many, so long, and so many bytes. Calls that still run are not counted.

    An answer that had to go before its time leaves the call's name: it must not be run again. When there are too many
    names of that kind, no other call is run until the oldest has had its time.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._names: dict[str, float] = {}  # of answers that had to go, and when their calls ended
        self._ends: dict[str, float] = {}  # when a call ended, the first to end first
        self._bytes = 0

    def find(self, name: str) -> Call | None:
        return self._calls.get(name)

    def has_lost(self, name: str) -> bool:
        """Whether a call was run whose answer is not here any more."""
        return name in self._names

    def is_full(self) -> bool:
        """Whether one more call could not be told from a repetition later."""
        if len(self._names) >= NAMES_MAX:
            self._shrink()
        return len(self._names) >= NAMES_MAX

    def add(self, name: str, call: Call) -> None:
        self._calls[name] = call
        call.task.add_done_callback(lambda _: self._ended(name))
        self._shrink()

    def forget(self, name: str) -> None:
        call = self._calls.pop(name, None)
        if call is not None and self._ends.pop(name, None) is not None:
            self._bytes -= _size(call.task)

    def _ended(self, name: str) -> None:
        call = self._calls.get(name)
        if call is None or call.task.cancelled() or isinstance(call.task.exception(), NotOwner):
            self._calls.pop(name, None)  # it was not run, and may be the next time
            return
        self._ends[name] = asyncio.get_running_loop().time()
        self._bytes += _size(call.task)

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


def _size(task: asyncio.Task[bytes]) -> int:
    return 0 if task.exception() is not None else len(task.result())


def _without_leases(call: Call) -> tuple[list[Any], Leases]:
    """The outcomes of a call without what its receives got, and that. A receive by attempt keeps it: whoever asked asks
    for the same leases again.
    """
    outcomes = wire.decode_outcomes(call.task.result())
    leases: Leases = []
    for at, (command, outcome) in enumerate(zip(wire.decode_commands(call.body), outcomes, strict=True)):
        if isinstance(outcome, Received) and isinstance(command, Receive) and outcome and not command.attempt:
            leases.append((command.queue, outcome.leases.claims()))
            outcomes[at] = Received(outcome.shard)
    return outcomes, leases


class Serving(Protocol):
    """What has shards that others may ask for."""

    @property
    def catalog(self) -> SharedCatalog: ...
    def port_here(self, shard: int) -> ShardPort | None: ...
    def epoch_here(self, shard: int) -> int: ...
    def status(self) -> dict[str, Any]: ...
    async def give_back(self, found: Sequence[tuple[int, Delivery]]) -> None: ...


class Served(Serving, Protocol):
    """The node of a cluster, as far as others may ask it."""

    @property
    def ownership_loop(self) -> OwnershipLoop: ...


class ShardAnswering:
    """The part that is about shards and the catalog."""

    def __init__(self, node: Serving) -> None:
        self._node = node
        self._memory = Memory()
        self._undoing: set[asyncio.Task[None]] = set()

    async def handle(self, path: str, name: str, body: bytes) -> bytes:
        """The answer to a request below `/internal/`, by the name of the call if it has one. Raises BatonError."""
        call = self._memory.find(name) if name else None
        if call is None:
            if self._memory.has_lost(name):
                raise Unavailable(
                    "The request may or may not have been executed: its answer is no longer stored. Retry."
                )
            if name and self._memory.is_full():
                raise Unavailable(
                    f"The request was not executed: this node received more than {NAMES_MAX} requests in "
                    f"{REMEMBERED_S:g} s and could not tell whether this one was a repetition. Retry later."
                )
            kept = body if path.endswith((SUBMIT, POLL)) else b""
            call = Call(asyncio.get_running_loop().create_task(self._run(path, name, body)), path, kept)
            call.task.add_done_callback(heard)
            if name:
                self._memory.add(name, call)
        call.waiting += 1
        try:
            answer = await asyncio.shield(call.task)
            call.told = True
            if path.endswith(SUBMIT):
                call.body = b""
            return call.instead or answer
        except asyncio.CancelledError:
            if call.waiting == 1:  # else somebody repeats the call, and wants its answer
                self._give_up(name, call)
            raise
        finally:
            call.waiting -= 1

    def _give_up(self, name: str, call: Call) -> None:
        """Whoever asked has gone. What was asked is done all the same, but nobody shall hold what a receive got."""
        if call.path.endswith(CANCELLED):
            self._memory.forget(name)
            self._spawn(self._undo(call))
        elif call.path.endswith("/hint"):
            self._memory.forget(name)
            call.task.cancel()
        elif call.path.endswith(SUBMIT):
            self._spawn(self._undo_receives(call))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    async def _undo(self, call: Call) -> None:
        call.task.cancel()
        await asyncio.wait((call.task,))
        if call.task.cancelled() or call.task.exception() is not None:
            return
        if call.path.endswith(MATCHING):
            await self._node.give_back(wire.decode_answer(MATCHING[1:], call.task.result()))
        else:
            await self._give_back(call, _without_leases(call)[1])

    async def _undo_receives(self, call: Call) -> None:
        """Of a call that did other things too. Whoever makes it again is told that its receives were not run; one who
        has done so meanwhile, or who was answered, keeps them.
        """
        await asyncio.wait((call.task,))
        if call.waiting or call.told or call.task.cancelled() or call.task.exception() is not None:
            return
        outcomes, leases = _without_leases(call)
        if leases:
            call.instead = wire.encode_outcomes(outcomes)
            await self._give_back(call, leases)

    async def _give_back(self, call: Call, leases: Leases) -> None:
        """Leases that cannot be given back run out."""
        port = self._node.port_here(int(call.path.split("/")[1]))
        if port is not None:
            for queue, claims in leases:
                with suppress(BatonError):
                    await port.give_back(queue, claims)

    async def _run(self, path: str, name: str, body: bytes) -> bytes:
        match path.split("/"):
            case ["shards", number, operation] if (shard := _number(number)) is not None:
                return await self._shard(shard, operation, name, body)
            case ["catalog", command]:
                catalog = self._node.catalog
                if not catalog.owned:
                    raise NotOwner("This node does not own the catalog.")
                self._check_meant(CATALOG_SHARD, name)
                return await catalog.answer(command, body)
            case ["node", what]:
                return await self._own(what, body)
        raise NotFound(f"Unknown internal path {path!r}: the calling node may run a newer release.")

    async def _shard(self, number: int, operation: str, name: str, body: bytes) -> bytes:
        port = self._node.port_here(number)
        if port is None:
            raise NotOwner(f"This node does not own shard {number}.")
        self._check_meant(number, name)
        return await wire.answer(port, operation, body)

    def _check_meant(self, shard: int, name: str) -> None:
        meant, epoch = _meant_epoch(name), self._node.epoch_here(shard)
        if meant and meant != epoch:
            raise NotOwner(
                f"The request is for the owner with epoch {meant}, but this node owns the shard with epoch {epoch}."
            )

    async def _own(self, what: str, body: bytes) -> bytes:
        """About the node itself."""
        raise NotImplementedError

    def _let_go(self, body: bytes) -> None:
        """Whoever made a call does not want its answer any more."""
        name = _name.decode(body)
        call = self._memory.find(name)
        if call is not None:
            self._give_up(name, call)


class Answering(ShardAnswering):
    def __init__(self, node: Served) -> None:
        super().__init__(node)
        self._served = node

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
                await loop.hand_over()
                if loop.serving():
                    raise Unavailable(
                        f"No other node can take shards right now, so {loop.node} keeps its own. It takes no new "
                        "ones. Retry when another node is ready."
                    )
            elif what == "undrain":
                loop.draining = False
            elif what == "give_up":
                self._let_go(body)
            else:
                raise NotFound(f"Unknown node command {what!r}.")
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None
        return msgspec.msgpack.encode(None)

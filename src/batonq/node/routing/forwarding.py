"""Forwards commands of this node's clients to shards on other nodes: one call for all commands of a loop turn.

While a call to a shard is in progress the commands for the next call gather, so that calls grow with the load. No
command waits behind a slow call. A call has an id and names the owner's epoch, and the owner remembers its answers. So
the call is executed once, and can be repeated if its answer is lost (cluster/routing.py). A receive that may wait is
first sent with the other commands. It makes a call of its own when there are no messages, or more than the answer has
room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from batonq.core.commands import Command, Leases, Receive
from batonq.errors import BatonError, OverLimit
from batonq.node.messages.received import Received
from batonq.node.routing import wire
from batonq.node.routing.ports import ShardPort
from batonq.node.routing.submission import Done, Waiting, client_error, tell
from batonq.node.shard_host.command_groups import TOGETHER_BYTES_MAX, TOGETHER_MAX, join_leases, size_of
from batonq.node.tasks import Tasks

Call = Callable[[str, bytes, int], Awaitable[bytes]]  # operation, arguments, how long the call itself may wait in ms
DRY_RUN_MS = 60_000  # a dry run may look at millions of messages
WAITING_MAX = 4_096  # commands that gather for one shard
CALLS_MAX = 64  # to one shard at a time
PATIENCE_S = 0.5  # the next call does not wait for one that has taken this long
# operations that may wait, and which of their arguments says how long
_WAITS = {"hint": 1, "receive_matching": 4, "reader_fetch": 7}


class _One(NamedTuple):
    command: Command
    done: Done


class _ForwardedPoll:
    """A receive that waits at another node."""

    __slots__ = ("left", "task")

    def __init__(self) -> None:
        self.left = False
        self.task: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        self.left = True
        if self.task is not None:
            self.task.cancel()


class RemoteShard:
    """A shard that another node serves. `call` knows the route to that node, and which calls may be repeated."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_One] = []
        self._scheduled: asyncio.Handle | None = None
        self._under_way: dict[object, float] = {}  # calls in progress, and when each began
        self._tasks = Tasks()

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        """Each operation of ports.ShardOperations is one call to the node that serves the shard."""
        if operation not in wire.OPERATIONS:
            raise AttributeError(operation)
        waits_at = _WAITS.get(operation)

        async def ask(*arguments: Any) -> Any:
            wait_ms = DRY_RUN_MS if operation == "dry_run" else arguments[waits_at] if waits_at is not None else 0
            return wire.decode_answer(operation, await self._call(operation, wire.encode(arguments), wait_ms))

        return ask

    # --- commands

    def submit(self, command: Command, done: Done) -> Waiting | None:
        if len(self._gathered) >= WAITING_MAX:
            done(OverLimit("The limit of requests that wait for the shard's owner is reached. Retry."))
            return None
        if not isinstance(command, Receive):
            self._add(command, done)
            return None
        poll = _ForwardedPoll()
        first = replace(command, wait_ms=0) if command.wait_ms else command
        self._add(first, partial(self._received, command, poll, done))
        return poll

    def _received(self, command: Receive, poll: _ForwardedPoll, done: Done, outcome: Any) -> None:
        is_empty = isinstance(outcome, Received) and not outcome
        if outcome is not wire.ALONE and not (is_empty and command.wait_ms > 0):
            done(outcome)
        elif not poll.left:
            poll.task = self._tasks.spawn(self._ask_alone(command, done))

    async def _ask_alone(self, command: Receive, done: Done) -> None:
        (outcome,) = await self._ask(wire.POLL, [command], command.wait_ms)
        tell(done, outcome)

    def _add(self, command: Command, done: Done) -> None:
        self._gathered.append(_One(command, done))
        if self._scheduled is None:
            newest_s = next(reversed(self._under_way.values()), -PATIENCE_S)
            wait_s = newest_s + PATIENCE_S - self._loop.time() if len(self._under_way) < CALLS_MAX else PATIENCE_S
            self._schedule(wait_s)

    def _schedule(self, wait_s: float) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
        call_soon = self._loop.call_soon
        self._scheduled = self._loop.call_later(wait_s, self._begin) if wait_s > 0 else call_soon(self._begin)

    def _begin(self) -> None:
        """Send the commands that have gathered, up to the limit of one call."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        count = size = 0
        for one in self._gathered:
            size += size_of(one.command)
            if count == TOGETHER_MAX or (count and size > TOGETHER_BYTES_MAX):
                break
            count += 1
        some, self._gathered = self._gathered[:count], self._gathered[count:]
        if some:
            call = object()
            self._under_way[call] = self._loop.time()
            self._tasks.spawn(self._forward(call, some))
        if self._gathered:
            wait_s = 0.0 if len(self._under_way) < CALLS_MAX and count == TOGETHER_MAX else PATIENCE_S
            self._scheduled = self._loop.call_later(wait_s, self._begin)

    async def _forward(self, call: object, some: list[_One]) -> None:
        outcomes = await self._ask(wire.SUBMIT, [one.command for one in some])
        del self._under_way[call]
        for one, outcome in zip(some, outcomes, strict=True):
            tell(one.done, outcome)
        if self._gathered:  # in the next turn: some clients that were told have sent their next requests by then
            self._schedule(0.0)

    async def _ask(self, operation: str, commands: Sequence[Command], wait_ms: int = 0) -> list[Any]:
        """Return an outcome per command. If the call fails, every command gets the same error."""
        try:
            data = await self._call(operation, wire.encode_commands(commands), wait_ms)
            outcomes = wire.decode_outcomes(data)
            if len(outcomes) != len(commands):
                raise ValueError(f"{len(commands)} commands got {len(outcomes)} outcomes")
        except Exception as problem:
            return [client_error(problem)] * len(commands)
        leases: dict[int, list[Leases]] = {}  # by queue
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, Received) and isinstance(command, Receive) and outcome.leases.slots:
                leases.setdefault(command.queue, []).append(outcome.leases)
                if not command.attempt:
                    outcome.give_back = partial(self._give_back, command.queue, outcome.leases)
        for some in leases.values():
            join_leases(some)
        return outcomes

    def _give_back(self, queue: int, leases: Leases) -> None:
        async def give_back() -> None:
            with suppress(BatonError):  # if that fails, the leases expire
                await self._port.give_back(queue, leases.claims())

        self._tasks.spawn(give_back())

    @property
    def _port(self) -> ShardPort:
        return cast(ShardPort, self)

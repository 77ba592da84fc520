"""Reads monitoring data from all nodes or processes of a server: each answers for itself.

A part of the server that does not answer is named with the reason. What is read here is bounded and may be some seconds
old. Nothing here changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from batonq.errors import BatonError, InvalidInput, NotFound
from batonq.node import events

ASK_S = 3.0
READ = "read"  # the internal call that asks for a part
_asked = msgspec.msgpack.Decoder(tuple[str, dict[str, Any]])
encode = msgspec.msgpack.encode

Read = Callable[[dict[str, Any]], Awaitable[Any]]


class Part(NamedTuple):
    node: str
    value: Any  # None if the node did not answer
    problem: str  # why it did not; empty if it did


class Others(Protocol):
    """The other nodes or processes of the server."""

    def names(self) -> list[str]: ...

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        """The answer of one of them. Raises BatonError."""


class NoOthers:
    def names(self) -> list[str]:
        return []

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        raise NotFound(f"Unknown node {name!r}.")


class Everywhere:
    """`name` is this node's name, or this process's. Values must be plain data that MessagePack can encode."""

    def __init__(self, name: str, others: Others | None = None) -> None:
        self.name = name
        self.others = others or NoOthers()
        self._reads: dict[str, Read] = {}

    def provide(self, name: str, read: Read) -> None:
        """Offer this node's part of what is read under a name. `read` gets the arguments of the reader."""
        self._reads[name] = read

    async def read(self, name: str, **arguments: Any) -> list[Part]:
        """The parts of all nodes, this node's first."""
        return await self._read(name, arguments, msgspec.msgpack.decode)

    async def read_as(self, decoder: msgspec.msgpack.Decoder[Any], name: str, **arguments: Any) -> list[Part]:
        """Like `read`, for values of a type: this node's as it is, the others' as the decoder makes them."""
        return await self._read(name, arguments, decoder.decode)

    async def answer(self, body: bytes) -> bytes:
        """This node's part, for another node. Raises BatonError."""
        try:
            name, arguments = _asked.decode(body)
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None
        return encode(await self._here(name, arguments))

    async def _read(self, name: str, arguments: dict[str, Any], decode: Callable[[bytes], Any]) -> list[Part]:
        body = encode((name, arguments))
        names = self.others.names()
        asked = [self._there(other, body, decode) for other in names]
        return list(await asyncio.gather(self._own(name, arguments), *asked))

    async def _own(self, name: str, arguments: dict[str, Any]) -> Part:
        try:
            return Part(self.name, await self._here(name, arguments), "")
        except BatonError as problem:
            return Part(self.name, None, problem.message)

    async def _there(self, other: str, body: bytes, decode: Callable[[bytes], Any]) -> Part:
        try:
            return Part(other, decode(await self.others.ask(other, READ, body, ASK_S)), "")
        except BatonError as problem:
            return Part(other, None, problem.message)
        except msgspec.MsgspecError as problem:
            return Part(other, None, f"The answer of {other} cannot be read: {problem}")

    async def _here(self, name: str, arguments: dict[str, Any]) -> Any:
        read = self._reads.get(name)
        if read is None:
            raise NotFound(f"This node has no monitoring data with the name {name!r}: it may run another release.")
        try:
            return await read(arguments)
        except BatonError:
            raise
        except Exception:
            events.logger.exception("monitoring data could not be read: %s", name)
            raise BatonError(f"An internal error occurred while {name!r} was read; see the log of the node.") from None

"""Bugs to plant into calls between nodes: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from batonq.core.commands import Command, Leases, Send
from batonq.node.cluster.node_server import Call, Memory
from batonq.node.messages.received import Received
from batonq.node.routing import wire
from batonq.node.routing.forwarding import RemoteShard
from sim.patches import Patches
from sim.path_bugs import retry_goes_home


def forwarded_outcomes_permuted() -> Patches:
    """Commands of one type that are forwarded in one call get each other's outcomes."""
    ask = RemoteShard._ask

    async def permuted(self: RemoteShard, operation: str, commands: Sequence[Command], wait_ms: int = 0) -> list[Any]:
        outcomes = await ask(self, operation, commands, wait_ms)
        kinds = [(type(command), len(getattr(command, "bodies", ()))) for command in commands]
        alike = [at for at, kind in enumerate(kinds) if kind == kinds[0]]
        told = [outcomes[at] for at in [*alike[1:], *alike[:1]]]
        for at, outcome in zip(alike, told, strict=True):
            outcomes[at] = outcome
        return outcomes

    return [(RemoteShard, "_ask", permuted)]


def _forwarded_without(**columns: Any) -> Patches:
    encode = wire.encode_commands

    def encode_without(commands: Sequence[Command]) -> bytes:
        return encode([replace(command, **columns) if isinstance(command, Send) else command for command in commands])

    return [(wire, "encode_commands", encode_without)]


def forwarded_priorities_lost() -> Patches:
    return _forwarded_without(priorities=())


def forwarded_delays_lost() -> Patches:
    return _forwarded_without(delays_ms=())


def forwarded_names_lost() -> Patches:
    """The shard's owner does not get the name of a request, and so does not recognise a repetition."""
    return _forwarded_without(request=0)


def forwarded_epochs_lost() -> Patches:
    """Every lease made by another node counts as the first of its message."""
    decode = wire.decode_outcomes

    def first_leases(data: bytes) -> list[Any]:
        outcomes = decode(data)
        for outcome in outcomes:
            if isinstance(outcome, Received):
                outcome.leases = replace_epochs(outcome.leases)
        return outcomes

    def replace_epochs(leases: Leases) -> Leases:
        return replace(leases, epochs=())

    return [(wire, "decode_outcomes", first_leases)]


def gathered_commands_lost() -> Patches:
    """Commands that do not fit into one call are not forwarded by the next."""
    begin = RemoteShard._begin

    def first_part(self: RemoteShard) -> None:
        gathered = len(self._gathered)
        begin(self)
        if len(self._gathered) < gathered:
            self._gathered = []

    return [(RemoteShard, "_begin", first_part)]


def answers_not_remembered() -> Patches:
    """A call that is retried because its answer was lost is executed again."""

    def find(self: Memory, name: str) -> Call | None:
        return None

    return [(Memory, "find", find)]


FORWARDING_BUGS: dict[str, Callable[[], Patches]] = {
    "forwarded-outcomes-permuted": forwarded_outcomes_permuted,
    "forwarded-priorities-lost": forwarded_priorities_lost,
    "forwarded-delays-lost": forwarded_delays_lost,
    "forwarded-names-lost": forwarded_names_lost,
    "forwarded-epochs-lost": forwarded_epochs_lost,
    "gathered-commands-lost": gathered_commands_lost,
    "answers-not-remembered": answers_not_remembered,
    "retry-goes-home": retry_goes_home,
}

"""The conditions of a filter policy. A condition holds for a message if it holds for one of the values at its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from batonq.core.topics.message_values import Scalar

Network: TypeAlias = IPv4Network | IPv6Network
# One end of a range. The second number is the side of the value that the end is on, so that `>= 5` begins at (5, 0),
# `> 5` at (5, 1), `<= 5` ends at (5, 0) and `< 5` at (5, -1): all ends are then compared as closed ends.
End: TypeAlias = tuple[float, int]
LOWEST: End = (float("-inf"), 0)
HIGHEST: End = (float("inf"), 0)


@dataclass(slots=True, frozen=True)
class Exact:
    value: Scalar

    def holds(self, values: Sequence[Scalar]) -> bool:
        return self.value in values


@dataclass(slots=True, frozen=True)
class Prefix:
    text: str

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(isinstance(value, str) and value.startswith(self.text) for value in values)


@dataclass(slots=True, frozen=True)
class Suffix:
    text: str

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(isinstance(value, str) and value.endswith(self.text) for value in values)


@dataclass(slots=True, frozen=True)
class EqualsIgnoreCase:
    folded: str

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(isinstance(value, str) and value.casefold() == self.folded for value in values)


@dataclass(slots=True, frozen=True)
class Range:
    low: End = LOWEST
    high: End = HIGHEST

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(isinstance(value, int | float) and self.low <= (value, 0) <= self.high for value in values)


@dataclass(slots=True, frozen=True)
class Cidr:
    network: Network

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any((address := read_address(value)) is not None and address in self.network for value in values)


@dataclass(slots=True, frozen=True)
class AnythingBut:
    """Holds for a value that is none of these."""

    values: frozenset[Scalar] = frozenset()
    prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    folded: frozenset[str] = frozenset()

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(not self._names(value) for value in values)

    def _names(self, value: Scalar) -> bool:
        if value in self.values:
            return True
        if not isinstance(value, str):
            return False
        return (
            value.startswith(self.prefixes)
            or value.endswith(self.suffixes)
            or bool(self.folded and value.casefold() in self.folded)
        )


@dataclass(slots=True, frozen=True)
class Exists:
    """Whether the key has a value that is neither null nor empty."""

    wanted: bool

    def holds(self, values: Sequence[Scalar]) -> bool:
        return any(value is not None and value != "" for value in values) == self.wanted


Condition: TypeAlias = Exact | Prefix | Suffix | EqualsIgnoreCase | Range | Cidr | AnythingBut | Exists


def read_address(value: Scalar) -> IPv4Address | IPv6Address | None:
    if not isinstance(value, str):
        return None
    try:
        return ip_address(value)
    except ValueError:
        return None

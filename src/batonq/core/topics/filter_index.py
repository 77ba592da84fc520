"""Which subscriptions of a topic get a message, without asking every subscription.

Each alternative of a filter is filed under one of its keys: under the values that the key must have (exact, prefix,
suffix, range, network), or, if it accepts almost any value, under the key. Only alternatives that the message's own
values lead to are checked whole. The cost of a message therefore grows with the subscriptions that can match.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from batonq.core.payload import Attribute
from batonq.core.topics.conditions import (
    LOWEST,
    AnythingBut,
    Cidr,
    Condition,
    EqualsIgnoreCase,
    Exact,
    Exists,
    Prefix,
    Range,
    Suffix,
    read_address,
)
from batonq.core.topics.filters import ATTRIBUTES, Alternative, Filter, Term
from batonq.core.topics.message_values import AttributeValues, BodyValues, Paths, Scalar, parents_of
from batonq.core.topics.ranges import RangeTable

_COUNTED_MAX = 100  # overlapping ranges that are counted to estimate how crowded a key is
_Key = TypeVar("_Key")


class FilterIndex:
    """The filters of a topic's subscriptions, by the number of the subscription."""

    def __init__(self) -> None:
        self._filters: dict[int, Filter | None] = {}
        self._unfiltered: list[int] = []  # ascending
        self._attributes = _ScopeIndex()
        self._body = _ScopeIndex()

    def __len__(self) -> int:
        return len(self._filters)

    def put(self, number: int, filter: Filter | None) -> None:
        """Add a subscription, or replace its filter. Without a filter it gets every message."""
        self.remove(number)
        self._filters[number] = filter
        if filter is None or filter.matches_all:
            insort(self._unfiltered, number)
        else:
            self._scope(filter).put(number, filter)

    def remove(self, number: int) -> None:
        """Remove a subscription. Nothing happens if there is none with this number."""
        if number not in self._filters:
            return
        filter = self._filters.pop(number)
        if filter is None or filter.matches_all:
            self._unfiltered.remove(number)
        else:
            self._scope(filter).remove(number)

    @property
    def body_paths(self) -> Paths | None:
        """What the filters look at in a body: the same object until that may have changed. None: they look at no
        body.
        """
        return self._body.paths if self._body else None

    def matching(self, attributes: Mapping[str, Attribute], body: Callable[[Paths], BodyValues]) -> Sequence[int]:
        """The numbers of the subscriptions that get a message, ascending.

        `body` returns the values of the body. It is called at most once, and only if some subscription filters on the
        body.
        """
        found: set[int] = set()
        if self._attributes:
            values = AttributeValues(attributes)
            if values:
                self._attributes.matching(values, found)
        if self._body:
            read = body(self._body.paths)
            if read.is_object:
                self._body.matching(read, found)
        if not found:
            return tuple(self._unfiltered)
        return sorted((*found, *self._unfiltered))

    def _scope(self, filter: Filter) -> _ScopeIndex:
        return self._attributes if filter.scope == ATTRIBUTES else self._body


class _Entry:
    """One alternative of a subscription's filter, and where it is filed."""

    __slots__ = ("filed", "number", "terms")

    def __init__(self, number: int, terms: Alternative) -> None:
        self.number = number
        self.terms = terms
        self.filed: Term | None = None  # None: in the list of those that are always checked


class _ScopeIndex:
    """The filters of one scope."""

    def __init__(self) -> None:
        self._named: Counter[str] = Counter()  # paths that some filter names
        self._parents: Counter[str] = Counter()
        self._paths: Paths | None = None
        self._entries: dict[int, list[_Entry]] = {}
        self._keys: dict[str, _KeyIndex] = {}
        self._always: set[_Entry] = set()  # satisfied by a missing key, so no value leads to them

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def paths(self) -> Paths:
        """A copy, because a thread may use it while filters change."""
        if self._paths is None:
            self._paths = Paths(frozenset(self._named), frozenset(self._parents))
        return self._paths

    def put(self, number: int, filter: Filter) -> None:
        self._paths = None
        entries = self._entries[number] = [_Entry(number, terms) for terms in filter.alternatives]
        for entry in entries:
            for term in entry.terms:
                self._named[term.path] += 1
                self._parents.update(parents_of(term.path))
            entry.filed = self._choose(entry.terms)
            if entry.filed is None:
                self._always.add(entry)
            else:
                self._keys.setdefault(entry.filed.path, _KeyIndex()).put(entry, entry.filed.conditions)

    def remove(self, number: int) -> None:
        self._paths = None
        for entry in self._entries.pop(number):
            for term in entry.terms:
                _decrease(self._named, term.path)
                for parent in parents_of(term.path):
                    _decrease(self._parents, parent)
            if entry.filed is None:
                self._always.remove(entry)
                continue
            key = self._keys[entry.filed.path]
            key.remove(entry, entry.filed.conditions)
            if not key.entries:
                del self._keys[entry.filed.path]

    def matching(self, values: AttributeValues | BodyValues, found: set[int]) -> None:
        """Add the numbers of the subscriptions that match these values."""
        for entry in self._always:
            self._check(entry, values, found)
        for path in values.names():
            key = self._keys.get(path)
            if key is not None:
                for bucket in key.reached(values.at(path)):
                    for entry in bucket:
                        self._check(entry, values, found)

    @staticmethod
    def _check(entry: _Entry, values: AttributeValues | BodyValues, found: set[int]) -> None:
        if entry.number not in found and all(term.holds(values) for term in entry.terms):
            found.add(entry.number)

    def _choose(self, terms: Alternative) -> Term | None:
        """The term to file an alternative under: the one that fewest others share."""
        usable = [term for term in terms if not any(_holds_for_nothing(one) for one in term.conditions)]
        return min(usable, key=self._crowding, default=None)

    def _crowding(self, term: Term) -> int:
        key = self._keys.get(term.path)
        return sum(_RANKS[type(one)] + (key.crowding(one) if key else 0) for one in term.conditions)


# A rough order of how many values a condition accepts, to decide between keys that are equally crowded.
_RANKS: dict[type[Condition], int] = {
    Exact: 0,
    EqualsIgnoreCase: 0,
    Prefix: 1,
    Suffix: 1,
    Cidr: 2,
    Range: 3,
    AnythingBut: 10,
    Exists: 10,
}


def _holds_for_nothing(condition: Condition) -> bool:
    return isinstance(condition, Exists) and not condition.wanted


class _KeyIndex:
    """The alternatives that are filed under one key, by the values that lead to them."""

    def __init__(self) -> None:
        self.entries = 0
        self._exact: dict[Scalar, set[_Entry]] = {}
        self._folded: dict[str, set[_Entry]] = {}
        self._prefixes: dict[str, set[_Entry]] = {}
        self._suffixes: dict[str, set[_Entry]] = {}
        self._prefix_lengths: Counter[int] = Counter()  # of different texts
        self._suffix_lengths: Counter[int] = Counter()
        self._networks: dict[tuple[int, int], dict[int, set[_Entry]]] = {}  # version and bits → address → entries
        self._ranges: RangeTable[_Entry] = RangeTable()
        self._any: set[_Entry] = set()

    def put(self, entry: _Entry, conditions: Sequence[Condition]) -> None:
        self.entries += 1
        for condition in conditions:
            match condition:
                case Exact(value):
                    self._exact.setdefault(value, set()).add(entry)
                case EqualsIgnoreCase(folded):
                    self._folded.setdefault(folded, set()).add(entry)
                case Prefix(text):
                    _put_text(self._prefixes, self._prefix_lengths, text, entry)
                case Suffix(text):
                    _put_text(self._suffixes, self._suffix_lengths, text, entry)
                case Cidr(network):
                    addresses = self._networks.setdefault((network.version, network.prefixlen), {})
                    addresses.setdefault(int(network.network_address), set()).add(entry)
                case Range(low, high):
                    self._ranges.add(low, high, entry)
                case _:
                    self._any.add(entry)

    def remove(self, entry: _Entry, conditions: Sequence[Condition]) -> None:
        self.entries -= 1
        for condition in conditions:
            match condition:
                case Exact(value):
                    _discard(self._exact, value, entry)
                case EqualsIgnoreCase(folded):
                    _discard(self._folded, folded, entry)
                case Prefix(text):
                    _remove_text(self._prefixes, self._prefix_lengths, text, entry)
                case Suffix(text):
                    _remove_text(self._suffixes, self._suffix_lengths, text, entry)
                case Cidr(network):
                    place = (network.version, network.prefixlen)
                    addresses = self._networks.get(place, {})
                    _discard(addresses, int(network.network_address), entry)
                    if not addresses:
                        self._networks.pop(place, None)
                case Range(low, high):
                    self._ranges.discard(low, high, entry)
                case _:
                    self._any.discard(entry)

    def crowding(self, condition: Condition) -> int:
        """How many alternatives a value that satisfies this condition leads to, roughly."""
        match condition:
            case Exact(value):
                return len(self._exact.get(value, ()))
            case EqualsIgnoreCase(folded):
                return len(self._folded.get(folded, ()))
            case Prefix(text):
                return len(self._prefixes.get(text, ()))
            case Suffix(text):
                return len(self._suffixes.get(text, ()))
            case Cidr(network):
                addresses = self._networks.get((network.version, network.prefixlen), {})
                return len(addresses.get(int(network.network_address), ()))
            case Range(low, high):
                here = self._ranges.containing(high if low == LOWEST else low)
                return sum(len(bucket) for bucket in islice(here, _COUNTED_MAX))
            case _:
                return len(self._any)

    def reached(self, values: Sequence[Scalar]) -> Iterator[set[_Entry]]:
        """The entries that these values lead to."""
        if not values:
            return
        if self._any:
            yield self._any
        for value in values:
            if (bucket := self._exact.get(value)) is not None:
                yield bucket
            if isinstance(value, str):
                yield from self._reached_by_text(value)
            elif isinstance(value, int | float) and self._ranges:
                yield from self._ranges.containing((value, 0))

    def _reached_by_text(self, value: str) -> Iterator[set[_Entry]]:
        if self._folded and (bucket := self._folded.get(value.casefold())) is not None:
            yield bucket
        for length in self._prefix_lengths:
            if length <= len(value) and (bucket := self._prefixes.get(value[:length])) is not None:
                yield bucket
        for length in self._suffix_lengths:
            if length <= len(value) and (bucket := self._suffixes.get(value[-length:])) is not None:
                yield bucket
        if self._networks and (address := read_address(value)) is not None:
            number = int(address)
            for (version, bits), addresses in self._networks.items():
                if version == address.version:
                    shift = address.max_prefixlen - bits
                    if (bucket := addresses.get(number >> shift << shift)) is not None:
                        yield bucket


def _put_text(table: dict[str, set[_Entry]], lengths: Counter[int], text: str, entry: _Entry) -> None:
    if text not in table:
        table[text] = set()
        lengths[len(text)] += 1
    table[text].add(entry)


def _remove_text(table: dict[str, set[_Entry]], lengths: Counter[int], text: str, entry: _Entry) -> None:
    had = text in table
    _discard(table, text, entry)
    if had and text not in table:
        _decrease(lengths, len(text))


def _discard(table: dict[_Key, set[_Entry]], key: _Key, entry: _Entry) -> None:
    """Remove an entry from its set, and the set when it is empty. A policy may name one value twice."""
    bucket = table.get(key)
    if bucket is not None:
        bucket.discard(entry)
        if not bucket:
            del table[key]


def _decrease(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]

"""One receive over many queues: the queues of a list, or those that match patterns such as `hooks-*`.

A waiting receive costs nothing. A `Watch` stands at each shard, and is asked only about queues in which something
happened. Queues that are created meanwhile are found, because their names are matched when something happens in them.
Queues are served round-robin: each receive starts behind the last queue that was asked, and takes an equal share of
each.

A pattern leaves out dead-letter queues whose source queues it also matches: a consumer of `hooks-*` does not want its
own failures from `hooks-a-dead`. Dead-letter queues are served when they are named, or matched by a pattern of their
own such as `*-dead`.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from batonq.attribute_formats.arns import QueueName
from batonq.attribute_formats.wildcards import Wildcards, is_wildcard
from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Leases, Receive
from batonq.core.spread import Hint
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist, Unavailable
from batonq.node.messages.received import Delivery
from batonq.node.routing.ports import ShardPort
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.shard_host.waiters import NO_LEASES, ServingBudget

NAMES_MAX = 10_000
WILDCARDS_MAX = 100  # patterns with * or ? per request
PATTERN_LENGTH_MAX = 80
MATCHED_PER_TURN = 200  # names matched before other requests get a turn: at most 0.1 ms per name
KNOWN_MAX = 200_000  # queues for which a selection remembers whether it includes them
Found = tuple[int, Delivery]  # with the number of its queue
GiveBack = Callable[[Sequence[Found]], Awaitable[None]]
# Port, maximum number of messages, milliseconds to wait.
AskOne = Callable[[ShardPort, int, int], Coroutine[Any, Any, list[Found]]]
_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]+")


class Selection:
    """Which queues a receive includes, and whose turn it is."""

    def __init__(self, catalog: Callable[[], Catalog], account: str, patterns: Sequence[str]) -> None:
        if not 0 < len(patterns) <= NAMES_MAX:
            raise InvalidInput(f"Name 1 to {NAMES_MAX} queues or patterns.")
        for pattern in patterns:
            if len(pattern) > PATTERN_LENGTH_MAX or not _PATTERN.fullmatch(pattern):
                raise InvalidInput(
                    f"{pattern[:PATTERN_LENGTH_MAX]!r} is not a valid queue name or pattern. In a pattern, * "
                    "matches any characters and ? matches one character."
                )
        self.turn = 0  # the queue number that the next receive starts with
        self._catalog = catalog
        self._account = self.account = account
        self.patterns = list(patterns)
        self._names = [pattern for pattern in patterns if not is_wildcard(pattern)]
        wildcards = {pattern for pattern in patterns if is_wildcard(pattern)}
        if len(wildcards) > WILDCARDS_MAX:
            raise InvalidInput(
                f"The request has {len(wildcards)} patterns with * or ?; the maximum is {WILDCARDS_MAX}. Name the "
                "queues, or use several requests."
            )
        self._wildcards = Wildcards(wildcards) if wildcards else None
        self._name_set = frozenset(self._names)
        self._known: dict[int, bool] = {}
        # Per queue: the catalog's version, and whether the queue is left out.
        self._left_out: dict[int, tuple[int, bool]] = {}
        self._version = -1
        self._shards: set[int] = set()

    def shards(self) -> set[int]:
        """The shards of the queues given by name; none for patterns. Raises QueueDoesNotExist."""
        catalog = self._catalog()
        if catalog.version != self._version:
            shards: set[int] = set()
            for name in self._names:
                entry = catalog.by_name.get(QueueName(self._account, name))
                if entry is None:
                    raise QueueDoesNotExist(f"Queue {name} does not exist.")
                shards.update(entry.shards)
            self._shards, self._version = shards, catalog.version
        return self._shards

    @property
    def by_names_only(self) -> bool:
        return self._wildcards is None

    async def learn(self, numbers: Iterable[int]) -> None:
        """Match the queues that have not been matched yet, a few per turn of the event loop."""
        if self._wildcards is None:
            return
        unknown = [number for number in numbers if number not in self._known and self._is_own(number)]
        for at in range(0, len(unknown), MATCHED_PER_TURN):
            if at:
                await asyncio.sleep(0)
            for number in unknown[at : at + MATCHED_PER_TURN]:
                self._is_meant(number)

    def has(self, number: int) -> bool:
        """Whether the selection includes the queue of this number."""
        if not self._is_meant(number):
            return False
        if self._wildcards is None:
            return True
        catalog = self._catalog()
        version, left_out = self._left_out.get(number, (-1, False))
        if version != catalog.version:
            left_out = self._takes_failures_of_its_own(catalog, number)
            self._left_out[number] = (catalog.version, left_out)
        return not left_out

    def _is_own(self, number: int) -> bool:
        entry = self._catalog().queues.get(number)
        return entry is not None and entry.account == self._account

    def _is_meant(self, number: int) -> bool:
        """Whether a name or a pattern matches the queue. A number is never reused, so the answer is remembered."""
        known = self._known.get(number)
        if known is None:
            entry = self._catalog().queues.get(number)
            if entry is None or entry.account != self._account:
                return False
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
                self._left_out.clear()
            known = self._known[number] = self._has_name(entry.name)
        return known

    def _has_name(self, name: str) -> bool:
        return name in self._name_set or (self._wildcards is not None and self._wildcards.match(name))

    def _takes_failures_of_its_own(self, catalog: Catalog, number: int) -> bool:
        entry = catalog.queues.get(number)
        if entry is None or entry.name in self._name_set:
            return False
        return any(self._is_meant(source.number) for source in catalog.dead_letter_sources(number))

    def in_turn(self, numbers: Iterable[int]) -> list[int]:
        """Queue numbers, starting with the queue whose turn it is."""
        ordered = sorted(numbers)
        at = bisect_left(ordered, self.turn)
        return ordered[at:] + ordered[:at]


class Watch:
    """A waiting receive over many queues. It stands at several shards; the first shard with messages serves it."""

    __slots__ = ("future", "holder", "hosts", "max_messages", "selection", "taken", "visibility_ms")

    def __init__(
        self,
        selection: Selection,
        max_messages: int,
        visibility_ms: int | None,
        holder: str,
        future: asyncio.Future[None],
    ) -> None:
        self.selection = selection
        self.max_messages = max_messages
        self.visibility_ms = visibility_ms
        self.holder = holder
        self.future = future
        self.hosts: list[ShardHost] = []
        self.taken: list[Taken] = []

    def wants(self, queue: int) -> bool:
        return self.selection.has(queue)

    def serve(self, host: ShardHost, queues: Sequence[int], budget: ServingBudget) -> None:
        hosts = {queue: [host] for queue in queues}
        taken = take(self.selection, hosts, self.max_messages, self.visibility_ms, self.holder, budget)
        if taken and host.serving:  # else the leases are never committed, and every client was told so
            self.taken = taken
            self.leave()
            host.commit.release(self.future)

    def leave(self) -> None:
        for host in self.hosts:
            host.polls.unwatch(self)
        self.hosts = []

    def end(self) -> None:
        """Answer with nothing: the time is over, or a shard went away. The client asks again."""
        self.leave()
        if not self.taken and not self.future.done():
            self.future.set_result(None)

    def fail(self, problem: Exception) -> None:
        self.leave()
        if not self.taken and not self.future.done():
            self.future.set_exception(problem)


class Taken:
    """Leases of one queue."""

    __slots__ = ("host", "leases", "queue")

    def __init__(self, host: ShardHost, queue: int, leases: Leases) -> None:
        self.host = host
        self.queue = queue
        self.leases = leases


def take(
    selection: Selection,
    hosts: dict[int, list[ShardHost]],
    max_messages: int,
    visibility_ms: int | None,
    holder: str,
    budget: ServingBudget | None = None,
) -> list[Taken]:
    """Lease messages from these queues: first an equal share of each in turn, then more from those that have more.

    When one of the hosts fails, returns what was taken before that. Raises only if nothing was taken.
    """
    ready = selection.in_turn(hosts)
    taken: list[Taken] = []
    share = max(1, max_messages // len(ready)) if ready else 0
    left = max_messages
    for wanted in (share, max_messages):
        for number in ready:
            if not left:
                break
            if wanted == share:
                selection.turn = number + 1
            most = min(wanted, left)
            for host in hosts[number]:
                try:
                    command = Receive(number, most, visibility_ms, holder)
                    leases = host.polls.take(command, budget) if most else None
                except Exception:
                    if not taken:
                        raise
                    return taken
                if leases:
                    left -= len(leases)
                    most -= len(leases)
                    taken.append(Taken(host, number, leases))
        if share == max_messages:
            break
        ready = list(dict.fromkeys(part.queue for part in taken))
    return sorted(taken, key=lambda part: ready.index(part.queue)) if len(ready) > 1 else taken


async def receive_any(
    selection: Selection,
    shards: Sequence[ShardKeeper],
    loop: asyncio.AbstractEventLoop,
    max_messages: int,
    visibility_ms: int | None,
    wait_ms: int,
    holder: str,
) -> list[Taken]:
    """Lease messages of the selected queues. The leases are committed when this returns."""
    hosts = _hosts(selection, shards)
    if not selection.by_names_only:
        await selection.learn([number for _, numbers in _filled(hosts) for number in numbers])
        hosts = _hosts(selection, shards)  # other requests had a turn meanwhile
    ready: dict[int, list[ShardHost]] = {}
    filled = _filled(hosts)
    for host, numbers in filled:
        for number in numbers:
            if selection.has(number):
                ready.setdefault(number, []).append(host)
    for number, served in ready.items():
        if len(served) > 1:
            served.sort(key=partial(_rank, number))
    taken = take(selection, ready, max_messages, visibility_ms, holder)
    if not taken and wait_ms > 0 and not any(host.polls.answers_at_once for host in hosts):
        watch = Watch(selection, max_messages, visibility_ms, holder, loop.create_future())
        await _wait(watch, hosts, {host for host, _ in filled}, loop, wait_ms)
        taken = watch.taken
    else:
        taken = await _committed(taken)
    for at, part in enumerate(taken):
        try:
            part.leases = await part.host.in_time(part.queue, part.leases)
        except BatonError:
            part.leases = NO_LEASES  # the queue was deleted
        except asyncio.CancelledError:  # the client disconnected; this part was given back
            give_back(taken[:at] + taken[at + 1 :])
            raise
    return [part for part in taken if part.leases]


def _filled(hosts: Sequence[ShardHost]) -> list[tuple[ShardHost, list[int]]]:
    """The queues of each shard that have messages to deliver. A shard that refuses is left out, unless all refuse."""
    found: list[tuple[ShardHost, list[int]]] = []
    problem: BatonError | None = None
    for host in hosts:
        try:
            found.append((host, host.filled_queues()))
        except BatonError as refusal:
            problem = refusal
    if problem is not None and not found:
        raise problem
    return found


def _rank(number: int, host: ShardHost) -> tuple[int, int]:
    """Sort key: which of the shards of one queue comes first."""
    try:
        hint = host.shard.hint(number)
    except QueueDoesNotExist:  # the shard knows already that the queue was deleted
        hint = Hint(0)
    return hint.rank(host.shard.queues[number].policy.ageing_ms)


def _hosts(selection: Selection, shards: Sequence[ShardKeeper]) -> list[ShardHost]:
    """The served shards that may have messages. Raises Unavailable when none is served."""
    named = selection.shards()
    meant = [keeper for keeper in shards if not selection.by_names_only or keeper.number in named]
    hosts = [keeper.host() for keeper in meant if keeper.serving]
    if not hosts:
        raise Unavailable(meant[0].why if meant else None)
    return hosts


async def _wait(
    watch: Watch, hosts: Sequence[ShardHost], seen: Collection[ShardHost], loop: asyncio.AbstractEventLoop, wait_ms: int
) -> None:
    timer = loop.call_later(wait_ms / 1000, watch.end)
    try:
        for host in hosts:
            host.polls.watch(watch, unseen=host not in seen)
            watch.hosts.append(host)
        await watch.future
    except asyncio.CancelledError:  # the client disconnected
        give_back(watch.taken)
        raise
    finally:
        timer.cancel()
        watch.leave()


async def _committed(taken: list[Taken]) -> list[Taken]:
    """The leases from shards that committed them. Raises when no shard did."""
    waited = [(host, point) for host in {part.host: None for part in taken} if (point := host.point()) is not None]
    try:
        outcomes = await asyncio.gather(*(point for _, point in waited), return_exceptions=True)
    except asyncio.CancelledError:
        give_back(taken)
        raise
    failed = {host: outcome for (host, _), outcome in zip(waited, outcomes, strict=True) if outcome is not None}
    kept = [part for part in taken if part.host not in failed]
    if failed and not kept:
        raise next(iter(failed.values()))
    return kept


def give_back(taken: list[Taken]) -> None:
    """Give the messages back: the client disconnected and did not receive them."""
    for part in taken:
        try:
            part.host.give_back(part.queue, part.leases.claims())
        except BatonError:
            continue  # the messages become visible again when their leases expire


async def receive_all_over(
    ports: Sequence[ShardPort],
    selection: Selection,
    max_messages: int,
    visibility_ms: int | None,
    wait_ms: int,
    holder: str,
    give_back: GiveBack,
) -> list[Found]:
    """Receive from shards that other nodes may serve: ask each in turn, and then wait for all of them.

    A shard that cannot be asked is left out, unless it is the only one. Several shards may answer at the same time.
    Messages beyond the size of one answer are given back, and so are all messages when the client disconnects.
    """
    asked = partial(_ask_one, selection, visibility_ms, holder)
    start = selection.turn % len(ports) if ports else 0
    selection.turn += 1
    ordered = [*ports[start:], *ports[:start]]
    found: list[Found] = []
    try:
        await _ask_each(ordered, asked, max_messages, found)
        if not found and wait_ms > 0:
            await _wait_for_any([asyncio.ensure_future(asked(port, max_messages, wait_ms)) for port in ordered], found)
    except BaseException:
        await give_back(found)
        raise
    if len(found) > max_messages:
        await give_back(found[max_messages:])
    return found[:max_messages]


async def _ask_each(ports: Sequence[ShardPort], asked: AskOne, max_messages: int, found: list[Found]) -> None:
    """Collect the messages that are available now. Raises the problem if no shard can be asked."""
    problems: list[BatonError] = []
    for port in ports:
        if len(found) < max_messages:
            try:
                found += await asked(port, max_messages - len(found), 0)
            except QueueDoesNotExist:
                raise
            except BatonError as problem:
                problems.append(problem)
    if len(problems) == len(ports):
        raise problems[0] if problems else Unavailable()


async def _wait_for_any(tasks: list[asyncio.Task[list[Found]]], found: list[Found]) -> None:
    """Wait for the first answer: messages, the end of the time, or the loss of a shard.

    After the loss of a shard the client asks again. After the first answer the other shards are no longer waited for.
    Messages that they have returned by then are added to `found`.
    """
    waiting = set(tasks)
    try:
        while waiting and not any(map(_has_answered, tasks)):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            found += _found_by(task)


def _has_answered(task: asyncio.Task[list[Found]]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _found_by(task: asyncio.Task[list[Found]]) -> list[Found]:
    return task.result() if _has_answered(task) else []


async def _ask_one(
    selection: Selection, visibility_ms: int | None, holder: str, port: ShardPort, most: int, wait_ms: int
) -> list[Found]:
    return await port.receive_matching(selection.account, selection.patterns, most, visibility_ms, wait_ms, holder)


__all__ = ["Selection", "Taken", "Watch", "give_back", "receive_all_over", "receive_any"]

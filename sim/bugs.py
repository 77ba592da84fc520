"""Bugs to plant, to check that the checkers find them. Each replaces a piece of the real code during a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from batonq.core.commands import Arrival, Claim, Send, Sent
from batonq.core.shard.dedup import DedupTable
from batonq.core.shard.lifecycle import Standing
from batonq.core.shard.machine import Shard
from batonq.core.shard.producers import Producers
from batonq.core.spread import parse
from batonq.node.shard_host.group_commit import Committed, GroupCommit
from sim.disk import SimulatedDisk
from sim.mended_bugs import MENDED_BUGS
from sim.patches import Patches, patched
from sim.path_bugs import PATH_BUGS


def no_fsync() -> Patches:
    """A shard's appends are written and not synced."""
    sync = SimulatedDisk.fdatasync

    def fdatasync(self: SimulatedDisk, handle: int) -> None:
        path = self._handles[handle][1]
        if "/shard-" not in path or "/segment-" not in path:
            sync(self, handle)

    return [(SimulatedDisk, "fdatasync", fdatasync)]


def release_before_commit() -> Patches:
    """Commands are answered before they are committed."""
    call = GroupCommit.call

    def at_once(self: GroupCommit, committed: Committed) -> None:
        if self.failed:
            call(self, committed)
            return
        self.kick()
        committed(None)

    return [(GroupCommit, "call", at_once)]


def epoch_not_compared() -> Patches:
    """Any receipt of a message counts as the current one."""
    standing = Shard.standing

    def lenient(self: Shard, number: int, claim: Claim, now: int) -> Standing:
        if claim.slot < self.columns.used:
            claim = claim._replace(epoch=self.columns.epoch[claim.slot])
        return standing(self, number, claim, now)

    return [(Shard, "standing", lenient)]


def cursor_not_advanced() -> Patches:
    """A channel entry that arrives again is accepted again."""

    def arrive(self: Shard, arrivals: Sequence[Arrival], now: int) -> list[tuple[int, int]]:
        now = self.begin(now)
        return [(arrival.number, self._arrive(arrival, now)) for arrival in arrivals]

    return [(Shard, "arrive", arrive)]


def delay_ignored() -> Patches:
    """A message is visible at once, whatever its delay."""
    send = Shard.send

    def at_once(self: Shard, commands: Sequence[Send], now: int) -> list[Sent]:
        return send(self, [replace(one, delays_ms=[0] * len(one.bodies)) for one in commands], now)

    return [(Shard, "send", at_once)]


def keys_forgotten() -> Patches:
    """No deduplication key and no request is remembered."""

    def get(self: DedupTable, *_: object) -> None:
        return None

    return [(DedupTable, "get", get)]


def numbers_forgotten() -> Patches:
    """No producer's last number is remembered."""

    def get(self: Producers, *_: object) -> None:
        return None

    return [(Producers, "get", get)]


def group_not_locked() -> Patches:
    """The newest message of a FIFO group is delivered first."""
    choose = Shard._choose_fifo

    def newest(self: Shard, queue: Any, wanted: int, now: int) -> list[int]:
        chosen = choose(self, queue, wanted, now)
        return chosen[1:] if len(chosen) > 1 else chosen

    return [(Shard, "_choose_fifo", newest)]


def group_moved_early() -> Patches:
    """A FIFO group moves to its new shard although the old shard still has messages of the group."""

    def has_moved(self: Shard, queue: Any, group: int) -> bool:
        spread = queue.policy.spread
        return bool(spread) and queue.fifo and parse(spread).of_hash(group) != self.number

    return [(Shard, "has_moved", has_moved)]


def numbers_begin_anew() -> Patches:
    """A message's number in its queue is its sequence in the shard, whichever shard that is."""

    def numbers_from(self: Shard, number: int) -> int:
        return 0

    return [(Shard, "numbers_from", numbers_from)]


BUGS: dict[str, Callable[[], Patches]] = {
    "no-fsync": no_fsync,
    "release-before-commit": release_before_commit,
    "epoch-not-compared": epoch_not_compared,
    "cursor-not-advanced": cursor_not_advanced,
    "delay-ignored": delay_ignored,
    "keys-forgotten": keys_forgotten,
    "numbers-forgotten": numbers_forgotten,
    "group-not-locked": group_not_locked,
    "group-moved-early": group_moved_early,
    "numbers-begin-anew": numbers_begin_anew,
    **PATH_BUGS,
    **MENDED_BUGS,
}


@contextlib.contextmanager
def planted(name: str | None, bugs: Mapping[str, Callable[[], Patches]] = BUGS) -> Iterator[None]:
    """Plants the bug inside the block."""
    with patched(bugs[name]() if name is not None else []):
        yield

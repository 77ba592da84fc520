"""Bugs to plant, to check that the checkers find them. Each replaces a piece of the real code during a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from batonq.core.commands import Arrival, Claim, Send, Sent
from batonq.core.schedule import Schedule
from batonq.core.shard.commands.channels import ChannelCommands
from batonq.core.shard.commands.readers import ReaderCommands
from batonq.core.shard.commands.receipts import ReceiptCommands
from batonq.core.shard.commands.receive import ReceiveCommands
from batonq.core.shard.commands.send import SendCommands
from batonq.core.shard.lifecycle import Standing
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.state.dedup_table import DedupTable
from batonq.core.shard.state.delivery_gate import DeliveryGate
from batonq.core.shard.state.group_locks import lock_or_unlock
from batonq.core.shard.state.producers import Producers
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.readers import Reader
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.shard.views import Views
from batonq.core.spread import parse
from batonq.errors import BatonError, OverLimit
from batonq.node.jobs import replay_scan
from batonq.node.routing.local_shard import LocalShard
from batonq.node.shard_host.group_commit import GroupCommit, Reply
from batonq.node.shard_host.truncation import Truncation
from sim.disk import SimulatedDisk
from sim.mended_bugs import MENDED_BUGS
from sim.patches import Patches, patched
from sim.path_bugs import PATH_BUGS
from sim.payload_bugs import PAYLOAD_BUGS


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
    reply = GroupCommit.reply

    def at_once(self: GroupCommit, replies: list[Reply]) -> None:
        if self.failed:
            reply(self, replies)
            return
        self.kick()
        for done, outcome in replies:
            done(outcome)

    return [(GroupCommit, "reply", at_once)]


def epoch_not_compared() -> Patches:
    """Any receipt of a message counts as the current one."""
    standing = ReceiptCommands.standing

    def lenient(self: ReceiptCommands, number: int, claim: Claim, now: int) -> Standing:
        if claim.slot < self.columns.used:
            claim = claim._replace(epoch=self.columns.epoch[claim.slot])
        return standing(self, number, claim, now)

    return [(ReceiptCommands, "standing", lenient)]


def cursor_not_advanced() -> Patches:
    """A channel entry that arrives again is accepted again."""

    def arrive(self: ChannelCommands, arrivals: Sequence[Arrival], now: int) -> list[tuple[int, int]]:
        now = self.expiry.begin(now)
        return [(arrival.number, self._arrive(arrival, now)) for arrival in arrivals]

    return [(ChannelCommands, "arrive", arrive)]


def delay_ignored() -> Patches:
    """A message is visible at once, whatever its delay."""
    send = SendCommands.send

    def at_once(self: SendCommands, commands: Sequence[Send], now: int) -> list[Sent]:
        return send(self, [replace(one, delays_ms=[0] * len(one.bodies)) for one in commands], now)

    return [(SendCommands, "send", at_once)]


def firing_in_two_frames() -> Patches:
    """The message of a schedule and the next due time are not committed together."""
    change = ScheduleBook.change

    def later(self: ScheduleBook, schedule: Schedule, now: int, sequence: int = 0, **changes: Any) -> Schedule:
        if sequence:
            self._journal.frame.roll()
        return change(self, schedule, now, sequence, **changes)

    return [(ScheduleBook, "change", later)]


def replay_without_numbers() -> Patches:
    """A replay sends its messages under another producer's name each time, so none is known when it is sent again."""
    send = replay_scan._send
    names = count()

    def anonymous(*arguments: Any) -> Send:
        return replace(send(*arguments), producer=f"replay {next(names)}")

    return [(replay_scan, "_send", anonymous)]


def reader_commit_not_awaited() -> Patches:
    """The commit of a reader group is answered before it is in the log."""

    async def reader_commit(self: LocalShard, queue: int, group: str, member: str, epoch: int, position: int) -> int:
        host = self._host()
        host.run(host.shard.commit_reader, queue, group, member, epoch, position, host.admit())
        return position

    return [(LocalShard, "reader_commit", reader_commit)]


def reader_positions_forgotten() -> Patches:
    """A shard forgets how far a reader group is, and does not compare the epochs of its members."""

    def of_member(self: ReaderCommands, queue: QueueState, group: str, member: str, epoch: int, now: int) -> Reader:
        return replace(self.reader(queue.number, group), position=0)

    return [(ReaderCommands, "_of_member", of_member)]


def retained_front_dropped() -> Patches:
    """The front of the log is deleted although retained history needs it."""
    return [(Truncation, "_keep_retained", lambda self, until: until)]


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
    choose = ReceiveCommands._choose_fifo

    def newest(self: ReceiveCommands, queue: Any, wanted: int, now: int) -> list[int]:
        chosen = choose(self, queue, wanted, now)
        if len(chosen) < 2:
            return chosen
        lock_or_unlock(queue.ready, self.columns.line[chosen[0]])
        return chosen[1:]

    return [(ReceiveCommands, "_choose_fifo", newest)]


def group_moved_early() -> Patches:
    """A FIFO group moves to its new shard although the old shard still has messages of the group."""

    def has_moved(self: Arrivals, queue: Any, group: int) -> bool:
        spread = queue.policy.spread
        return bool(spread) and queue.fifo and parse(spread).of_hash(group) != self.number

    return [(Arrivals, "has_moved", has_moved)]


def numbers_begin_anew() -> Patches:
    """A message's number in its queue is its sequence in the shard, whichever shard that is."""

    def numbers_from(self: Views, number: int) -> int:
        return 0

    return [(Views, "numbers_from", numbers_from)]


def pause_ignored() -> Patches:
    """A paused queue delivers, and takes messages."""

    def allows(self: DeliveryGate, wanted: int, now: int) -> int:
        return wanted if self.pace is None else min(wanted, self.pace.available(now))

    def refusal(self: QueueState, added_bytes: int, others: int = 0, other_bytes: int = 0) -> BatonError | None:
        full = self.full(added_bytes, others, other_bytes)
        return OverLimit(full) if full else None

    return [(DeliveryGate, "allows", allows), (QueueState, "refusal", refusal)]


BUGS: dict[str, Callable[[], Patches]] = {
    "pause-ignored": pause_ignored,
    "firing-in-two-frames": firing_in_two_frames,
    "replay-without-numbers": replay_without_numbers,
    "no-fsync": no_fsync,
    "release-before-commit": release_before_commit,
    "epoch-not-compared": epoch_not_compared,
    "cursor-not-advanced": cursor_not_advanced,
    "delay-ignored": delay_ignored,
    "reader-commit-not-awaited": reader_commit_not_awaited,
    "reader-positions-forgotten": reader_positions_forgotten,
    "retained-front-dropped": retained_front_dropped,
    "keys-forgotten": keys_forgotten,
    "numbers-forgotten": numbers_forgotten,
    "group-not-locked": group_not_locked,
    "group-moved-early": group_moved_early,
    "numbers-begin-anew": numbers_begin_anew,
    **PATH_BUGS,
    **PAYLOAD_BUGS,
    **MENDED_BUGS,
}


@contextlib.contextmanager
def planted(name: str | None, bugs: Mapping[str, Callable[[], Patches]] = BUGS) -> Iterator[None]:
    """Plants the bug inside the block."""
    with patched(bugs[name]() if name is not None else []):
        yield

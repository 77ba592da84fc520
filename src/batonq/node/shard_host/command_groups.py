"""Groups of commands: what arrived in one turn of the event loop is executed together.

A group has the commands of one kind for one queue. It is executed just before the open frame is sealed, or at the end
of the turn while another frame is being written, in parts that fit into the frame. Each command gets its outcome when
the frame is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from batonq.core.commands import ChangeVisibility, Command, Delete, Leases, Nack, Receive, Send, Sent
from batonq.core.limits import GROUP_MESSAGES_MAX
from batonq.core.records import ROW_WORDS
from batonq.errors import BatonError, OverLimit, Unavailable
from batonq.node.routing.submission import Done, client_error, tell
from batonq.node.settings import MIB, Settings
from batonq.node.shard_host.group_commit import GroupCommit, Reply
from batonq.node.shard_host.waiters import Poll

if TYPE_CHECKING:
    from batonq.node.shard_host.host import ShardHost

TOGETHER_MAX = 256  # requests executed at once (GROUP_MESSAGES_MAX limits their messages),
TOGETHER_BYTES_MAX = 4 * MIB  # and the bytes of those requests: the host checks its limits in between
HEAD_BYTES = 48  # fixed size of a payload, beside the parts of variable length

Submitted = tuple[Command, Done, Poll | None]


class CommandGroups:
    def __init__(
        self, host: ShardHost, commit: GroupCommit, loop: asyncio.AbstractEventLoop, settings: Settings
    ) -> None:
        self._host = host
        self._shard = host.shard
        self._commit = commit
        self._loop = loop
        self._words_max = settings.frame_rows_max * ROW_WORDS
        self._bytes_max = settings.frame_bytes_max
        self._pending_max = settings.pending_max
        self.arrived: dict[tuple[type, int, int | None], list[Submitted]] = {}  # kind, queue, visibility timeout
        self._execute: dict[type, Callable[[Sequence[Submitted]], None]] = {
            Send: self._execute_sends,
            Receive: self._execute_receives,
            Delete: self._execute_deletes,
            ChangeVisibility: self._execute_others,
            Nack: self._execute_others,
        }

    def submit(self, command: Command, done: Done) -> Poll | None:
        """Execute a command together with the others of this turn of the event loop.

        `done` is called with the outcome (for a Receive: Leases) once that is committed, or with a BatonError. For a
        receive, returns the object through which it can be abandoned.
        """
        if not self.arrived:
            if self._host.serving and not self._commit.appending:
                self._commit.kick()
            else:
                self._loop.call_soon(self.execute)
        poll: Poll | None = None
        visibility_ms: int | None = None
        if isinstance(command, Receive):
            poll = Poll(command, done, self._host.polls.remove)
            visibility_ms = command.visibility_ms
        key = type(command), command.queue, visibility_ms
        group = self.arrived.get(key)
        if group is None:
            self.arrived[key] = [(command, done, poll)]
        else:
            group.append((command, done, poll))
        return poll

    def execute(self) -> None:
        """Execute everything that has arrived."""
        arrived, self.arrived = self.arrived, {}
        for (kind, _, _), group in arrived.items():
            self._execute[kind](group)

    def _portions(self, group: Sequence[Submitted]) -> Iterator[Sequence[Submitted]]:
        """Split a group into parts that are executed at once.

        Each part is as large as the limits allow now, or a single command, which `begin` then accepts or refuses.
        """
        start = 0
        while start < len(group):
            frame = self._shard.frame
            requests = min(TOGETHER_MAX, self._pending_max - self._commit.pending)
            messages = min(GROUP_MESSAGES_MAX, (self._words_max - len(frame.rows)) // ROW_WORDS)
            size = min(TOGETHER_BYTES_MAX, self._bytes_max - frame.variable_bytes - frame.finished_bytes)
            end = start
            for command, _, _ in islice(group, start, start + max(requests, 1)):
                messages -= messages_of(command)
                size -= size_of(command)
                if (messages < 0 or size < 0) and end > start:
                    break
                end += 1
            yield group[start:end]
            start = end

    def _refuse(self, some: Sequence[Submitted], problem: Exception) -> None:
        """Tell these requests why they could not be executed."""
        host = self._host
        if not host.serving:  # the problem has ended the host; the shard restarts from its log
            problem = Unavailable(host.why)
        outcome = client_error(problem)
        for _, done, _ in some:
            tell(done, outcome)

    def _execute_parts(
        self, decide: Callable[[list[Any], int], Sequence[object]], parts: Iterable[Sequence[Submitted]], adds: bool
    ) -> None:
        """Execute requests of one queue, part by part. Each gets its outcome when that is committed."""
        for some in parts:
            try:
                now_ms = self._host.admit(adds=adds)
                outcomes = self._host.run(decide, [one[0] for one in some], now_ms)
            except Exception as problem:
                self._refuse(some, problem)
                continue
            self._commit.reply([(one[1], outcome) for one, outcome in zip(some, outcomes, strict=True)])
        if self._shard.woken:
            self._host.polls.woken()

    def _execute_sends(self, group: Sequence[Submitted]) -> None:
        self._execute_parts(self._send, self._portions(group) if len(group) > 1 else (group,), adds=True)

    def _send(self, commands: Sequence[Send], now_ms: int) -> list[Sent]:
        outcomes = self._shard.send(commands, now_ms)
        offset = self._shard.numbers_from(commands[0].queue)
        return [sent.numbered(offset) for sent in outcomes] if offset else outcomes

    def _execute_deletes(self, group: Sequence[Submitted]) -> None:
        self._execute_parts(self._shard.delete, self._portions(group) if len(group) > 1 else (group,), adds=False)

    def _execute_others(self, group: Sequence[Submitted]) -> None:
        decide = self._shard.nack if isinstance(group[0][0], Nack) else self._shard.change_visibility
        each = ([one] for one in group)
        self._execute_parts(lambda commands, now_ms: [decide(commands[0], now_ms)], each, adds=False)

    def _execute_receives(self, group: Sequence[Submitted]) -> None:
        wanted = [one for one in group if one[2] is not None and not one[2].left]
        for some in self._portions(wanted):
            self._receive(some)

    def _receive(self, some: Sequence[Submitted]) -> None:
        polls: list[Poll] = [one[2] for one in some]  # type: ignore[misc]
        commands = [poll.command for poll in polls]
        queue = commands[0].queue
        try:
            now_ms = self._host.admit()
            if self._host.polls.count(queue):
                self._host.polls.serve_first(queue, len(polls))
            outcomes = self._host.run(self._shard.receive, commands, now_ms)
        except Exception as problem:
            self._refuse(some, problem)
            return
        join_leases(outcomes)
        replies: list[Reply] = []
        for poll, outcome in zip(polls, outcomes, strict=True):
            if isinstance(outcome, BatonError):
                tell(poll.take_done(), outcome)
            elif outcome.slots or poll.command.wait_ms <= 0 or self._host.polls.answers_at_once:
                replies.append((poll.take_done(), outcome))
            else:
                try:
                    self._host.polls.add(poll)
                except OverLimit as problem:
                    tell(poll.take_done(), problem)
        if replies:
            self._commit.reply(replies)


def join_leases(outcomes: Sequence[Leases | BatonError]) -> None:
    """Let leases of requests that were served together be read and sealed together."""
    if len(outcomes) > 1:
        apart = [one for one in outcomes if isinstance(one, Leases) and one.slots and one.whole is None]
        if len(apart) > 1 and len({(one.leased_ms, one.deadline_ms) for one in apart}) == 1:
            apart[0].join(apart[1:])


def size_of(command: Command) -> int:
    """The approximate number of bytes that a command puts into a frame beside its records."""
    if not isinstance(command, Send):
        return 0
    size = sum(map(len, command.bodies)) + len(command.bodies) * (HEAD_BYTES + len(command.sender))
    for column in (command.attributes, command.groups, command.dedup_ids, command.traces):
        if column:
            size += sum(map(len, column))
    return size


def messages_of(command: Command) -> int:
    """The maximum number of messages that a command concerns."""
    if isinstance(command, Send):
        return len(command.bodies)
    return command.max_messages if isinstance(command, Receive) else len(command.claims)

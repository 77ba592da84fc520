"""Bugs to plant into the path of a command to its shard and back: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from batonq.core.commands import Accepted, Command, Send, Sent
from batonq.core.shard.commands.send import SendCommands
from batonq.errors import BatonError
from batonq.node import broker
from batonq.node.catalog.queue_control import Queue
from batonq.node.routing import splitter as spreading
from batonq.node.routing.shard_attempts import Offering
from batonq.node.routing.spread_sdk_retry import NamedSends, Results, _sending
from batonq.node.routing.submission import Done
from batonq.node.shard_host.command_groups import CommandGroups, Submitted
from batonq.node.shard_host.group_commit import GroupCommit, Reply
from batonq.node.shard_host.waiters import Poll
from sim.patches import Patches


def outcomes_permuted() -> Patches:
    """Requests that are executed together get each other's outcomes."""
    send = SendCommands.send

    def permuted(self: SendCommands, commands: Sequence[Send], now: int) -> list[Sent]:
        outcomes = send(self, commands, now)
        alike = [at for at, command in enumerate(commands) if len(command.bodies) == len(commands[0].bodies)]
        told = [outcomes[at] for at in [*alike[1:], *alike[:1]]]
        for at, outcome in zip(alike, told, strict=True):
            outcomes[at] = outcome
        return outcomes

    return [(SendCommands, "send", permuted)]


def group_left_half_done() -> Patches:
    """Of requests that are too many to be executed at once, only the first portion is executed."""
    portions = CommandGroups._portions

    def first_portion(self: CommandGroups, group: Sequence[Submitted]) -> Iterator[Sequence[Submitted]]:
        yield next(portions(self, group))

    return [(CommandGroups, "_portions", first_portion)]


def arrivals_during_an_append_forgotten() -> Patches:
    """A command that arrives while a frame is being written waits until another command arrives."""

    def submit(self: CommandGroups, command: Command, done: Done) -> Poll | None:
        if not self.arrived and self._commit.appending:
            self.arrived[type(command), command.queue, None] = [(command, done, None)]
            return None
        return submit_it(self, command, done)

    submit_it = CommandGroups.submit
    return [(CommandGroups, "submit", submit)]


def failed_commit_told_as_success() -> Patches:
    """A caller that waits for a commit is told that it succeeded when the log has failed."""
    reply = GroupCommit.reply

    def reply_anyhow(self: GroupCommit, replies: list[Reply]) -> None:
        reply(self, [(partial(_ignore_the_result, done, outcome), None) for done, outcome in replies])

    return [(GroupCommit, "reply", reply_anyhow)]


def _ignore_the_result(done: Done, outcome: object, result: object) -> None:
    done(outcome)


def splitter_drops_a_message() -> Patches:
    """The last of several messages for one shard gets the answer of its neighbour, and is not sent."""
    offer_part = Offering._offer_part

    async def all_but_one(self: Offering, shard: int, places: list[int]) -> None:
        if len(places) == 1:
            await offer_part(self, shard, places)
            return
        await offer_part(self, shard, places[:-1])
        self.results[places[-1]] = self.results[places[-2]]

    return [(Offering, "_offer_part", all_but_one)]


def splitter_sends_a_message_twice() -> Patches:
    """The first of several messages for one shard is sent to it twice."""
    offer_part = Offering._offer_part

    async def one_more(self: Offering, shard: int, places: list[int]) -> None:
        await offer_part(self, shard, places)
        if len(places) > 1:
            await self._offer(shard, places[:1], self._turn)

    return [(Offering, "_offer_part", one_more)]


def splitter_permutes_answers() -> Patches:
    """Messages for the same shard get each other's answers."""

    async def backwards(self: Offering, shard: int, places: list[int]) -> None:
        await offer_part(self, shard, places)
        answers = [self.results[place] for place in places]
        for place, answer in zip(reversed(places), answers, strict=True):
            self.results[place] = answer

    offer_part = Offering._offer_part
    return [(Offering, "_offer_part", backwards)]


def joined_results_in_the_wrong_places() -> Patches:
    """Receipts of several shards get each other's results."""
    join = spreading.joined

    async def backwards(
        count: int, parts: dict[int, list[int]], act: Callable[[int, list[int]], Awaitable[Sequence[Any]]]
    ) -> list[Any]:
        return (await join(count, parts, act))[::-1]

    return [(broker, "joined", backwards)]


def retry_goes_home() -> Patches:
    """A retried request is sent to its home shard, whichever shard took the first attempt."""

    async def send_again(self: NamedSends, queue: Queue, command: Send, name: int) -> Results:
        home = queue.spread.asked(name)[-1]
        return await self._shards.ask(queue, home, _sending(command, name))

    return [(NamedSends, "_send_again", send_again)]


def refused_messages_acknowledged() -> Patches:
    """A batch that was accepted in part is reported as accepted completely."""
    results = Sent.results

    def taken(self: Sent) -> Sequence[Accepted | BatonError]:
        each = results(self)
        accepted = next((one for one in each if isinstance(one, Accepted)), None)
        return each if accepted is None else [accepted if isinstance(one, BatonError) else one for one in each]

    return [(Sent, "results", taken)]


def numbers_of_batches_begin_anew() -> Patches:
    """Batches that were accepted in part report sequences of the shard instead of numbers in the queue."""
    numbered = Sent.numbered

    def of_runs(self: Sent, numbers_from: int) -> Sent:
        return numbered(self, numbers_from) if self.first else self

    return [(Sent, "numbered", of_runs)]


PATH_BUGS: dict[str, Callable[[], Patches]] = {
    "outcomes-permuted": outcomes_permuted,
    "group-left-half-done": group_left_half_done,
    "arrivals-during-an-append-forgotten": arrivals_during_an_append_forgotten,
    "failed-commit-told-as-success": failed_commit_told_as_success,
    "splitter-drops-a-message": splitter_drops_a_message,
    "splitter-sends-a-message-twice": splitter_sends_a_message_twice,
    "splitter-permutes-answers": splitter_permutes_answers,
    "joined-results-in-the-wrong-places": joined_results_in_the_wrong_places,
    "refused-messages-acknowledged": refused_messages_acknowledged,
    "numbers-of-batches-begin-anew": numbers_of_batches_begin_anew,
}

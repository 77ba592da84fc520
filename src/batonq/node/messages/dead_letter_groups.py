"""Dead letters in groups, see dead_letter_traits.py, of one shard or of a whole queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from batonq.core.commands import Failure
from batonq.core.payload import STORED, Content, Lineage, decode_pointer
from batonq.core.records import State
from batonq.errors import Unavailable
from batonq.node.messages.dead_letter_traits import Traits, last_error, traits_from
from batonq.node.messages.log_reader import RecentFrames
from batonq.node.messages.peek import Peeked, read_view
from batonq.node.shard_host.host import ShardHost, committed

EXAMINED_MAX = 10_000  # messages per request
READ_BYTES_MAX = 64 << 20  # per request
TURN_MESSAGES = 50
TURN_BYTES = 64 << 10  # the shape of a larger body takes a turn of its own
GROUPS_MAX = 100
EXAMPLES_MAX = 3
EXAMPLE_BYTES_MAX = 2_048  # of a body, and of all attributes


@dataclass(slots=True)
class Group:
    """The dead letters of one group on one shard, as far as they were examined."""

    key: str
    traits: Traits
    reason: str  # as the newest one has it
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    examples: list[Peeked] = field(default_factory=list)


@dataclass(slots=True)
class DeadLetters:
    examined: int
    complete: bool  # all dead letters were examined
    groups: list[Group]  # the largest first
    omitted: int = 0  # smaller groups that are not listed


async def group_dead_letters(host: ShardHost, queue: int, only_dead: bool, examine_max: int) -> DeadLetters:
    """Group the newest messages of a dead-letter queue, or the newest DEAD messages of another queue."""
    host.counters(queue)  # records what is due; raises QueueDoesNotExist
    newest = host.shard.newest(queue, examine_max)
    await committed(host)
    frames = RecentFrames(host.log)
    groups: dict[str, Group] = {}
    read_bytes = turn = turn_bytes = examined = 0
    for slot, sequence in newest:
        if read_bytes >= READ_BYTES_MAX:
            break
        examined += 1
        turn += 1
        if host.shard.has(slot, sequence) and (not only_dead or host.shard.state_at(slot) == State.DEAD):
            view = host.shard.view(slot)
            failure = host.shard.failure_of(slot)
            peeked = await read_view(host, view, frames)
            read_bytes += view.length
            turn_bytes += view.length
            if not peeked.problem:
                _add(groups, peeked, failure)
        if turn >= TURN_MESSAGES or turn_bytes >= TURN_BYTES:
            turn = turn_bytes = 0
            await asyncio.sleep(0)
            if not host.serving:
                raise Unavailable(host.why)
    complete = examined == len(newest) and len(newest) < examine_max
    return largest(DeadLetters(examined, complete, list(groups.values())))


def _add(groups: dict[str, Group], peeked: Peeked, failure: Failure | None) -> None:
    past = peeked.lineage or Lineage()
    traits = traits_from(past, failure, peeked.body, peeked.content)
    key = traits.key
    group = groups.get(key)
    if group is None:
        group = groups[key] = Group(key, traits, last_error(past, failure)[1])
    at_ms = peeked.view.last_failure_ms or past.moved_ms or past.last_failure_ms or peeked.view.sent_ms
    group.count += 1
    group.first_ms = min(group.first_ms or at_ms, at_ms)
    group.last_ms = max(group.last_ms, at_ms)
    if len(group.examples) < EXAMPLES_MAX:
        group.examples.append(_cut(peeked))


def _cut(peeked: Peeked) -> Peeked:
    """An example that is short enough for a list. A body that is cut is text, unless it is bytes."""
    if len(peeked.attributes) > EXAMPLE_BYTES_MAX:
        peeked = peeked._replace(attributes=b"")
    if len(peeked.body) <= EXAMPLE_BYTES_MAX:
        return peeked
    start = peeked.body[:EXAMPLE_BYTES_MAX]
    if peeked.content & STORED:
        size = decode_pointer(peeked.body)[1]
        return peeked._replace(body=b"", content=int(Content.TEXT), cut_bytes=size)
    if peeked.content == Content.BYTES:
        return peeked._replace(body=start, cut_bytes=len(peeked.body) - len(start))
    text = start.decode(errors="ignore").encode()
    return peeked._replace(body=text, content=int(Content.TEXT), cut_bytes=len(peeked.body) - len(text))


def merged(parts: list[DeadLetters]) -> DeadLetters:
    """The groups of a queue over all its shards."""
    groups: dict[str, Group] = {}
    for part in parts:
        for group in part.groups:
            known = groups.get(group.key)
            if known is None:
                groups[group.key] = group
                continue
            newer = group if group.last_ms > known.last_ms else known
            groups[group.key] = replace(
                newer,
                count=known.count + group.count,
                first_ms=min(known.first_ms, group.first_ms),
                examples=[*known.examples, *group.examples][:EXAMPLES_MAX],
            )
    omitted = sum(part.omitted for part in parts)
    every = list(groups.values())
    return largest(
        DeadLetters(sum(part.examined for part in parts), all(part.complete for part in parts), every, omitted)
    )


def largest(found: DeadLetters) -> DeadLetters:
    groups = sorted(found.groups, key=lambda group: (-group.count, group.key))
    return replace(found, groups=groups[:GROUPS_MAX], omitted=found.omitted + max(0, len(groups) - GROUPS_MAX))

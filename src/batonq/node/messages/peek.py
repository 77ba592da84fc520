"""Peeks at a queue without changing it: its messages in their current state, and why each is not being delivered.

Only committed state is shown. In a long queue the walk to a page goes in steps, with client requests in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from batonq.core.commands import Counters, MessageView
from batonq.core.ids import message_id
from batonq.core.payload import REFERS, STORED, Lineage, Payload, decode_attributes
from batonq.core.policy import PAUSES_DELIVERY, QueuePolicy
from batonq.core.records import Reason, State
from batonq.core.shard.state.columns import NIL
from batonq.errors import LogError, MessageGone, OverLimit, Unavailable
from batonq.node.clock import clock_time, duration
from batonq.node.messages.log_reader import RecentFrames, read_message
from batonq.node.shard_host.host import ShardHost, committed
from batonq.quantities import plural

EXAMINED_MAX = 10_000  # messages per request
STEP_MESSAGES = 50  # examined before other requests get a turn
READ_STEP_BYTES = 1 << 20
READ_BYTES_MAX = 64 << 20  # per request
FOUND_BYTES_MAX = 4 << 20  # per page
SEEK_STEPS_MAX = 10_000
GONE = "The message was deleted or moved in the meantime."
_NOTHING = Payload(0, "", "", "", "", b"", b"", b"", b"")

NameOf = Callable[[int], str]  # queue number → name; empty when the queue was deleted


class Peeked(NamedTuple):
    """A message in its current state, without a lease."""

    message_id: str
    view: MessageView
    body: bytes
    attributes: bytes  # see core/payload.py
    group: str
    dedup_id: str
    sender: str
    trace: str
    lineage: Lineage | None
    problem: str  # why body and attributes could not be read; else empty
    content: int = 0  # type of the body, see core/payload.py
    current_id: str = ""  # the id of its current place; `message_id` is the id with which it was sent
    cut_bytes: int = 0  # bytes of the body that were cut off
    envelope: bytes = b""  # of a copy of a published message: the body is shown in it, see envelope.py


class PeekFilter(NamedTuple):
    """Conditions that a message must meet, all of them. Zero and empty mean any."""

    state: int = 0
    text: str = ""  # part of the body, or of the name or value of an attribute
    group: str = ""
    error_class: str = ""  # of its last failure, in this queue or before it was moved here
    holder: str = ""
    original_id: str = ""  # the id with which it was sent, before it was moved

    def admits(self, view: MessageView) -> bool:
        """Whether a message may match, by what is known without reading it."""
        return (not self.state or view.state == self.state) and (not self.holder or view.holder == self.holder)

    def matches(self, peeked: Peeked) -> bool:
        if self.group and peeked.group != self.group:
            return False
        past = peeked.lineage
        if self.error_class and self.error_class != (peeked.view.error_class or (past.error_class if past else "")):
            return False
        if self.original_id and (
            past is None or past.moved == "replay" or self.original_id not in (past.message_id, past.first_id)
        ):
            return False
        if not self.text:
            return True
        text = self.text.encode(errors="replace")
        in_body = not peeked.content & STORED and text in peeked.body  # bodies in the payload store are not searched
        return in_body or any(
            text in row.name.encode() or text in row.value for row in decode_attributes(peeked.attributes)
        )


ANY_MESSAGE = PeekFilter()


class PeekPage(NamedTuple):
    """Messages that match a filter, in order of arrival."""

    messages: list[Peeked]
    examined: int
    after: int  # sequence of the last message that was examined
    complete: bool  # there are no messages after it


async def look(
    host: ShardHost,
    queue: int,
    after_sequence: int,
    limit: int,
    wanted: PeekFilter = ANY_MESSAGE,
    examine_max: int = EXAMINED_MAX,
) -> PeekPage:
    """Examine messages in order of arrival, in any state, until `limit` of them match.

    The page ends earlier if it has examined `examine_max` messages, or read or found too many bytes.
    """
    found: list[Peeked] = []
    frames = RecentFrames(host.log)
    examined = read_bytes = found_bytes = 0
    after, slot, sequence = after_sequence, NIL, 0
    while True:
        slot = await first_after(host, queue, after, slot, sequence)
        step = min(limit - len(found) if wanted == ANY_MESSAGE else STEP_MESSAGES, examine_max - examined)
        views = host.shard.views(slot, step)
        await committed(host)
        turn_bytes = 0
        for view in views:
            examined += 1
            after, slot, sequence = view.sequence, view.slot, view.sequence
            if not wanted.admits(view):
                continue
            peeked = await read_view(host, view, frames)
            turn_bytes += view.length
            read_bytes += view.length
            if wanted.matches(peeked):
                found.append(peeked)
                found_bytes += view.length
            if turn_bytes > READ_STEP_BYTES:
                turn_bytes = 0
                await asyncio.sleep(0)
                if not host.serving:
                    raise Unavailable(host.why)
            if len(found) >= limit or found_bytes > FOUND_BYTES_MAX or read_bytes > READ_BYTES_MAX:
                return PeekPage(found, examined, after, _is_last(host, view))
        if len(views) < step:
            return PeekPage(found, examined, after, True)
        if examined >= examine_max:
            return PeekPage(found, examined, after, _is_last(host, views[-1]))
        await asyncio.sleep(0)


async def read_view(host: ShardHost, view: MessageView, frames: RecentFrames | None = None) -> Peeked:
    """The content of a message whose state is committed."""
    await warm(host, view)
    return _read(host, view, frames)


async def first_after(host: ShardHost, queue: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> int:
    """The slot of the first message after a sequence, or NIL. A known earlier message shortens the search."""
    slot, found = host.seek(queue, after_sequence, slot, sequence)
    for _ in range(SEEK_STEPS_MAX):
        if found:
            return slot
        sequence = host.shard.sequence_at(slot)
        await asyncio.sleep(0)
        slot, found = host.seek(queue, after_sequence, slot, sequence)
    raise OverLimit("The queue changes too fast to find this position. Retry.")


def _is_last(host: ShardHost, view: MessageView) -> bool:
    """Whether the queue has no message after this one, as far as that is known without a search."""
    shard = host.shard
    return shard.has(view.slot, view.sequence) and shard.next_in_queue(view.slot) == NIL


async def warm(host: ShardHost, view: MessageView) -> None:
    """Load the frame of a message that is only on the disk, so that other requests need not wait for it."""
    number = view.position >> 16
    if host.log.is_cold(number):
        await asyncio.get_running_loop().run_in_executor(None, host.log.warm, [number])


def _read(host: ShardHost, view: MessageView, frames: RecentFrames | None = None) -> Peeked:
    payload, problem = _NOTHING, ""
    try:
        payload = read_message(host.shard, host.log, view, frames)
    except MessageGone:
        problem = GONE
    except LogError as error:
        problem = error.message
    return peeked_from(host.shard.number, view, payload, problem)


def peeked_from(shard: int, view: MessageView, payload: Payload | None, problem: str = "") -> Peeked:
    payload = payload or _NOTHING
    lineage = Lineage.decode(payload.lineage) if payload.lineage else None
    current_id = message_id(shard, view.sequence)
    shown_id = (lineage.message_id if lineage is not None else "") or current_id
    return Peeked(
        shown_id,
        view,
        payload.body,
        payload.attributes,
        payload.group,
        payload.dedup_id,
        payload.sender,
        payload.trace,
        lineage,
        problem,
        payload.content & ~REFERS,
        current_id,
        envelope=payload.envelope,
    )


# --- why a message is not delivered -------------------------------------------------------------


class Situation(NamedTuple):
    """The facts beside the message that its explanation depends on."""

    now_ms: int
    policy: QueuePolicy
    counters: Counters
    name_of: NameOf


def why(view: MessageView, situation: Situation, group: str = "") -> str:
    """One sentence: why the message is not being delivered now, or that it waits for a receive. `group` is the name of
    its message group.
    """
    if view.state == State.IN_FLIGHT:
        attempt = f"attempt {view.epoch}" + (f" of at most {view.maximum}" if view.maximum else "")
        return f"Held by {view.holder} until {_until(view, situation)}, {attempt}."
    if view.state == State.DELAYED:
        return _why_delayed(view, situation)
    if view.state == State.VISIBLE:
        return _why_held_back(view, situation, group) or _why_waiting(view, situation)
    if view.state == State.OWED:
        name = situation.name_of(view.moves_to) or "a deleted queue"
        by = {Reason.REDRIVE: "by a move task", Reason.FANOUT: "as a copy of a published message"}
        return f"Being moved to {name}, {by.get(Reason(view.moves_for), 'as a dead letter')}."
    return _why_dead(view, situation)


def _until(view: MessageView, situation: Situation) -> str:
    left = duration(max(0, view.until_ms - situation.now_ms))
    return f"{clock_time(view.until_ms, situation.now_ms)} ({left} left)"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _subscribed(view: MessageView, situation: Situation) -> str:
    """The queue that a copy in a topic is for."""
    name = situation.name_of(view.moves_to) if view.moves_to else ""
    return f"the subscribed queue {name}" if name else "a queue that no longer exists"


def _why_delayed(view: MessageView, situation: Situation) -> str:
    if view.moves_for == Reason.FANOUT:
        return f"Refused by {_subscribed(view, situation)}; next retry at {_until(view, situation)}."
    if view.moves_for:
        name = situation.name_of(situation.policy.dead_letter_queue)
        which = f"Its dead-letter queue {name}" if name else "Its dead-letter queue, which does not exist,"
        return f"{which} refused it {_times(view.refusals)}; next retry at {_until(view, situation)}."
    after = f", after attempt {view.epoch}" if view.epoch else ""
    return f"Delayed until {_until(view, situation)}{after}."


def _why_held_back(view: MessageView, situation: Situation, group: str) -> str:
    """Why the queue does not deliver a message that could be received; empty if it does."""
    policy = situation.policy
    if policy.paused in PAUSES_DELIVERY:
        return "Waiting: delivery of the queue is paused."
    if policy.only_group and group != policy.only_group:
        return f"Waiting: the queue delivers only messages of the group {policy.only_group!r}."
    if view.priority < policy.priority_min:
        return f"Waiting: the queue delivers only messages of priority {policy.priority_min} or above."
    return ""


def _why_waiting(view: MessageView, situation: Situation) -> str:
    policy = situation.policy
    if policy.topic:
        return f"Behind an earlier message of its group that {_subscribed(view, situation)} has not accepted yet."
    if view.ahead and view.ahead != State.VISIBLE:
        words = {State.IN_FLIGHT: "in flight", State.DELAYED: "delayed", State.OWED: "being moved to another queue"}
        return f"Behind an earlier message of its group that is {words[State(view.ahead)]}."
    if view.maximum and view.epoch >= view.maximum:
        name = situation.name_of(policy.dead_letter_queue) or "its dead-letter queue"
        then = f"moves it to {name}" if policy.dead_letter_queue else "makes it dead"
        return f"Received {_times(view.epoch)} of at most {view.maximum}: the next receive {then}."
    if situation.counters.in_flight >= policy.in_flight_max:
        return f"Waiting: the queue has reached its limit of messages in flight, {policy.in_flight_max}."
    if policy.deliveries_per_s:
        cap = plural(policy.deliveries_per_s, "message")
        return f"Waiting its turn: the queue delivers at most {cap} per second."
    if view.ahead:
        return "Waiting to be received, after earlier messages of its group."
    return f"Waiting to be received again, after attempt {view.epoch}." if view.epoch else "Waiting to be received."


def _why_dead(view: MessageView, situation: Situation) -> str:
    verb = "had" if situation.policy.dead_letter_queue else "has"
    none = f"and the queue {verb} no dead-letter queue"
    if view.maximum and view.epoch >= view.maximum:
        return f"Dead: received {_times(view.epoch)} of at most {view.maximum}, {none}."
    return f"Dead: given up after {view.epoch} receive{'' if view.epoch == 1 else 's'}, {none}."

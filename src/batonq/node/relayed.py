"""Plain calls of another node's clients, many of them as one call: their form, and how a shard's owner runs them.

They are run together, as the owner's own are, and answered once they are committed. An answer of None says that a call
was not run: the queue has gone, there is nothing to receive, a limit is reached; the node that was asked goes the
general way with it (see relaying.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from batonq.core.commands import Claim, FirstLeases
from batonq.core.payload import TEXTS
from batonq.errors import BY_CODE, BatonError
from batonq.node import events
from batonq.node.deliveries import ANSWER_BYTES_MAX, Deliveries, Delivery
from batonq.node.host import ShardHost, committed

FIRST_EPOCH = 1
FAULT = "An internal error occurred; see the server's log."
_Told = tuple[str, str]  # the code and the message of an error


class RelayedSend(Struct, array_like=True, tag=0, gc=False):
    """Messages that are nothing but bodies. `invocation` is the hash of the request's name, or 0."""

    queue: int
    sender: str
    content: int
    invocation: int
    bodies: list[bytes]
    digests: list[bytes]


class RelayedReceive(Struct, array_like=True, tag=1, gc=False):
    """A receive that does not wait. Account and name are the queue's, see deliveries.QueueRef."""

    queue: int
    account: str
    name: str
    holder: str
    max_messages: int
    visibility_ms: int | None

    @property
    def number(self) -> int:
        return self.queue


class RelayedDelete(Struct, array_like=True, tag=2, gc=False):
    queue: int
    claims: list[tuple[int, int, int]]


class RelayedSent(Struct, array_like=True, tag=0, gc=False):
    """The first sequence; the others follow."""

    first: int


class RelayedTexts(Struct, array_like=True, tag=1, gc=False):
    """First leases of messages that are nothing but a text, as columns. Whoever asked makes the receipts."""

    slots: list[int]
    sequences: list[int]
    sents_ms: list[int]
    leased_ms: int
    deadline_ms: int
    contents: list[int]
    digests: list[bytes]
    bodies: list[bytes]


class RelayedDeliveries(Struct, array_like=True, tag=2, gc=False):
    """First leases of any messages. Some may be gone by now."""

    slots: list[int]
    sequences: list[int]
    deliveries: list[Delivery]


class RelayedDone(Struct, array_like=True, tag=3, gc=False):
    """Deleted: what is wrong with each claim, or nothing at all if all is well."""

    told: list[_Told | None]

    def problems(self) -> list[BatonError | None]:
        return [None if one is None else _error(one) for one in self.told]


class RelayedProblem(Struct, array_like=True, tag=4, gc=False):
    """It may have been run, and got no answer."""

    told: _Told

    def problem(self) -> BatonError:
        return _error(self.told)


RelayedCall = RelayedSend | RelayedReceive | RelayedDelete
RelayedAnswer = RelayedSent | RelayedTexts | RelayedDeliveries | RelayedDone | RelayedProblem | None


class _Leased(NamedTuple):
    """What receives got that were run together: (place, start, end) of each."""

    call: RelayedReceive
    leases: FirstLeases
    parts: list[tuple[int, int, int]]


def claims_of(answer: RelayedTexts | RelayedDeliveries) -> list[Claim]:
    """The leases that are in an answer."""
    return [Claim(slot, sequence, FIRST_EPOCH) for slot, sequence in zip(answer.slots, answer.sequences, strict=True)]


def without_leases(
    calls: Sequence[RelayedCall], answers: Sequence[RelayedAnswer]
) -> tuple[list[RelayedAnswer], list[tuple[int, list[Claim]]]]:
    """The answers as if nothing had been received, and the leases of each queue that are to be given back for that."""
    left: list[RelayedAnswer] = []
    claims: list[tuple[int, list[Claim]]] = []
    for call, answer in zip(calls, answers, strict=True):
        if isinstance(answer, RelayedTexts | RelayedDeliveries):
            claims.append((call.queue, claims_of(answer)))
            left.append(None)
        else:
            left.append(answer)
    return left, claims


async def run_relayed(host: ShardHost, deliveries: Deliveries, calls: Sequence[RelayedCall]) -> list[RelayedAnswer]:
    """One answer each. Raises Unavailable when what was decided could not be committed."""
    answers: list[RelayedAnswer] = [None] * len(calls)
    sends: dict[tuple[int, str, int], list[int]] = {}  # by what must be alike to be run together
    receives: dict[tuple[int, int | None], list[int]] = {}
    deletes: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        if isinstance(call, RelayedSend):
            sends.setdefault((call.queue, call.sender, call.content), []).append(place)
        elif isinstance(call, RelayedReceive):
            receives.setdefault((call.queue, call.visibility_ms), []).append(place)
        else:
            deletes.setdefault(call.queue, []).append(place)
    for places in sends.values():
        _send(host, calls, places, answers)
    for places in deletes.values():
        _delete(host, calls, places, answers)
    leased = [found for places in receives.values() if (found := _receive(host, calls, places)) is not None]
    if leased or any(answers):
        await committed(host)
    for one in leased:
        try:
            await _hand_out(host, deliveries, one, answers)
        except Exception as problem:  # these receives get an error; what the other calls did is committed
            if not isinstance(problem, BatonError):
                events.logger.exception("shard %d: forwarded receives could not be answered", host.shard.number)
            _give_back(host, one)
            told = _told(problem if isinstance(problem, BatonError) else BatonError(FAULT))
            for place, _, _ in one.parts:
                answers[place] = RelayedProblem(told)
        except BaseException:  # nobody is told of any of these
            for lost in leased:
                _give_back(host, lost)
            raise
    return answers


def _send(host: ShardHost, calls: Sequence[RelayedCall], places: list[int], answers: list[RelayedAnswer]) -> None:
    some = [call for place in places if isinstance(call := calls[place], RelayedSend)]
    if len(some) > 1 and not are_different([call.invocation for call in some]):
        return
    one = some[0]
    requests = [(call.bodies, call.digests, call.invocation) for call in some]
    try:
        firsts = host.send_together(one.queue, requests, one.sender, one.content)
    except Exception:  # the general way says what it is; the host has logged a fault
        return
    for place, first in zip(places, firsts, strict=False):  # none at all: not as one run
        answers[place] = RelayedSent(first)


def _delete(host: ShardHost, calls: Sequence[RelayedCall], places: list[int], answers: list[RelayedAnswer]) -> None:
    some = [call for place in places if isinstance(call := calls[place], RelayedDelete)]
    queue = some[0].queue
    try:
        together = host.delete_together(queue, [claim for call in some for claim in call.claims])
    except Exception:
        together = False
    for place, call in zip(places, some, strict=True):
        told: list[_Told | None] = []
        if not together:
            try:
                problems = host.delete(queue, [*map(Claim._make, call.claims)])
            except Exception:  # the general way says what it is; the host has logged a fault
                continue
            if any(problems):
                told = [None if problem is None else _told(problem) for problem in problems]
        answers[place] = RelayedDone(told)


def _receive(host: ShardHost, calls: Sequence[RelayedCall], places: list[int]) -> _Leased | None:
    some = [call for place in places if isinstance(call := calls[place], RelayedReceive)]
    one = some[0]
    wants = [(call.holder, call.max_messages) for call in some]
    try:
        found = host.receive_together(one.queue, wants, one.visibility_ms)
    except Exception:  # the general way says what it is; the host has logged a fault
        return None
    if found is None:
        return None
    leases, counts = found
    parts: list[tuple[int, int, int]] = []
    end = 0
    room = ANSWER_BYTES_MAX
    for place, count in zip(places, counts, strict=True):
        size = sum([extent >> 32 for extent in leases.extents[end : end + count]])
        if not count or (parts and size > room):
            break
        parts.append((place, end, end + count))
        room -= size
        end += count
    if end < len(leases.slots):  # too many bytes for one answer
        host.give_back(one.queue, host.shard.expand(leases.part(end, len(leases.slots))))
        leases = leases.part(0, end)
    return _Leased(one, leases, parts)


def _give_back(host: ShardHost, lost: _Leased) -> None:
    host.give_back(lost.call.queue, host.shard.expand(lost.leases))


async def _hand_out(host: ShardHost, deliveries: Deliveries, leased: _Leased, answers: list[RelayedAnswer]) -> None:
    """Answer receives whose leases are committed."""
    call, leases, parts = leased
    if deliveries.is_cold(host, leases):
        await deliveries.warm(host, leases.positions)
    found = deliveries.read(host, leases)
    if found is not None and {*found[0]} - TEXTS:
        found = None
    for place, start, end in parts:
        slots, sequences = [*leases.slots[start:end]], [*leases.sequences[start:end]]
        if found is not None:
            contents, digests, bodies = found
            answers[place] = RelayedTexts(
                slots,
                sequences,
                [*leases.sents_ms[start:end]],
                leases.leased_ms,
                leases.deadline_ms,
                contents[start:end],
                digests[start:end],
                bodies[start:end],
            )
            continue
        try:
            some = await deliveries.front(call, host, leases.part(start, end))
            answers[place] = RelayedDeliveries(slots, sequences, some)
        except BatonError as problem:
            answers[place] = RelayedProblem(_told(problem))


def are_different(invocations: list[int]) -> bool:
    """Else somebody repeats a request that is still here."""
    named = [invocation for invocation in invocations if invocation]
    return len({*named}) == len(named)


def _told(problem: BatonError) -> _Told:
    return problem.code, problem.message


def _error(told: _Told) -> BatonError:
    code, message = told
    return BY_CODE.get(code, BatonError)(message)

"""Reads a queue's retained history for a replay job: which messages match, and the sends that deliver them again.

A replayed message is a new message of the destination, with an id, a sent time and receives of its own. Its lineage
names the message that it repeats. It has no deduplication id of the old one, which would make it a duplicate.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from batonq.core.commands import Accepted, Job, Send
from batonq.core.ids import message_id
from batonq.core.payload import AS_IS, NO_DIGEST, REFERS, STORED, Lineage, Payload, decode_pointer
from batonq.core.shard.commands.replay_jobs import Replayed
from batonq.errors import BatonError, InvalidInput
from batonq.node.jobs.job_runner import ReplayImpossible
from batonq.node.jobs.redrive_filter import Pick, decode_pick
from batonq.node.jobs.redrive_scan import SAMPLE_MAX, Sample, Served
from batonq.node.messages.retained_reader import RetainedMessage, RetainedPage

LOOKED_AT_MAX = 1_000  # per page
SENT_MAX = 500  # per page
PAGE_BYTES_MAX = 4 << 20

Results = Sequence[Accepted | BatonError]
Resend = Callable[[int, Send], Awaitable[Results]]  # to the queue with this number
Read = Callable[[int, int, int, int], Awaitable[RetainedPage]]  # queue, after a position, messages, bytes


class Selection(NamedTuple):
    """Which retained messages a job replays. Times are in milliseconds; `until_ms` 0 means: no end."""

    pick: Pick
    from_ms: int = 0
    until_ms: int = 0
    bytes_max: int = 0  # limit of a message of the destination

    def matches(self, message: RetainedMessage, own_sequence: int, now_ms: int) -> bool:
        if message.time_ms < self.from_ms or (self.until_ms and message.time_ms >= self.until_ms):
            return False
        listed = self.pick.sequences
        if listed is not None:
            at = bisect_left(listed, own_sequence)
            if at == len(listed) or listed[at] != own_sequence:
                return False
        return not self.pick.reads or self.pick.matches(_payload(message), None, max(0, now_ms - message.time_ms))


def encode_selection(pick: str, from_ms: int, until_ms: int, bytes_max: int) -> str:
    """As a job stores it; never empty. `pick` is as redrive_filter.py encodes it."""
    return json.dumps({"pick": pick, "from": from_ms, "until": until_ms, "bytesMax": bytes_max}, separators=(",", ":"))


def decode_selection(text: str) -> Selection:
    values: Mapping[str, Any] = json.loads(text)
    return Selection(decode_pick(values["pick"]), values["from"], values["until"], values["bytesMax"])


def producer_of(job: Job, shard: int) -> str:
    """The name under which a shard's part of a job numbers its messages, by their log positions."""
    return f"replay:{job.id}:{shard}"


async def replay_page(host: Served, read: Read, resend: Resend, job: Job, most: int) -> Replayed:
    """Send the next messages that match, at most `most`. Stops before the first one that the destination refuses.

    Raises the refusal if waiting does not help, and ReplayImpossible.
    """
    look = _Look(host, job, min(most, SENT_MAX))
    page = await look.next_page(read)
    for some in look.runs(page):
        command = _send(job, page, some, host.shard.number, host.now_ms())
        results = await resend(job.destination, command)
        refused = next((at for at, result in enumerate(results) if not isinstance(result, Accepted)), None)
        if refused is not None:
            problem = results[refused]
            assert isinstance(problem, BatonError)
            if not problem.retryable:
                raise problem
            return look.until(page, some[refused], problem.message)
    return look.result(page)


async def replay_preview(host: Served, read: Read, job: Job) -> tuple[Job, list[Sample]]:
    """Examine all messages that a job would look at. Returns the job as it would end, and a sample."""
    retained = host.shard.retained_of(job.source, host.now_ms())
    through = min(job.through_sequence or retained.last, retained.last)
    to_move = max(0, retained.index_after(through) - retained.index_after(job.cursor))
    job = replace(job, started_ms=host.now_ms(), through_sequence=through, to_move=to_move)
    sample: list[Sample] = []
    while job.cursor < through and (not job.max_messages or job.matched < job.max_messages):
        look = _Look(host, job, job.max_messages - job.matched if job.max_messages else LOOKED_AT_MAX)
        try:
            page = await look.next_page(read)
        except ReplayImpossible as problem:
            raise InvalidInput(str(problem)) from None
        found = look.result(page)
        sample += [_sample(page, at) for at in look.chosen[: SAMPLE_MAX - len(sample)]]
        job = replace(
            job, cursor=found.through, examined=job.examined + found.examined, matched=job.matched + found.matched
        )
    return replace(job, state="COMPLETED", ended_ms=host.now_ms()), sample


class _Look:
    """The messages of one page that a job looks at, and those that it chooses."""

    def __init__(self, host: Served, job: Job, most: int) -> None:
        self.host, self.job, self.most = host, job, most
        self.selection = decode_selection(job.selection)
        self.chosen: list[int] = []  # indexes in the page
        self._end = 0  # index behind the last message that was looked at

    async def next_page(self, read: Read) -> RetainedPage:
        point = self.host.point()
        if point is not None:
            await point
        page = await read(self.job.source, self.job.cursor, LOOKED_AT_MAX, PAGE_BYTES_MAX)
        now_ms = self.host.now_ms()
        for at, message in enumerate(page.messages()):
            if len(self.chosen) == self.most or message.position > self.job.through_sequence:
                break
            self._end = at + 1
            if self.selection.matches(message, page.sequences[at], now_ms):
                self._check(message)
                self.chosen.append(at)
        return page

    def _check(self, message: RetainedMessage) -> None:
        body_bytes = decode_pointer(message.body)[1] if message.content & STORED else len(message.body)
        size = body_bytes + len(message.attributes)
        if self.selection.bytes_max and size > self.selection.bytes_max:
            raise ReplayImpossible(
                f"Message {message.message_id} has {size} bytes, and the limit of the target queue is "
                f"{self.selection.bytes_max}. Raise the limit, or leave the message out with a filter, and start again."
            )

    def runs(self, page: RetainedPage) -> Iterator[list[int]]:
        """The chosen messages in order, in runs of one sender."""
        run: list[int] = []
        for at in self.chosen:
            if run and page.senders and page.senders[at] != page.senders[run[-1]]:
                yield run
                run = []
            run.append(at)
        if run:
            yield run

    def result(self, page: RetainedPage) -> Replayed:
        is_last = self._end == len(page) and not page.left
        beyond = self._end < len(page) and page.positions[self._end] > self.job.through_sequence
        through = self.job.through_sequence if is_last or beyond else page.positions[self._end - 1]
        return Replayed(through, self._end, len(self.chosen))

    def until(self, page: RetainedPage, at: int, why: str) -> Replayed:
        """What was done before the message at an index, which was refused."""
        through = page.positions[at] - 1
        return Replayed(through, at, sum(one < at for one in self.chosen), why)


def _send(job: Job, page: RetainedPage, places: Sequence[int], shard: int, now_ms: int) -> Send:
    def column(values: Sequence[Any]) -> list[Any]:
        return [values[at] for at in places] if values else []

    positions = column(page.positions)
    contents = column(page.contents)
    digests = [
        b"" if content & NO_DIGEST else digest for content, digest in zip(contents, column(page.digests), strict=True)
    ]
    command = Send(
        job.destination,
        column(page.bodies),  # or pointers to the same bodies in the payload store
        digests,
        page.senders[places[0]] if page.senders else "",
        contents=[content & ~NO_DIGEST for content in contents],
        attributes=column(page.attributes),
        groups=column(page.groups),
        traces=column(page.traces),
        priorities=column(page.priorities),
        producer=producer_of(job, shard),
        numbers=positions,
        lineages=[_lineage(job, page, at, now_ms) for at in places],
    )
    if page.groups:  # a FIFO message shows a deduplication id; this one can only be that of the same replay
        command.dedup_ids = [f"replay-{job.id}-{shard}-{position}" for position in positions]
    return command


def _lineage(job: Job, page: RetainedPage, at: int, now_ms: int) -> bytes:
    """Where the message comes from: what a replay of a replay repeats is the first message."""
    past = Lineage.decode(page.lineages[at]) if page.lineages else Lineage()
    own_id = message_id(page.shard, page.sequences[at])
    return Lineage(
        first_queue=past.first_queue or job.source,
        first_arn=past.first_arn or job.source_arn,
        first_id=past.first_id or own_id,
        moved_ms=now_ms,
        moved="replay",
    ).encode()


def _payload(message: RetainedMessage) -> Payload:
    return Payload(
        message.sent_ms,
        message.sender,
        message.group,
        message.dedup_id,
        message.trace,
        b"",
        message.attributes,
        message.body,
        b"",
        message.content,
    )


def _sample(page: RetainedPage, at: int) -> Sample:
    own_id = message_id(page.shard, page.sequences[at])
    return Sample(
        message_id=page.message_ids()[at],
        sequence=page.sequences[at],
        body=page.bodies[at],
        content=page.contents[at] & ~(NO_DIGEST | AS_IS | REFERS),
        attributes=page.attributes[at] if page.attributes else b"",
        error_class="",
        reason="",
        sent_ms=page.times_ms[at],
        current_id=own_id,
    )

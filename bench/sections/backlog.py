"""Deep backlogs: whether receive and delete slow down, and how much memory a waiting message needs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench import bodies
from bench.context import Context, Meter, consume_all, send_all, supply
from bench.flows import Prepared, Work
from bench.report import Sample
from bench.servers import Server
from bench.sqs import SqsQueue

_CONNECTIONS = 16
_SMALL = 10_000
_SMALL_GROUPS = 500
_CYCLE = 5_000  # messages consumed and then sent again, so that a backlog keeps its depth
_WARM = 30_000
_SETTLE_S = 2.0

_dedup_numbers = itertools.count()


@dataclass(slots=True)
class Filled:
    """A server with a backlog, and its memory."""

    server: Server
    work: Work
    waiting: int
    bytes_a_message: float


def grouped(work: Work, messages: int, groups: int) -> Iterator[Prepared]:
    """Batches for a FIFO queue, over several groups in turn, each message with its own deduplication id."""
    assert isinstance(work, SqsQueue)
    texts = bodies.texts(200)
    names = itertools.cycle(range(groups))
    for start in range(0, messages, 10):
        batch = [texts[(start + place) % len(texts)] for place in range(10)]
        group_names = [f"group-{next(names):07d}" for _ in batch]
        dedup_ids = [f"message-{next(_dedup_numbers):012d}" for _ in batch]
        yield work.prepare(batch, group_names, dedup_ids)


def fill(context: Context, messages: int, groups: int = 0) -> Filled:
    """A fresh Baton with a backlog; its base is its memory after enough work to fill its
    caches, with an empty queue.
    """
    server = context.servers.baton()
    warm = server.work(fifo=groups > 0)
    send_all(warm, grouped(warm, _WARM, 100) if groups else supply(warm, bodies.texts(50), _WARM), _CONNECTIONS)
    consume_all(warm, _WARM, _CONNECTIONS)
    base = server.rss_bytes()
    work = server.work(fifo=groups > 0)
    batches = grouped(work, messages, groups) if groups else supply(work, bodies.texts(200), messages)
    sent, _ = send_all(work, batches, _CONNECTIONS)
    time.sleep(_SETTLE_S)  # for work that the server finishes after its last response
    return Filled(server, work, sent, (server.rss_bytes() - base) / sent)


def _consume(filled: Filled, groups: int, cycles: int) -> Sample:
    """Receive and delete, and send as many again; only the first part is timed."""
    seconds = 0.0
    meter = Meter(filled.server)
    sample: Sample = {}
    for _ in range(cycles):
        meter = Meter(filled.server)
        seconds = consume_all(filled.work, _CYCLE, _CONNECTIONS)
        one = meter.sample(_CYCLE, seconds)
        sample = {figure: sample.get(figure, 0.0) + value / cycles for figure, value in one.items()}
        again = grouped(filled.work, _CYCLE, groups) if groups else supply(filled.work, bodies.texts(200), _CYCLE)
        send_all(filled.work, again, _CONNECTIONS)
    return sample


def _compare(context: Context, small: Filled, large: Filled, groups: tuple[int, int], title: str) -> None:
    kinds = {"few waiting": (small, groups[0]), "many waiting": (large, groups[1])}
    samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    cycles = context.size(4, 2)
    for number in range(context.rounds + 1):
        for kind in list(kinds) if number % 2 else list(reversed(kinds)):
            sample = _consume(*kinds[kind], cycles)
            if number:  # the first round warms up
                samples[kind].append(sample)
    table = context.report.table("backlog", title, samples, "messages/s")
    ratio = table.ratio("many waiting", "few waiting", "messages/s")
    context.report.bar("backlog", f"{title}, many ÷ few", ratio, 0.9, at_least=True)


def backlog(context: Context) -> None:
    """Receive and delete with a deep and a shallow queue, on two servers, standard and FIFO."""
    large = _deep(context)
    small = fill(context, _SMALL)
    title = f"receive and delete with {large.waiting:,} and {_SMALL:,} waiting"
    _compare(context, small, large, (0, 0), title)
    context.release_deep()
    small.server.discard()
    messages = context.size(200_000, 40_000)
    groups = context.size(10_000, 2_000)
    large = fill(context, messages, groups)
    small = fill(context, _SMALL, _SMALL_GROUPS)
    title = f"FIFO with {messages:,} waiting in {groups:,} groups and {_SMALL:,} in {_SMALL_GROUPS:,}"
    _compare(context, small, large, (_SMALL_GROUPS, groups), title)
    large.server.discard()
    small.server.discard()


def _deep(context: Context) -> Filled:
    """The deep standard queue, which takes minutes to fill, shared by `backlog` and `memory`."""
    if context.deep is None:
        context.deep = fill(context, context.size(2_000_000, 200_000))
    assert isinstance(context.deep, Filled)
    return context.deep


def memory(context: Context) -> None:
    """Resident memory per waiting message beyond the server's base."""
    deep = _deep(context)
    text = f"resident bytes a message, {deep.waiting:,} waiting"
    context.report.bar("memory", text, deep.bytes_a_message, 120, at_least=False)
    context.release_deep()
    groups = context.size(1_000_000, 100_000)
    grouped_backlog = fill(context, groups, groups)
    text = f"resident bytes a message, {groups:,} FIFO groups"
    context.report.bar("memory", text, grouped_backlog.bytes_a_message, 200, at_least=False)
    grouped_backlog.server.discard()

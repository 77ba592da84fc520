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
    groups: int


@dataclass(slots=True)
class _Depth:
    name: str
    filled: Filled


def grouped(work: Work, messages: int, groups: int) -> Iterator[Prepared]:
    """Batches for a FIFO queue, over several groups in turn, each message with its own deduplication id."""
    assert isinstance(work, SqsQueue)
    texts = bodies.documents(200)
    names = itertools.cycle(range(groups))
    for start in range(0, messages, 10):
        batch = [texts[(start + place) % len(texts)] for place in range(10)]
        group_names = [f"group-{next(names):07d}" for _ in batch]
        dedup_ids = [f"message-{next(_dedup_numbers):012d}" for _ in batch]
        yield work.prepare(batch, group_names, dedup_ids)


def fill(context: Context, build: str, messages: int, groups: int = 0) -> Filled:
    """A fresh Baton with a backlog; its base is its memory after enough work to fill its
    caches, with an empty queue.
    """
    server = context.servers.baton(build=build)
    warm = server.work(fifo=groups > 0)
    send_all(warm, grouped(warm, _WARM, 100) if groups else supply(warm, bodies.documents(50), _WARM), _CONNECTIONS)
    consume_all(warm, _WARM, _CONNECTIONS)
    base = server.rss_bytes()
    work = server.work(fifo=groups > 0)
    batches = grouped(work, messages, groups) if groups else supply(work, bodies.documents(200), messages)
    sent, _ = send_all(work, batches, _CONNECTIONS)
    time.sleep(_SETTLE_S)  # for work that the server finishes after its last response
    return Filled(server, work, sent, (server.rss_bytes() - base) / sent, groups)


def _consume(filled: Filled, cycles: int) -> Sample:
    """Receive and delete, and send as many again; only the first part is timed."""
    groups = filled.groups
    sample: Sample = {}
    for _ in range(cycles):
        meter = Meter(filled.server)
        seconds = consume_all(filled.work, _CYCLE, _CONNECTIONS)
        one = meter.sample(_CYCLE, seconds)
        sample = {figure: sample.get(figure, 0.0) + value / cycles for figure, value in one.items()}
        again = grouped(filled.work, _CYCLE, groups) if groups else supply(filled.work, bodies.documents(200), _CYCLE)
        send_all(filled.work, again, _CONNECTIONS)
    return sample


def _compare(context: Context, small: dict[str, Filled], large: dict[str, Filled], title: str) -> None:
    """`small` and `large` are by build."""
    report = context.report
    depths = []
    for build in context.servers.builds:
        suffix = ", before" if build == "before" else ""
        depths += [_Depth("few waiting" + suffix, small[build]), _Depth("many waiting" + suffix, large[build])]
    cycles = context.size(4, 2)
    samples = context.interleave(depths, lambda depth: _consume(depth.filled, cycles))
    table = report.table("backlog", title, samples, "messages/s")
    ratio = table.ratio("many waiting", "few waiting", "messages/s")
    report.bar("backlog", f"{title}, many ÷ few", ratio, 0.9, at_least=True)
    if len(large) > 1:
        cpu = "server µs/message"
        report.no_worse("backlog", f"{title}, server CPU", table.ratio("many waiting", "many waiting, before", cpu))
        growth = table.ratio("many waiting", "few waiting", cpu)
        before = table.ratio("many waiting, before", "few waiting, before", cpu)
        report.no_worse("backlog", f"{title}, growth of server CPU from few to many", growth / before)


def backlog(context: Context) -> None:
    """Receive and delete with a deep and a shallow queue, on two servers per build, standard and FIFO."""
    builds = context.servers.builds
    large = deep_queues(context)
    small = {build: fill(context, build, _SMALL) for build in builds}
    title = f"receive and delete with {large['Baton'].waiting:,} and {_SMALL:,} waiting"
    _compare(context, small, large, title)
    context.release_deep()
    _discard(small)
    messages = context.size(200_000, 40_000)
    groups = context.size(10_000, 2_000)
    large = {build: fill(context, build, messages, groups) for build in builds}
    small = {build: fill(context, build, _SMALL, _SMALL_GROUPS) for build in builds}
    title = f"FIFO with {messages:,} waiting in {groups:,} groups and {_SMALL:,} in {_SMALL_GROUPS:,}"
    _compare(context, small, large, title)
    _discard(large)
    _discard(small)


def _discard(filled: dict[str, Filled]) -> None:
    for each in filled.values():
        each.server.discard()


def deep_queues(context: Context) -> dict[str, Filled]:
    """The deep standard queue of each build, which takes minutes to fill, shared by `backlog` and `memory`."""
    for build in context.servers.builds:
        if build not in context.deep:
            context.deep[build] = fill(context, build, context.size(2_000_000, 200_000))
    return context.deep


def memory(context: Context) -> None:
    """Resident memory per waiting message beyond the server's base."""
    deep = deep_queues(context)
    _judge_memory(context, deep, f"{deep['Baton'].waiting:,} waiting", 120)
    context.release_deep()
    groups = context.size(1_000_000, 100_000)
    grouped_backlog = {build: fill(context, build, groups, groups) for build in context.servers.builds}
    _judge_memory(context, grouped_backlog, f"{groups:,} FIFO groups", 200)
    _discard(grouped_backlog)


def _judge_memory(context: Context, filled: dict[str, Filled], what: str, limit: float) -> None:
    text = f"resident bytes per message, {what}"
    samples = {build: [{"bytes/message": each.bytes_a_message}] for build, each in filled.items()}
    table = context.report.table("memory", text, samples, "bytes/message")
    context.report.bar("memory", text, filled["Baton"].bytes_a_message, limit, at_least=False)
    if "before" in filled:
        context.report.no_worse("memory", text, table.ratio("Baton", "before", "bytes/message"))

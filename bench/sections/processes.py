"""A server of one process compared with one of two, with the same shards, on this machine's cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import bodies
from bench.context import Context
from bench.flows import Work
from bench.report import Sample
from bench.sections.throughput import life_of
from bench.sqs import SqsQueue

_CONNECTIONS = 16
_SHARDS = 2


@dataclass(slots=True)
class _Contestant:
    name: str
    cpu_us: Callable[[], float]  # of all its processes
    work: Callable[[int], Work]  # number of shards


def processes(context: Context) -> None:
    """Send, receive and delete in batches of ten, with a queue on one shard and a queue on both.

    The client has its own core only if the server leaves it one. With few cores, the server's CPU per message therefore
    tells more than messages per second.
    """
    contestants = [_start(context, count) for count in (1, 2)]
    texts = bodies.documents(200)
    messages = context.size(40_000, 10_000)
    for spread, where in ((1, "one shard"), (_SHARDS, f"{_SHARDS} shards")):

        def measure(contestant: _Contestant, spread: int = spread) -> Sample:
            return life_of(contestant, contestant.work(spread), texts, messages, _CONNECTIONS)

        title = f"send, receive, delete by 10 × 1 KiB, {_CONNECTIONS} connections, a queue on {where}"
        table = context.report.table("processes", title, context.interleave(contestants, measure), "messages/s")
        names = (contestants[1].name, contestants[0].name)
        ratio, cpu = (table.ratio(*names, what) for what in ("messages/s", "server µs/message"))
        context.report.note(f"a queue on {where}, 2 processes ÷ 1: {ratio:.2f} messages/s, {cpu:.2f} server CPU")


def _start(context: Context, count: int) -> _Contestant:
    server = context.servers.baton("--shards", str(_SHARDS), "--processes", str(count))
    made = 0

    def work(spread: int) -> Work:
        nonlocal made
        made += 1
        return SqsQueue(server.port, f"bench-{made}", spread=spread)

    return _Contestant(f"{count} process{'es' if count > 1 else ''}", server.cpu_us, work)

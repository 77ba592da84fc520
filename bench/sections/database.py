"""A node with its log in PostgreSQL, compared with a table with SKIP LOCKED in the same server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import bodies
from bench.context import Context
from bench.flows import Work
from bench.postgres import PostgresServer
from bench.report import Sample
from bench.sections.throughput import life_of

_BATCH = 500
_TITLE = f"life of a message of 1 KiB, batches of {_BATCH}, 1 connection, synced"


@dataclass(slots=True)
class _Contestant:
    name: str
    cpu_us: Callable[[], float]  # of all processes of the server
    work: Callable[[], Work]


def database(context: Context) -> None:
    directory = context.servers.directory / "postgres"
    directory.mkdir()
    postgres = PostgresServer(directory)
    try:
        baton = context.servers.baton("--log-url", postgres.address)
        texts = bodies.documents(_BATCH)
        messages = context.size(20_000, 4_000)
        contestants = [
            _Contestant("Baton, log in PostgreSQL", lambda: baton.cpu_us() + postgres.cpu_us(), baton.rest),
            _Contestant("table, SKIP LOCKED", postgres.cpu_us, postgres.work),
        ]

        def measure(contestant: _Contestant) -> Sample:
            return life_of(contestant, contestant.work(), texts, messages, 1, _BATCH)

        table = context.report.table("database", _TITLE, context.interleave(contestants, measure), "messages/s")
        ratio = table.ratio(contestants[0].name, contestants[1].name, "messages/s")
        context.report.bar("database", f"{contestants[0].name} ÷ {contestants[1].name}", ratio, 1.0, at_least=True)
        baton.stop()
    finally:
        postgres.discard()

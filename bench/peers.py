"""Compares Baton with other durable queues on this machine, at their batch sizes. The bodies are JSON documents.

    python -m bench.peers [--rounds N] [--quick]

Each contestant does the same work in turn, durable before each response. Redis and PostgreSQL are part of the
development requirements; RabbitMQ and NATS are measured if their servers are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import bodies, machine, nats_stream, rabbitmq
from bench.clients import BenchError
from bench.context import Context
from bench.flows import Work
from bench.postgres import PostgresServer
from bench.report import Report, Sample
from bench.sections.throughput import life_of
from bench.servers import Servers

SETTINGS = {
    "Baton SQS": "fdatasync before each answer, one for all requests that arrived in the meantime",
    "Baton REST": "the same; MessagePack",
    "Redis streams": "appendonly, appendfsync always",
    "RabbitMQ": "quorum queue of one member, publisher confirms; acknowledgements are not confirmed",
    "NATS JetStream": "work queue on files, sync_interval: always; acknowledgements are answered",
    "PostgreSQL": "defaults: fsync and synchronous_commit on; table, UPDATE … SKIP LOCKED; Unix socket",
}
_BATCHES = ((10, 1), (10, 16), (500, 1))  # messages per batch, connections


@dataclass(slots=True)
class Peer:
    name: str
    cpu_us: Callable[[], float]
    work: Callable[[], Work]
    batch_max: int
    connections_max: int = 1_000


def _peers(servers: Servers, stack: contextlib.ExitStack, report: Report) -> list[Peer]:
    baton, redis = servers.contestants("Baton", "Redis")
    directory = servers.directory / "postgres"
    directory.mkdir()
    postgres = PostgresServer(directory)
    stack.callback(postgres.discard)
    return [
        Peer("Baton SQS", baton.cpu_us, baton.work, 10),
        Peer("Baton REST", baton.cpu_us, baton.rest, 1_000),
        Peer("Redis streams", redis.cpu_us, redis.work, 1_000),
        Peer("PostgreSQL", postgres.cpu_us, postgres.work, 1_000),
        *_installed(servers, report),
    ]


def _installed(servers: Servers, report: Report) -> list[Peer]:
    """The servers that users install themselves. Their responses are numbered per connection, so they get one."""
    found: list[Peer] = []
    for name, module, queue in (
        ("RabbitMQ", rabbitmq, rabbitmq.QuorumQueue),
        ("NATS JetStream", nats_stream, nats_stream.NatsStream),
    ):
        if module.installed() is None:
            report.note(f"{name} is left out: it is not installed")
            continue
        try:
            server = servers.start(name.replace(" ", "-"), module.server_command, module.is_ready)
        except BenchError as problem:
            report.note(f"{name} is left out: {problem}")
            continue
        numbers = itertools.count(1)

        def work(queue: Callable[[int, str], Work] = queue, port: int = server.port, each: Any = numbers) -> Work:
            return queue(port, f"bench-{next(each)}")

        found.append(Peer(name, server.cpu_us, work, 1_000, connections_max=1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Baton beside other durable queues, here and now.")
    parser.add_argument("--quick", action="store_true", help="smaller work; figures are rougher")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(".bench-data"), help="where the servers keep their files")
    parser.add_argument("--results", type=Path, default=Path("bench/results/peers"), help="where results are written")
    options = parser.parse_args()
    texts = bodies.documents(500)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(Servers(options.data))
        disk = machine.filesystem_type(options.data)
        report = Report({"quick": options.quick, "rounds": options.rounds, "file system": disk})
        context = Context(servers, report, options.quick, options.rounds)
        peers = _peers(servers, stack, report)
        for batch, connections in _BATCHES:
            messages = context.size(20_000, 5_000) if batch > 10 or connections > 1 else context.size(5_000, 2_000)

            def measure(peer: Peer, batch: int = batch, connections: int = connections, n: int = messages) -> Sample:
                return life_of(peer, peer.work(), texts, n, connections, batch)

            able = [peer for peer in peers if peer.batch_max >= batch and peer.connections_max >= connections]
            samples = context.interleave(able, measure)
            plural = "connection" if connections == 1 else "connections"
            report.table("peers", f"batches of {batch}, {connections} {plural}", samples, "messages/s")
        for peer in peers:
            report.note(f"{peer.name}: {SETTINGS[peer.name]}")
        report.finish(options.results)


if __name__ == "__main__":
    main()

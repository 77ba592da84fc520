"""Messages per second: sends compared with the floor, a message's whole life with the floor and Redis, and a mix of
sizes.
"""

from __future__ import annotations

from bench import bodies
from bench.context import Context, Meter, Metered, consume_all, send_all, supply
from bench.flows import Work
from bench.report import Sample, Table
from bench.servers import Server

_CONNECTIONS = 16


def send(context: Context) -> None:
    """SendMessageBatch of ten messages of 1 KiB over 16 connections."""
    messages = context.size(60_000, 10_000)
    texts = bodies.documents(200)

    def measure(server: Server) -> Sample:
        work = server.work()
        meter = Meter(server)
        sent, seconds = send_all(work, supply(work, texts, messages), _CONNECTIONS)
        sample = meter.sample(sent, seconds)
        consume_all(work, sent, _CONNECTIONS)  # an empty queue for the next round
        return sample

    contestants = context.servers.contestants("Baton", "floor")
    samples = context.interleave(contestants, measure)
    table = context.report.table("send", "batches of 10 × 1 KiB, 16 connections", samples, "messages/s")
    ratio = table.ratio("Baton", "floor", "messages/s")
    context.report.bar("send", "sends over 16 connections, Baton ÷ floor", ratio, 0.6, at_least=True)


def _life(server: Server, texts: list[str], messages: int, connections: int) -> Sample:
    """Send all, then receive and delete all."""
    return life_of(server, server.work(), texts, messages, connections)


def life_of(server: Metered, work: Work, texts: list[str], messages: int, connections: int, batch: int = 10) -> Sample:
    meter = Meter(server)
    sent, send_s = send_all(work, supply(work, texts, messages, batch), connections)
    consume_s = consume_all(work, sent, connections, batch)
    sample = meter.sample(sent, send_s + consume_s)
    return sample | {"sent/s": sent / send_s, "consumed/s": sent / consume_s}


def life(context: Context) -> None:
    """Send, receive and delete in batches of ten, on one connection and on 16."""
    report = context.report
    contestants = context.servers.contestants(*context.servers.builds, "floor", "Redis")
    texts = bodies.documents(200)
    for connections, full, quick, bar in ((1, 10_000, 3_000, 1.0), (_CONNECTIONS, 40_000, 10_000, 1.2)):
        messages = context.size(full, quick)
        samples = context.interleave(
            contestants,
            lambda server, n=messages, c=connections: _life(server, texts, n, c),  # type: ignore[misc]
        )
        plural = "connection" if connections == 1 else "connections"
        where = f"{connections} {plural}"
        table = report.table("life", f"send, receive, delete by 10 × 1 KiB, {where}", samples, "messages/s")
        ratio = table.ratio("Baton", "Redis", "messages/s")
        report.bar("life", f"whole life over {where}, Baton ÷ Redis", ratio, bar, at_least=True)
        cpu = table.ratio("Baton", "floor", "server µs/message")
        report.bar("life", f"server CPU per message over {where}, Baton ÷ floor", cpu, 1.3, at_least=False)
        beside = table.ratio("Redis", "floor", "server µs/message")
        report.note(f"beside it: Redis's server CPU is {beside:.2f} of the floor's")
        _no_worse(context, table, f"whole life over {where}")


def _no_worse(context: Context, table: Table, what: str) -> None:
    if "before" in table.samples:
        context.report.no_worse(
            table.section, f"time per message, {what}", table.ratio("before", "Baton", "messages/s")
        )
        cpu = table.ratio("Baton", "before", "server µs/message")
        context.report.no_worse(table.section, f"server CPU per message, {what}", cpu)


def rest(context: Context) -> None:
    """Send, receive and acknowledge in batches of 500: REST in MessagePack compared with
    Redis at the same batch size.
    """
    messages = context.size(40_000, 10_000)
    batch = 500
    texts = bodies.documents(batch)
    contestants = context.servers.contestants(*context.servers.builds, "Redis")

    def measure(server: Server) -> Sample:
        work = server.work() if server.name == "Redis" else server.rest()
        return life_of(server, work, texts, messages, 1, batch)

    samples = context.interleave(contestants, measure)
    title = f"send, receive, acknowledge by {batch} × 1 KiB, 1 connection, REST in MessagePack"
    table = context.report.table("rest", title, samples, "messages/s")
    ratio = table.ratio("Baton", "Redis", "messages/s")
    context.report.bar("rest", "whole life by batches of 500, Baton ÷ Redis", ratio, 1.6, at_least=True)
    cpu = table.ratio("Baton", "Redis", "server µs/message")
    context.report.bar("rest", "server CPU per message by batches of 500, Baton ÷ Redis", cpu, 0.6, at_least=False)
    own = table.median("Baton", "server µs/message")
    context.report.bar("rest", "server CPU per message by batches of 500, µs", own, 15.0, at_least=False)
    _no_worse(context, table, f"REST by batches of {batch}")


def mix(context: Context) -> None:
    """A message's life with realistic sizes: median 2 KiB, most under 16 KiB, some of 256 KiB."""
    messages = context.size(10_000, 2_000)
    texts = bodies.mixed(1_000)
    contestants = context.servers.contestants("Baton", "floor", "Redis")
    samples = context.interleave(contestants, lambda server: _life(server, texts, messages, _CONNECTIONS))
    kib = sum(map(len, texts)) / len(texts) / bodies.KIB
    title = f"send, receive, delete, sizes mixed (mean {kib:.1f} KiB), 16 connections"
    table = context.report.table("mix", title, samples, "messages/s")
    ratio = table.ratio("Baton", "Redis", "messages/s")
    context.report.note(f"Baton ÷ Redis: {ratio:.2f}; Baton ÷ floor: {table.ratio('Baton', 'floor', 'messages/s'):.2f}")

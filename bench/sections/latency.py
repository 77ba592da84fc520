"""Single messages: the latency of each call, alone and under load, and how soon a poll gets a new message."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator

from bench import bodies
from bench.clients import connect, drive, exchange
from bench.context import Context, run_flows
from bench.flows import ARMED_S, Bell, Prepared, Tally, Work, life_of_one_flow, poll_flow, ring_flow, send_one_flow
from bench.machine import CpuTimes
from bench.report import Sample
from bench.servers import Server

_CONNECTIONS = 16
_BODIES = 64


def quantiles(what: str, seconds: list[float]) -> Sample:
    ordered = sorted(seconds)
    return {
        f"{what} p50 µs": statistics.median(ordered) * 1e6,
        f"{what} p99 µs": ordered[len(ordered) * 99 // 100] * 1e6,
    }


def _singles(work: Work, count: int) -> Iterator[Prepared]:
    prepared = [work.prepare_one(text) for text in bodies.documents(_BODIES)]
    return itertools.islice(itertools.cycle(prepared), count)


def single(context: Context) -> None:
    _alone(context)
    _crowded(context)
    _woken(context)


def _alone(context: Context) -> None:
    """Sends on one connection, one after another."""
    count = context.size(3_000, 500)

    def measure(server: Server) -> Sample:
        work = server.work()
        tally = Tally()
        times = CpuTimes.now()
        run_flows(work, lambda: send_one_flow(work, _singles(work, count), tally), 1)
        return quantiles("send", tally.latencies_s["send"]) | {"steal %": CpuTimes.now().steal_percent_since(times)}

    samples = context.interleave(context.servers.contestants("Baton", "floor", "Redis"), measure)
    table = context.report.table("single", "one message at a time, one connection", samples, "send p50 µs")
    ratio = table.ratio("Baton", "Redis", "send p50 µs")
    context.report.bar("single", "p50 of a single send, Baton ÷ Redis", ratio, 1.5, at_least=False)


def _crowded(context: Context) -> None:
    """Send, receive and delete single messages on 16 connections at once."""
    count = context.size(16_000, 3_000)

    def measure(server: Server) -> Sample:
        work = server.work()
        tally = Tally()
        times = CpuTimes.now()
        singles = _singles(work, count)
        run_flows(work, lambda: life_of_one_flow(work, singles, tally), _CONNECTIONS)
        sample: Sample = {}
        for what in ("send", "receive", "delete"):
            sample |= quantiles(what, tally.latencies_s[what])
        return sample | {"steal %": CpuTimes.now().steal_percent_since(times)}

    samples = context.interleave(context.servers.contestants("Baton", "floor", "Redis"), measure)
    context.report.table("single", "one message at a time, 16 connections", samples, "send p99 µs")


def _woken(context: Context) -> None:
    """From a send to the response of a waiting long poll, with nothing else going on and under load."""
    rings = context.size(300, 60)

    def measure(server: Server) -> Sample:
        times = CpuTimes.now()
        quiet = _wake_quietly(server.work(), rings)
        busy = _wake_under_load(server, rings)
        sample = quantiles("quiet", quiet) | quantiles("loaded", busy)
        return sample | {"steal %": CpuTimes.now().steal_percent_since(times)}

    samples = context.interleave(context.servers.contestants(*context.servers.builds, "Redis"), measure)
    title = "from a send to a waiting long poll's answer, alone and beside 16 busy connections"
    table = context.report.table("single", title, samples, "loaded p99 µs")
    if "before" in samples:
        for load in ("quiet", "loaded"):
            ratio = table.ratio("Baton", "before", f"{load} p50 µs")
            context.report.no_worse("single", f"p50 from a send to a waiting long poll's answer, {load}", ratio)


def _wake_quietly(work: Work, rings: int) -> list[float]:
    waits: list[float] = []
    prepared = work.prepare_one(bodies.documents(1)[0])
    with connect(work.port) as poller, connect(work.port) as sender:
        for _ in range(rings):
            request, answers = work.receive(1, wait_s=20)
            poller.sendall(request)
            time.sleep(ARMED_S)
            started = time.perf_counter()
            sender.sendall(work.send(prepared)[0])
            receipts = work.receipts(exchange(poller, work.complete, b"", answers))
            waits.append(time.perf_counter() - started)
            work.check(exchange(sender, work.complete, b"", 1))
            work.check(exchange(poller, work.complete, *work.delete_one(receipts[0])))
    return waits


def _wake_under_load(server: Server, rings: int) -> list[float]:
    awaited = server.work()
    busy = server.work()
    bell = Bell()
    heard = Tally(target=rings)
    ignored = Tally()
    prepared = [busy.prepare_one(text) for text in bodies.documents(_BODIES)]
    endless = itertools.takewhile(lambda _: heard.received < rings, itertools.cycle(prepared))
    background = [life_of_one_flow(busy, endless, ignored) for _ in range(_CONNECTIONS)]
    ringing = ring_flow(awaited, awaited.prepare_one(bodies.documents(1)[0]), background.pop(), bell, rings)
    drive(awaited.port, awaited.complete, [poll_flow(awaited, bell, heard), ringing, *background])
    return heard.latencies_s["wake"]

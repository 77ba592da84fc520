"""One round: load, a quiet phase, a fault, healing, draining, and the verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from campaign.clients import Surroundings
from campaign.cluster import SHARDS, Broken, Cluster
from campaign.fanout import FanOut
from campaign.faults import Done, Faults
from campaign.holding import HELD_MS, Holder
from campaign.judge import MOVED_CLOCK_SLACK_MS, SLACK_MS, Judge
from campaign.load import Load, Probe, Probes, QueuePlan, make_queue, plans
from sim.history import OK, Sending, Violation

DRAIN_S = 120.0
SHORT_S = 2.0  # how long the effect of an instant fault on other shards is observed


@dataclass(slots=True, frozen=True)
class Pace:
    """How much load there is, how long before the fault, and how long after it is healed."""

    scale: float = 1.0
    quiet_s: float = 5.0
    after_s: float = 3.0


@dataclass(slots=True)
class Report:
    """The result of a round."""

    number: int
    fault: str
    seed: str
    text: str = ""
    violations: list[Violation] = field(default_factory=list)
    broken: bool = False  # the cluster did not recover
    late: list[str] = field(default_factory=list)  # what took longer than allowed
    away_s: dict[int, float] = field(default_factory=dict)  # shard → how long nothing was acknowledged
    ready_s: float = 0.0  # from healing until every node was ready
    quiet_ms: list[float] = field(default_factory=list)  # latency of sends before the fault
    others_ms: list[float] = field(default_factory=list)  # and while it lasted, to unaffected shards
    sent: int = 0
    delivered: int = 0
    stored: int = 0  # messages with their bodies in the payload store
    fanout: dict[str, int] = field(default_factory=dict)  # what the clients of topics, schedules and readers did
    outcomes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def line(self) -> str:
        verdict = f"{len(self.violations)} VIOLATIONS" if self.violations else "ok"
        away = ", ".join(f"shard {shard} {seconds:.1f} s" for shard, seconds in sorted(self.away_s.items()))
        return (
            f"round {self.number} {self.fault}: {verdict}; {self.text}; away: {away or 'none'}; "
            f"all served {self.ready_s:.1f} s after healing; other shards' p99 {p99(self.others_ms):.0f} ms "
            f"(quiet {p99(self.quiet_ms):.0f} ms); "
            f"{self.sent} acknowledged, {self.stored} with large bodies, {self.delivered} deliveries, "
            f"{self.fanout.get('published', 0)} published, "
            f"{self.fanout.get('firings', 0)} firings, {self.fanout.get('commits', 0)} commits, {self.seconds:.0f} s"
            + "".join(f"; LATE: {text}" for text in self.late)
        )


class Rounds:
    """Rounds on one cluster, one after another: each has its own queues and history, the logs continue."""

    def __init__(self, cluster: Cluster, seed: int, directory: Path, pace: Pace | None = None) -> None:
        self._cluster = cluster
        self._seed = seed
        self._directory = directory
        self._pace = pace or Pace()
        self._judge = Judge(cluster, SHARDS)
        self._numbers = count(1)
        self._messages = count(1)
        self._probes = Probes(cluster, Random(seed))
        self._prepared = False

    async def run(self, fault: str) -> Report:
        if not self._prepared:
            await self._probes.prepare(SHARDS)
            self._prepared = True
        number = next(self._numbers)
        report = Report(number, fault, f"{self._seed}-{number}-{fault}")
        began_s = time.monotonic()
        around = Surroundings(self._cluster, Random(report.seed).getrandbits(63))
        queues = plans(number)
        try:
            await self._go(report, around, queues)
        except Broken as problem:  # the logs may contain the reason
            report.broken = True
            await self._judge.read()
            report.violations += [*self._judge.violations, Violation("liveness", str(problem))]
        finally:
            self._write(report, around)
        report.seconds = time.monotonic() - began_s
        return report

    async def _go(self, report: Report, around: Surroundings, queues: list[QueuePlan]) -> None:
        probing = asyncio.create_task(self._probes.run())
        self._probes.done.clear()
        load = Load(around, queues, lambda: next(self._messages), self._pace.scale)
        fanout = FanOut(self._cluster, Random(report.seed), report.number)
        holder = Holder(around, f"r{report.number}-held") if report.fault == "outage" else None
        try:
            async with load:
                if holder is not None:
                    await make_queue(self._cluster, holder.queue, {"defaultVisibilityTimeoutSeconds": HELD_MS // 1000})
                    await holder.start(next(self._messages))
                await fanout.start()
                shard = await self._shard_of(queues[1].name)
                quiet_s = time.monotonic()
                await asyncio.sleep(self._pace.quiet_s + around.random.random())
                done = await Faults(self._cluster, around.random, shard).run(report.fault)
                report.text = done.text
                await self._cluster.wait_ready()
                await self._probes.wait_served(done.healed_s)
                report.ready_s = time.monotonic() - done.healed_s
                await asyncio.sleep(self._pace.after_s)
                report.violations += await fanout.finish()
                if holder is not None:
                    report.violations += await holder.finish()
                    queues.append(holder.plan)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            await fanout.stop()
            report.fanout = fanout.counts
        await self._verdict(report, around, queues, load)
        self._times(report, done, quiet_s)

    async def _shard_of(self, queue: str) -> int:
        for each in (await self._cluster.status())["queues"]:
            if each["name"] == queue:
                return int(each["shard"])
        raise Broken(f"no node knows {queue}")

    async def _verdict(self, report: Report, around: Surroundings, queues: list[QueuePlan], load: Load) -> None:
        judge, history = self._judge, around.history

        async def empty() -> bool:
            await judge.read()
            return bool(judge.violations) or judge.is_empty(judge.facts(history, queues))

        drained = await load.drain(empty, DRAIN_S)
        facts = judge.facts(history, queues)
        report.stored = judge.stored(facts)
        if not drained:
            text = f"after {DRAIN_S:g} s of draining, messages are left: {judge.left(facts)}"
            report.violations.append(Violation("liveness", text))
        slack_ms = MOVED_CLOCK_SLACK_MS if report.fault == "clock" else SLACK_MS
        report.violations += judge.judge(history, facts, slack_ms)
        report.violations += [Violation("unexpected-answer", text) for text in around.unexpected]

    def _times(self, report: Report, done: Done, quiet_s: float) -> None:
        """How long shards were unavailable, and the effect on clients of other shards."""
        probes = self._probes.done
        useful = [probe for probe in probes if probe.node not in done.victims]
        for shard in sorted(done.shards):
            report.away_s[shard] = longest_gap_s(useful, shard, done)
            if done.limit_s and report.away_s[shard] > done.limit_s:
                report.late.append(f"shard {shard} was away for {report.away_s[shard]:.1f} s")
        quiet = [probe for probe in probes if probe.ok and quiet_s <= probe.started_s and probe.ended_s < done.began_s]
        until_s = max(done.healed_s, done.began_s + SHORT_S)
        others = [
            probe for probe in useful if probe.shard not in done.shards and done.began_s <= probe.started_s <= until_s
        ]
        report.quiet_ms = times_ms(quiet)
        report.others_ms = times_ms(others) if done.shards else []

    def _write(self, report: Report, around: Surroundings) -> None:
        history = around.history
        report.outcomes = dict(around.outcomes)
        report.sent = sum(answer.outcome == OK for call in history.of(Sending) for answer in call.answers)
        report.delivered = sum(1 for _ in history.deliveries())
        path = self._directory / f"round-{report.number:03}-{report.fault}.jsonl"
        with path.open("wb") as file:
            file.write(msgspec.json.encode(report) + b"\n")
            for probe in self._probes.done:
                file.write(msgspec.json.encode({"kind": "Probe", "probe": probe._asdict()}) + b"\n")
            for call in history.calls:
                line = {"kind": type(call).__name__, "node": around.asked.get(call.number), "call": call}
                file.write(msgspec.json.encode(line) + b"\n")


def longest_gap_s(probes: list[Probe], shard: int, done: Done) -> float:
    """The longest time without an acknowledgement, from just before the fault on."""
    ends = sorted(_ends(probes, shard, done.began_s - 1.0))
    return max((after - before for before, after in pairwise(ends)), default=0.0)


def _ends(probes: list[Probe], shard: int, from_s: float) -> Iterator[float]:
    return (probe.ended_s for probe in probes if probe.shard == shard and probe.ok and probe.ended_s >= from_s)


def times_ms(probes: list[Probe]) -> list[float]:
    return [round((probe.ended_s - probe.started_s) * 1000, 1) for probe in probes]


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))] if values else 0.0


def summary(reports: list[Report]) -> list[str]:
    """One line per fault: how long shards were unavailable in all its rounds, and the latency of sends to others."""
    rows = [("fault", "rounds", "away, median", "longest", "others, p99", "quiet, p99", "ratio")]
    for fault in dict.fromkeys(report.fault for report in reports):
        some = [report for report in reports if report.fault == fault]
        away_s = [seconds for report in some for seconds in report.away_s.values()]
        others_ms = p99([ms for report in some for ms in report.others_ms])
        quiet_ms = p99([ms for report in some for ms in report.quiet_ms])
        away = (f"{median(away_s):.1f} s", f"{max(away_s):.1f} s") if away_s else ("none", "none")
        felt = (f"{others_ms:.0f} ms", f"{quiet_ms:.0f} ms", f"{others_ms / quiet_ms:.1f}") if others_ms else ("-",) * 3
        rows.append((fault, str(len(some)), *away, *felt))
    return [f"{fault:<14}" + "".join(f"{text:>14}" for text in row) for fault, *row in rows]

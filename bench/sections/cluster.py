"""A cluster of three nodes and three NATS servers compared with the raw log that it uses, with 1, 2, 4 and 8 shards.

There is one queue per shard, and for each queue one connection per node: once to every node, as behind a load balancer,
so that two of three requests are forwarded, and once all to the node that owns the queue's shard. The raw log gets the
frames that the cluster has just written (bench/rawlog.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench import bodies, clusters
from bench.clients import BenchError, Flow, drive_several
from bench.clusters import NODES, Cluster
from bench.context import Context, supply
from bench.flows import Prepared, Tally, consume_flow, send_flow
from bench.machine import CpuTimes
from bench.rawlog import RawLog
from bench.report import Sample
from bench.rest import RestQueue

SHARDS = (1, 2, 4, 8)
EVERY_NODE, OWNER, RAW = "every node", "owner", "raw log"
_BATCH = 500
_SEND_MIN = 0.6
_LIFE_MIN = 1 / 3
_SENT = ("sent/s", "MB/s", "frame KiB", "nodes µs/message", "NATS µs/message", "client µs/message", "steal %")
_LIVED = ("lives/s", "lives ÷ sent", "nodes µs/life", "NATS µs/life", "client µs/life", "steal %")
_SERVERS = [f"{kind}{number}" for kind in ("n", "nats") for number in range(NODES)]


@dataclass(slots=True)
class _Contestant:
    name: str


class Meter:
    """CPU time of each component and of this process, and steal, since the last call."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.restart()

    def restart(self) -> None:
        self._cluster.settle()
        self._now = self._look()
        self._times = CpuTimes.now()

    def lap(self) -> Sample:
        """In µs, including the work of followers to catch up; the steal in %."""
        steal = CpuTimes.now().steal_percent_since(self._times)
        client_us = time.process_time() * 1e6
        before = self._now
        self.restart()
        after = self._now | {"client": client_us}
        return {name: after[name] - before[name] for name in before} | {"steal %": steal}

    def _look(self) -> Sample:
        return self._cluster.components_us() | {"client": time.process_time() * 1e6}


def _a_message(spent: Sample, messages: int, what: str) -> Sample:
    """µs per message of each component, and of their kinds."""
    each = {who: value / messages for who, value in spent.items() if who != "steal %"}
    nats = sum(value for who, value in each.items() if who.startswith("nats"))
    nodes = sum(each.values()) - nats - each["client"]
    kinds = {"all servers": nodes + nats, "nodes": nodes, "NATS": nats}
    return {f"{who} µs/{what}": value for who, value in (kinds | each).items()}


class _Load:
    """The same messages for every contestant on one cluster."""

    def __init__(self, cluster: Cluster, raw: RawLog, messages: int, batch: int) -> None:
        self._cluster = cluster
        self._raw = raw
        self._batch = batch
        self._each = max(messages // cluster.shards // batch, 1) * batch  # to each queue
        self._messages = self._each * cluster.shards
        self._texts = bodies.documents(batch)
        self._names = [f"bench-{number}" for number in range(cluster.shards)]
        self._queues = {(name, port): RestQueue(port, name) for name in self._names for port in cluster.ports}

    def measure(self, contestant: _Contestant) -> Sample:
        return self._append() if contestant.name == RAW else self._live(contestant.name)

    def _ways(self, name: str) -> Iterator[tuple[str, list[RestQueue]]]:
        """The connections of each queue."""
        owners = self._cluster.owners() if name == OWNER else {}
        for queue in self._names:
            yield queue, [self._queues[queue, owners.get(queue, port)] for port in self._cluster.ports]

    def _drive(self, name: str, flow: Callable[[RestQueue, str], Flow]) -> float:
        ways = [(queue, way) for queue, some in self._ways(name) for way in some]
        return drive_several([(way.port, flow(way, queue)) for queue, way in ways], ways[0][1].complete)

    def _live(self, name: str) -> Sample:
        """Send all, then receive and delete all."""
        raw, messages = self._raw, self._messages
        first = self._queues[self._names[0], self._cluster.ports[0]]
        batches: dict[str, Iterator[Prepared]] = {
            queue: supply(first, self._texts, self._each, self._batch) for queue in self._names
        }
        tallies = {queue: Tally(target=self._each) for queue in self._names}
        raw.skip()
        meter = Meter(self._cluster)
        send_s = self._drive(name, lambda way, queue: send_flow(way, batches[queue], tallies[queue]))
        sending = meter.lap()
        raw.take()
        meter.restart()
        consume_s = self._drive(name, lambda way, queue: consume_flow(way, tallies[queue], self._batch))
        consuming = meter.lap()
        if any((tally.sent, tally.deleted) != (self._each, self._each) for tally in tallies.values()):
            raise BenchError(f"{self._each} messages were to be sent and received on each queue: {tallies}")
        living = {who: sending[who] + consuming[who] for who in sending}
        rates = {"sent/s": messages / send_s, "lives/s": messages / (send_s + consume_s)}
        rates["lives ÷ sent"] = rates["lives/s"] / rates["sent/s"]
        spent = _a_message(sending, messages, "message") | _a_message(living, messages, "life")
        return rates | self._frames(send_s) | spent | {"steal %": max(sending["steal %"], consuming["steal %"])}

    def _append(self) -> Sample:
        meter = Meter(self._cluster)
        started = time.perf_counter()
        self._raw.append()
        seconds = time.perf_counter() - started
        spent = meter.lap()
        self._raw.purge()
        rates = {"sent/s": self._messages / seconds, "steal %": spent["steal %"]}
        return rates | self._frames(seconds) | _a_message(spent, self._messages, "message")

    def _frames(self, seconds: float) -> Sample:
        raw = self._raw
        return {"MB/s": raw.bytes / seconds / 1e6, "frame KiB": raw.bytes / max(raw.frames, 1) / 1024}


def cluster(context: Context) -> None:
    compare(context, SHARDS, context.size(48_000, 12_000), _BATCH)


def compare(context: Context, counts: Sequence[int], messages: int, batch: int) -> None:
    components: dict[str, list[Sample]] = {}
    for count in counts:
        running = clusters.start(context.servers, count)
        try:
            components |= compare_on(context, running, messages, batch)
        finally:
            running.discard()
    title = "processor time of each component, and of the client, µs a message"
    context.report.table("cluster", title, components, "all servers")


def compare_on(context: Context, running: Cluster, messages: int, batch: int) -> dict[str, list[Sample]]:
    """The CPU time of each component, by contestant."""
    with RawLog(running.nats_servers, running.shards) as raw:
        load = _Load(running, raw, messages, batch)
        samples = context.interleave([_Contestant(name) for name in (EVERY_NODE, OWNER, RAW)], load.measure)
    shards = "1 shard" if running.shards == 1 else f"{running.shards} shards"
    _tell(context, shards, batch, samples)
    components: dict[str, list[Sample]] = {}
    for name, rounds in samples.items():
        components[f"{shards}, {name}, send"] = [_components(sample, "message") for sample in rounds]
        if name != RAW:
            components[f"{shards}, {name}, life"] = [_components(sample, "life") for sample in rounds]
    return components


def _tell(context: Context, shards: str, batch: int, samples: dict[str, list[Sample]]) -> None:
    report = context.report
    title = f"{shards}, batches of {batch} × 1 KiB on {NODES} connections a queue"
    table = report.table("cluster", f"{title}: sending", _only(samples, (EVERY_NODE, OWNER, RAW), _SENT), "MB/s")
    report.table("cluster", f"{title}: send, receive, delete", _only(samples, (EVERY_NODE, OWNER), _LIVED), "lives/s")
    for name in (EVERY_NODE, OWNER):
        ratio = table.ratio(name, RAW, "MB/s")
        report.bar("cluster", f"{shards}: sends by {name} ÷ raw log, bytes/s", ratio, _SEND_MIN, at_least=True)
        part = median(sample["lives ÷ sent"] for sample in samples[name])
        report.bar("cluster", f"{shards}: lives by {name} ÷ its sends", part, _LIFE_MIN, at_least=True)


def _only(samples: dict[str, list[Sample]], names: Sequence[str], figures: Sequence[str]) -> dict[str, list[Sample]]:
    return {name: [{figure: sample[figure] for figure in figures} for sample in samples[name]] for name in names}


def _components(sample: Sample, what: str) -> Sample:
    return {who: sample[f"{who} µs/{what}"] for who in ("all servers", *_SERVERS, "client")}

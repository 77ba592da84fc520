"""The scenario of a cluster's seed: nodes, shards, queues, clocks, and the frequency of faults."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random

from batonq.log.file_log import FileLogSettings
from batonq.node.settings import Settings
from sim.crowd_scenario import has_tiny_limits
from sim.limits import choose_limits
from sim.payloads import with_payload_store
from sim.scenario import ACCOUNT, KIB, PAUSING_AT, PAUSING_EVERY, Faults, QueuePlan, Scenario, choose_queues

NAMES = "abc"
HOUR_S = 3600.0
FANOUT_AT = (0, 3, 6)  # last digits of the seeds with topics, schedules, replays, reader groups or large payloads
LINES_ONLY_SHARE = 0.4  # of clusters: only calls between nodes break, and nodes die while they answer


@dataclass(slots=True, frozen=True)
class ClusterFaults:
    """Mean times between two faults of each kind, in seconds; 0: never."""

    kill_s: float = 0.0
    kill_all_s: float = 0.0
    pause_s: float = 0.0
    stop_s: float = 0.0  # clean stops
    cut_s: float = 0.0  # one link, or one node, in one direction or both
    servers_s: float = 0.0  # no node reaches the log
    move_s: float = 0.0  # an operator hands shards over
    weather_s: float = 0.0  # losses, repetitions, delays
    wall_s: float = 0.0  # a clock is set
    stale: float = 0.0  # share of reads that are behind
    lost_answers: float = 0.0  # share of answers to clients that never arrive
    leases_s: float = 0.0  # no node reaches the leases, but all reach the log
    broken_calls: float = 0.0  # share of sends between nodes whose connection breaks, see connections.LineFault


@dataclass(slots=True, frozen=True)
class ClusterScenario(Scenario):
    nodes: int = 3
    skews_s: dict[str, float] = field(default_factory=dict)  # of the clocks at the beginning
    steps_s: tuple[float, ...] = ()  # by which clocks are set
    troubles: ClusterFaults = field(default_factory=ClusterFaults)
    secret: bool = False  # nodes sign the calls between them
    topics: bool = False  # messages are published to topics

    @property
    def names(self) -> str:
        return NAMES[: self.nodes]

    @property
    def offset_min_s(self) -> float:
        return min(self.skews_s.values()) + min((0.0, *self.steps_s))

    @property
    def offset_max_s(self) -> float:
        return max(self.skews_s.values()) + max((0.0, *self.steps_s))

    def settings_of(self, name: str) -> Settings:
        return replace(self.settings, node=name, advertise=f"http://{name}", data=f"/{name}")

    def __str__(self) -> str:
        names = ", ".join(plan.name for plan in self.queues)
        skews = f", clocks {self.skews_s} set by {self.steps_s}" if any(self.skews_s.values()) or self.steps_s else ""
        wanted = ("topics", "scheduling", "replaying", "reading", "payloads")
        more = "".join(f", {each}" for each in wanted if getattr(self, each))
        return (
            f"{self.nodes} nodes, {self.settings.shards} shards, spread {self.settings.spread}, "
            f"{self.duration_s:.0f} s, queues {names}{more}{skews}; {self.troubles}"
        )


def choose(seed: int, steps: int | None = None) -> ClusterScenario:
    """Everything about a run that is decided before it begins."""
    scenario = _with_fanout(_with_lines(_choose_usual(seed, steps)), steps)
    if not has_tiny_limits(seed):
        return scenario
    tiny = choose_limits(Random(f"cluster limits {seed}"), cluster=True)
    return replace(scenario, settings=tiny.settings(scenario.settings), tiny=tiny)


def _with_lines(scenario: ClusterScenario) -> ClusterScenario:
    """Choose the faults of the connections between nodes."""
    random = Random(f"lines {scenario.seed}")
    only = random.random() < LINES_ONLY_SHARE
    broken_calls = 0.4 if only else random.choice((0.0, 0.1))
    return replace(
        scenario,
        troubles=replace(ClusterFaults() if only else scenario.troubles, broken_calls=broken_calls),
        unnamed=only or random.random() < 0.3,
        secret=random.random() < 0.5,
    )


def _with_fanout(scenario: ClusterScenario, steps: int | None) -> ClusterScenario:
    """Choose what else than queues there is, from random numbers of its own: other seeds stay what they are."""
    if scenario.seed % 10 not in FANOUT_AT:
        return scenario
    random = Random(f"{scenario.seed}-fanout")
    topics, scheduling, replaying, reading = (random.random() < 0.5 for _ in range(4))
    payloads = random.random() < 0.4
    topics = topics or not (scheduling or replaying or reading)
    # With payloads, hours are seconds. With topics, a publish is repeated until it is acknowledged, and recognised for
    # five minutes. So no clock may be off by an hour.
    if payloads or topics:
        scenario = replace(scenario, steps_s=(), troubles=replace(scenario.troubles, wall_s=0.0))
    settings = replace(scenario.settings, shards=max(2, scenario.settings.shards))
    return replace(
        scenario,
        settings=with_payload_store(settings) if payloads else settings,
        duration_s=10.0,
        steps_max=steps if steps is not None else 2 * scenario.steps_max,
        topics=topics,
        scheduling=scheduling,
        replaying=replaying,
        reading=reading,
        payloads=payloads,
    )


def _choose_usual(seed: int, steps: int | None) -> ClusterScenario:
    random = Random(f"cluster {seed}")
    segment_bytes = random.choice((4, 16, 64)) * KIB
    nodes = random.choice((2, 3, 3))
    settings = Settings(
        data="/data",
        account=ACCOUNT,
        log_url="nats://memory",
        shards=random.choice((1, 2, 2, 3)),
        spread=random.choice((1, 1, 2)),
        secure=True,
        lease_s=random.choice((1.0, 1.0, 2.0)),
        hold_s=random.choice((1.0, 5.0)),
        purge_wait_s=0.0,
        delete_wait_s=0.0,
        history_hours=random.choice((0.0, 0.001, 1.0)),
        history_bytes=random.choice((0, segment_bytes)),
        segment_bytes=segment_bytes,
        catalog_segment_bytes=segment_bytes,
        snapshot_bytes=random.choice((segment_bytes, 4 * segment_bytes)),
        snapshot_frames=segment_bytes // 128,
        snapshot_every_s=1.0,
        maintenance_every_s=random.choice((0.5, 2.0)),
        carry_rows=random.choice((3, 20)),
        carry_bytes=random.choice((1, 16)) * KIB,
        window_entries=random.choice((1, 4, 256)),
        grace_max_s=random.choice((0.0, 2.0, 60.0)),
        reopen_first_s=random.choice((0.01, 0.2)),
        reopen_max_s=2.0,
        drain_s=random.choice((0.5, 5.0)),
        move_rate_max_per_s=500,
    )
    log_settings = FileLogSettings(segment_bytes=segment_bytes, free_floor_bytes=0, prewrite=False, background=False)
    skews_s, steps_s = _choose_clocks(random, nodes)
    return ClusterScenario(
        seed=seed,
        settings=settings,
        log_settings=log_settings,
        faults=Faults(),
        queues=_choose_few(random),
        duration_s=random.choice((5.0, 7.0, 9.0)),
        producers=random.choice((1, 2)),
        consumers=random.choice((2, 3)),
        think_s=random.choice((0.15, 0.3)),
        steps_max=steps if steps is not None else random.choice((50, 75, 100)),
        nodes=nodes,
        skews_s=skews_s,
        steps_s=steps_s,
        troubles=_choose_troubles(random, bool(steps_s)),
        pausing=seed % PAUSING_EVERY == PAUSING_AT,
    )


def _choose_clocks(random: Random, nodes: int) -> tuple[dict[str, float], tuple[float, ...]]:
    """Half of the clusters have clocks that agree. A clock that is an hour off needs other nodes to correct it."""
    fate = random.random()
    names = NAMES[:nodes]
    if fate < 0.5:
        return dict.fromkeys(names, 0.0), ()
    skews_s = {name: random.choice((-0.3, 0.0, 0.2, 1.0)) for name in names}
    if fate < 0.8 or nodes < 3:
        return skews_s, random.choice(((), (-1.0, 1.0)))
    return skews_s, (-HOUR_S, HOUR_S)


def _choose_troubles(random: Random, steps: bool) -> ClusterFaults:
    def mean(*choices: float) -> float:
        return random.choice((0.0, *choices))

    return ClusterFaults(
        kill_s=mean(1.5, 3.0),
        kill_all_s=mean(0.0, 6.0),
        pause_s=mean(1.5, 3.0),
        stop_s=mean(0.0, 4.0),
        cut_s=mean(1.5, 3.0),
        servers_s=mean(0.0, 5.0),
        move_s=mean(1.0, 3.0),
        weather_s=mean(2.0, 4.0),
        wall_s=4.0 if steps else 0.0,
        stale=random.choice((0.0, 0.05, 0.2)),
        lost_answers=random.choice((0.0, 0.05)),
        leases_s=mean(0.0, 3.0),
    )


def _choose_few(random: Random) -> list[QueuePlan]:
    """Up to three queues to work with, and the dead-letter queues that they name."""
    plans = choose_queues(random, random, shards=1)  # each starts on one shard, and may grow
    work = [plan for plan in plans if not plan.dead_letters]
    fifo = [plan for plan in work if plan.fifo]
    chosen = random.sample(work, min(len(work), random.choice((1, 2, 2))))
    if fifo and fifo[0] not in chosen and random.random() < 0.6:
        chosen.append(fifo[0])
    named = {_dead_letters_of(plan) for plan in chosen}
    return [*(plan for plan in plans if plan.dead_letters and plan.name in named), *chosen]


def _dead_letters_of(plan: QueuePlan) -> str:
    policy = plan.attributes.get("RedrivePolicy")
    return str(json.loads(policy)["deadLetterTargetArn"]).rpartition(":")[2] if policy else ""

"""The scenario of a seed with tiny limits: many small queues, crowds that press against limits, and fewer faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.limits import choose_limits
from sim.payloads import with_payload_store
from sim.scenario import (
    CROWD,
    NARROW,
    PAYLOADS_AT,
    PAYLOADS_EVERY,
    Faults,
    QueuePlan,
    Scenario,
    Theme,
    choose_usual,
    leaky_queues,
    redrive_policy,
)

HOUR_S = 3600.0


def has_tiny_limits(seed: int) -> bool:
    """Two of five seeds."""
    return seed % 5 in (2, 4)


def theme_of(seed: int) -> Theme:
    """The themes take turns among the seeds with tiny limits."""
    themes = list(Theme)
    return themes[(seed // 5 * 2 + (seed % 5 == 4)) % len(themes)]


def choose(seed: int, steps: int | None = None) -> Scenario:
    """Everything about a run that is decided before it begins."""
    scenario = choose_usual(seed, steps)
    if seed % PAYLOADS_EVERY == PAYLOADS_AT:
        scenario = _with_payloads(scenario)
    return _with_tiny_limits(scenario) if has_tiny_limits(seed) else scenario


def _with_payloads(scenario: Scenario) -> Scenario:
    """A clock that is advanced would let an hour of the store pass in the middle of a request."""
    faults = replace(scenario.faults, clock_advance_s=0.0)
    return replace(scenario, settings=with_payload_store(scenario.settings), faults=faults, payloads=True)


def _with_tiny_limits(scenario: Scenario) -> Scenario:
    random = Random(f"limits {scenario.seed}")
    theme = theme_of(scenario.seed)
    refusals, failures = theme is Theme.REFUSALS, theme is Theme.FAILURES
    tiny = choose_limits(random, full_frames=theme is Theme.STAMPEDES, refusals=refusals)
    settings = replace(
        tiny.settings(scenario.settings),
        maintenance_every_s=1.0,
        idempotency_hours=random.choice((5.0, 30.0)) / HOUR_S,
        producer_idle_hours=90.0 / HOUR_S,
    )
    if theme is Theme.STAMPEDES:
        settings = replace(settings, spread=1)
    if refusals:
        settings = replace(settings, shards=random.choice((3, 4)))
    if failures:
        settings = replace(settings, inline_sync_us=-1)

    def mean(*choices: float) -> float:
        return random.choice((0.0, *choices))

    faults = Faults(
        crash_s=mean(0.0, 4.0, 8.0),
        stop_s=mean(0.0, 8.0),
        disk_error_s=random.choice((1.0, 2.0)) if failures else mean(4.0),
        full_disk_s=mean(0.0, 8.0),
        clock_advance_s=mean(8.0) if scenario.faults.clock_advance_s else 0.0,
        lost_answers=random.choice((0.0, 0.02, 0.1, 0.3)),
        break_s=0.5 if failures else mean(1.0),
        lost_between=0.3 if refusals else random.choice((0.0, 0.3)),
    )
    return replace(
        scenario,
        settings=settings,
        faults=Faults() if theme is Theme.STAMPEDES else faults,
        queues=_with_crowd(random, scenario.queues, settings.shards, refusals),
        duration_s=random.choice((8.0, 12.0)),
        producers=2,
        consumers=2,
        theme=theme,
        pattern_consumers=random.choice((0, 1, 2, 2)),
        growing=(f"{CROWD}0", f"{CROWD}1") if random.random() < 0.6 else (),
        tiny=tiny,
    )


def _with_crowd(random: Random, plans: list[QueuePlan], shards: int, leaky: bool) -> list[QueuePlan]:
    """Some of the queues, and many small ones. There may be a queue on all shards whose dead letters are refused."""
    plans = [plan for plan in plans if plan.name not in (NARROW, "leaky")]
    work = [plan for plan in plans if not plan.dead_letters]
    chosen = [plan for plan in plans if plan.dead_letters] + random.sample(work, min(3, len(work)))
    if leaky or random.random() < 0.3:
        for plan in leaky_queues(random.choice(("1", "2")), "failure"):
            spread = "1" if plan.dead_letters else str(shards)
            chosen.append(replace(plan, attributes={**plan.attributes, "Baton.Spread": spread}))
    crowd = [_crowd_queue(random, f"{CROWD}{at}", shards) for at in range(random.choice((2, 4, 6)))]
    if random.random() < 0.6:  # messages without receives left stay in front of others
        used_up = {"FifoQueue": "true", "Baton.MaxReceives": "1", "Baton.DeadLetterOn": "receive"}
        crowd.append(QueuePlan(f"{CROWD}line.fifo", {"VisibilityTimeout": "1", **used_up}, grouped=True, keyed=True))
    return [*chosen, *crowd]


def _crowd_queue(random: Random, name: str, shards: int) -> QueuePlan:
    keyed = random.random() < 0.4
    scope = {"Baton.DeduplicationWindow": "5", "Baton.DeduplicationScope": random.choice(("window", "lives"))}
    attributes = {
        "VisibilityTimeout": random.choice(("1", "2")),
        "Baton.Spread": random.choice(("1", "1", "2")) if shards > 1 else "1",
        **({"RedrivePolicy": redrive_policy("dead", 2)} if random.random() < 0.3 else {}),
        **(scope if keyed else {}),
    }
    return QueuePlan(name, attributes, keyed=keyed, purged=random.random() < 0.3)

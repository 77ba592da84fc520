"""The scenario of a seed: the queues, the sizes of logs, the habits of clients, and the frequency of faults."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from batonq.attribute_formats.arns import queue_arn
from batonq.log.file_log import FileLogSettings
from batonq.node.settings import Settings
from sim.limits import NO_TINY_LIMITS, TinyLimits

ACCOUNT = "000000000000"
NARROW = "narrow"  # a dead-letter queue that is full most of the time
CROWD = "jobs-"  # prefix of the names of queues that are received from by a pattern
KIB = 1024
PAUSING_EVERY, PAUSING_AT = 5, 3  # which seeds pause queues
SCHEDULING_EVERY, SCHEDULING_AT = 8, 6  # which seeds have schedules
REPLAYING_EVERY, REPLAYING_AT = 16, 9  # which seeds replay the history of a queue
READING_EVERY, READING_AT = 7, 5  # which seeds have a reader group
PAYLOADS_EVERY, PAYLOADS_AT = 11, 9  # which seeds have a payload store


class Theme(Enum):
    """What the actors that press against tiny limits aim at."""

    MIXED = "a little of everything"
    STAMPEDES = "leases that end together, with nothing that disperses those who wait"
    REFUSALS = "dead letters that are refused, and answers between shards that are lost"
    FAILURES = "shards that fail in the middle of what they do"


@dataclass(slots=True, frozen=True)
class QueuePlan:
    """A queue to create. Producers send to it unless it is for dead letters."""

    name: str
    attributes: dict[str, str]
    dead_letters: bool = False
    ranked: bool = False  # messages have priorities
    grouped: bool = False  # messages have groups; always so in a FIFO queue
    keyed: bool = False  # messages have deduplication keys, some of them repeated
    delayed: bool = False  # some messages have their own delay
    brief: bool = False  # some messages have their own time to live
    purged: bool = False  # now and then
    fleeting: bool = False  # deleted now and then, and re-created under the same name

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def receives_max(self) -> int:
        """The maximum number of receives per message; 0: unlimited."""
        redrive = self.attributes.get("RedrivePolicy")
        return int(json.loads(redrive)["maxReceiveCount"] if redrive else self.attributes.get("Baton.MaxReceives", 0))


@dataclass(slots=True, frozen=True)
class Faults:
    """Mean times between two faults of each kind, in seconds; 0: never."""

    crash_s: float = 0.0
    stop_s: float = 0.0  # clean stops
    disk_error_s: float = 0.0
    full_disk_s: float = 0.0
    slow_disk_s: float = 0.0
    wall_step_s: float = 0.0
    clock_advance_s: float = 0.0
    lost_answers: float = 0.0  # share of answers that never arrive
    break_s: float = 0.0  # a receive fails
    lost_between: float | None = None  # share of answers between shards that never arrive; None: same as lost_answers


@dataclass(slots=True, frozen=True)
class Scenario:
    seed: int
    settings: Settings
    log_settings: FileLogSettings
    faults: Faults
    queues: list[QueuePlan] = field(default_factory=list)
    sync_s: float = 0.001
    duration_s: float = 60.0
    producers: int = 3
    consumers: int = 4
    think_s: float = 0.5
    steps_max: int = 1_000_000  # client calls, after which no more are made
    theme: Theme = Theme.MIXED  # what the crowds aim at
    pattern_consumers: int = 0
    growing: tuple[str, ...] = ()  # queues of the crowd that are spread over more and more shards
    reading: bool = False  # a reader group reads the retained history of a queue
    scheduling: bool = False  # messages are sent at recurring times to a queue of their own
    replaying: bool = False  # the history of a queue that nobody else uses is replayed
    payloads: bool = False  # bodies above a threshold are in a payload store
    pausing: bool = False  # queues are paused, paced and limited to some messages now and then
    unnamed: bool = False  # most requests of producers have neither name nor number, and are not retried
    tiny: TinyLimits = NO_TINY_LIMITS  # with any, crowds press against them (see crowds.py)

    def __str__(self) -> str:
        names = ", ".join(plan.name for plan in self.queues)
        return (
            f"{self.settings.shards} shards, {'secured' if self.settings.secured else 'dev'}, segments of "
            f"{self.log_settings.segment_bytes} bytes, sync {self.sync_s * 1000:.2f} ms, {self.duration_s:.0f} s, "
            f"queues {names}; {self.faults}"
        )


def choose_usual(seed: int, steps: int | None) -> Scenario:
    """Everything about a run that is decided before it begins, with the limits of production."""
    random = Random(f"scenario {seed}")
    segment_bytes = random.choice((8, 16, 32, 64)) * KIB
    settings = Settings(
        data="/data",
        account=ACCOUNT,
        shards=random.choice((1, 2, 2, 3, 4)),
        spread=Random(f"spread {seed}").choice((1, 1, 2, 3)),
        secure=random.random() < 0.3,
        purge_wait_s=random.choice((0.0, 2.0)),
        delete_wait_s=random.choice((0.0, 2.0)),
        history_hours=random.choice((0.0, 0.005, 1.0)),
        history_bytes=random.choice((0, segment_bytes, 8 * segment_bytes)),
        segment_bytes=segment_bytes,
        snapshot_bytes=random.choice((1, segment_bytes, 4 * segment_bytes)),
        snapshot_frames=segment_bytes // 128,
        snapshot_every_s=1.0,
        maintenance_every_s=random.choice((0.2, 1.0, 5.0)),
        carry_rows=random.choice((1, 3, 20)),
        carry_bytes=random.choice((1, 16)) * KIB,
        window_entries=random.choice((1, 4, 256)),
        grace_max_s=random.choice((0.0, 2.0, 60.0)),
        reopen_first_s=random.choice((0.01, 0.2)),
        reopen_max_s=2.0,
        move_rate_max_per_s=500,
        # Negative: every sync runs beside the loop, except for trials. 0: as measured, which is about half of them
        # here.
        inline_sync_us=random.choice((-1, 0, 1_000)),
    )
    log_settings = FileLogSettings(
        segment_bytes=segment_bytes,
        free_floor_bytes=0,
        fresh_cache_bytes=random.choice((1, 64)) * KIB,
        read_cache_bytes=random.choice((1, 64)) * KIB,
        open_files_max=2,
        background=False,
    )
    return Scenario(
        seed=seed,
        settings=settings,
        log_settings=log_settings,
        faults=_choose_faults(random, settings.secured),
        queues=choose_queues(random, Random(f"fifo {seed}"), settings.shards),
        sync_s=random.choice((0.0002, 0.002, 0.02)),
        duration_s=random.choice((20.0, 30.0, 50.0)),
        producers=random.randint(2, 4),
        consumers=random.randint(3, 6),
        think_s=random.choice((0.2, 0.3, 0.5)),
        steps_max=steps if steps is not None else 1_000_000,
        pausing=seed % PAUSING_EVERY == PAUSING_AT,
        scheduling=seed % SCHEDULING_EVERY == SCHEDULING_AT,
        replaying=seed % REPLAYING_EVERY == REPLAYING_AT,
        reading=seed % READING_EVERY == READING_AT,
    )


def _choose_faults(random: Random, secured: bool) -> Faults:
    def mean(*choices: float) -> float:
        return random.choice((0.0, *choices))

    return Faults(
        crash_s=mean(3.0, 6.0, 12.0),
        stop_s=mean(10.0, 20.0),
        disk_error_s=mean(5.0, 15.0),
        full_disk_s=mean(15.0, 30.0),
        slow_disk_s=mean(5.0, 15.0),
        wall_step_s=mean(5.0, 15.0),
        clock_advance_s=0.0 if secured else mean(10.0, 30.0),
        lost_answers=random.choice((0.0, 0.02, 0.1)),
    )


def redrive_policy(target: str, receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, target), "maxReceiveCount": receives})


def choose_queues(random: Random, fifo: Random, shards: int) -> list[QueuePlan]:
    """Some queues of every kind. Dead-letter queues come first, since others name them."""

    def visibility() -> str:
        return random.choice(("2", "5", "15"))

    def on() -> str:
        return random.choice(("receive", "failure"))

    receives = random.randint(1, 4)
    plans = [QueuePlan("dead", {"VisibilityTimeout": visibility()}, dead_letters=True)]
    kinds = [
        QueuePlan(
            "orders",
            {
                "VisibilityTimeout": visibility(),
                "RedrivePolicy": redrive_policy("dead", receives),
                "Baton.DeadLetterOn": on(),
            },
            grouped=random.random() < 0.5,
        ),
        QueuePlan(
            "strict",
            {
                "VisibilityTimeout": visibility(),
                "Baton.StrictReceipts": "true",
                "RedrivePolicy": redrive_policy("dead", random.randint(2, 4)),
                "Baton.DeadLetterOn": on(),
            },
        ),
        QueuePlan(
            "ranked",
            {
                "VisibilityTimeout": visibility(),
                "Baton.PriorityAgeingSeconds": random.choice(("0", "5", "300")),
                "Baton.MaxReceives": random.choice(("0", "3")),
                "Baton.DeadLetterOn": on(),
            },
            ranked=True,
            grouped=random.random() < 0.3,
        ),
        QueuePlan(
            "late",
            {"VisibilityTimeout": visibility(), "DelaySeconds": random.choice(("0", "3"))},
            delayed=True,
        ),
        QueuePlan(
            "brief",
            {
                "VisibilityTimeout": visibility(),
                "MessageRetentionPeriod": "60",
                "RedrivePolicy": redrive_policy("dead", 3),
                "Baton.ExpiryToDeadLetter": random.choice(("true", "false")),
            },
            brief=True,
        ),
        QueuePlan(
            "keyed",
            {
                "VisibilityTimeout": visibility(),
                "Baton.DeduplicationWindow": random.choice(("5", "30")),
                "Baton.DeduplicationScope": random.choice(("window", "lives")),
            },
            keyed=True,
        ),
        QueuePlan("bin", {"VisibilityTimeout": visibility()}, purged=True),
        QueuePlan(
            "fleeting",
            {"VisibilityTimeout": visibility(), "RedrivePolicy": redrive_policy("dead", 2), "Baton.DeadLetterOn": on()},
            fleeting=True,
        ),
    ]
    plans += random.sample(kinds, random.randint(2, len(kinds)))
    if random.random() < 0.4:
        plans += leaky_queues(visibility(), on())
    if random.random() < 0.8:
        plans += _fifo_queues(random, fifo, shards, visibility(), on())
    return plans


def leaky_queues(visibility: str, on: str) -> list[QueuePlan]:
    """A queue whose dead letters are refused most of the time."""
    redrive = {"RedrivePolicy": redrive_policy(NARROW, 1), "Baton.DeadLetterOn": on}
    return [
        QueuePlan(NARROW, {"Baton.MaximumMessages": "3"}, dead_letters=True),
        QueuePlan("leaky", {"VisibilityTimeout": visibility, **redrive}),
    ]


def _fifo_queues(random: Random, fifo: Random, shards: int, visibility: str, on: str) -> list[QueuePlan]:
    """FIFO queues. Those that can be on several shards may start so, and may grow."""

    def spread(scope: str) -> dict[str, str]:
        count = fifo.randint(1, max(1, shards - 1)) if scope == "messageGroup" else 1
        return {"DeduplicationScope": scope, **({"Baton.Spread": str(count)} if count > 1 else {})}

    redrive = {"RedrivePolicy": redrive_policy("dead.fifo", random.randint(1, 4)), "Baton.DeadLetterOn": on}
    return [
        QueuePlan(
            "dead.fifo",
            {"FifoQueue": "true", "VisibilityTimeout": "5", **spread(fifo.choice(("queue", "messageGroup")))},
            dead_letters=True,
        ),
        QueuePlan(
            "line.fifo",
            {
                "FifoQueue": "true",
                "VisibilityTimeout": visibility,
                **spread(random.choice(("queue", "messageGroup"))),
                "Baton.DeduplicationWindow": random.choice(("5", "300")),
                **(redrive if random.random() < 0.7 else {}),
            },
            grouped=True,
            keyed=True,
            ranked=random.random() < 0.3,
        ),
    ]

"""The three loads, with their required figures."""

from __future__ import annotations

from bench import bodies
from bench.scenarios.load import Level, Load

_EVENT_BYTES = 512
_JOB_BYTES = 1024
_TEXTS = 400


def peak() -> Load:
    """A platform of many teams: 100,000 messages per second at the peak; bodies of 2 KiB
    in the median, up to 256 KiB.
    """
    texts = bodies.mixed(_TEXTS)
    return Load(
        "peak", "100,000/s at the peak, median 2 KiB, most under 16 KiB, up to 256 KiB", 100_000, texts, batch=50
    )


def ordered() -> Load:
    """Events of trips, in order for each trip: 18,000 per second, sustained."""
    settings = {"mode": "FIFO", "deduplication": {"perGroup": True}}
    title = "18,000/s sustained, in order for each of 10,000 entities"
    texts = bodies.texts(_TEXTS, _EVENT_BYTES)
    return Load("ordered", title, 18_000, texts, settings, entities=10_000)


def priorities() -> Load:
    """Jobs of five levels, 850,000 per minute; the highest must start within a second, whatever waits below it."""
    levels = (
        Level("critical", "highest", 0.05),
        Level("high", "high", 0.15),
        Level("default", "normal", 0.5),
        Level("low", "low", 0.2),
        Level("bulk", "lowest", 0.1),
    )
    title = "five levels, 14,167/s, with a backlog of the lowest"
    return Load(
        "priorities", title, round(850_000 / 60), bodies.texts(_TEXTS, _JOB_BYTES), levels=levels, backlog_s=6.0
    )


LOADS = {"peak": peak, "ordered": ordered, "priorities": priorities}

"""The sentence of a queue's page."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.ui.queue_words import sentence


@pytest.mark.parametrize(
    ("queue", "stats", "said", "level"),
    [
        ({}, {}, "Empty: no messages wait.", "ok"),
        ({"paused": "none"}, {}, "Empty: no messages wait.", "ok"),
        ({"paused": "delivery"}, {"visible": 2}, "Paused; 2 messages left.", "warning"),
        ({"paused": "sends"}, {}, "Sends are paused; no messages left.", "warning"),
        ({"paused": "both"}, {"delayed": 1}, "Paused, and sends are refused; 1 message left.", "warning"),
        (
            {},
            {"visible": 1, "oldestAgeSeconds": 2.0, "waitingReceives": 1},
            "1 message waits, the oldest for 2 s.",
            "ok",
        ),
        ({}, {"visible": 1, "oldestAgeSeconds": 0.01}, "1 message waits, the oldest for 0 s.", "ok"),
        ({}, {"visible": 1, "oldestAgeSeconds": 60.0}, "1 message waits, the oldest for 1 min.", "ok"),
        (
            {},
            {"visible": 290, "oldestAgeSeconds": 240.0},
            "290 messages wait, the oldest for 4 min; nobody receives.",
            "warning",
        ),
        (
            {"slaSeconds": 60},
            {"visible": 5, "inFlight": 1, "oldestAgeSeconds": 300.0},
            "4 min behind its SLA of 1 min; 5 messages wait, the oldest for 5 min.",
            "warning",
        ),
        (
            {"slaSeconds": 600},
            {"visible": 5, "inFlight": 1, "oldestAgeSeconds": 300.0, "sentPerSecond": 40.0, "deletedPerSecond": 10.0},
            "5 messages wait, the oldest for 5 min; growing by 30/s.",
            "ok",
        ),
        (
            {},
            {"visible": 6000, "inFlight": 1, "oldestAgeSeconds": 1.0, "sentPerSecond": 0.0, "deletedPerSecond": 100.0},
            "6,000 messages wait, the oldest for 1 s; empty in about 1 min.",
            "ok",
        ),
        ({}, {"inFlight": 3, "delayed": 2, "oldestAgeSeconds": 9.0}, "No message waits, 3 in flight, 2 delayed.", "ok"),
    ],
)
def test_how_a_queue_is(queue: dict[str, Any], stats: dict[str, Any], said: str, level: str) -> None:
    assert sentence(queue, stats) == (said, level)


def test_a_queue_of_dead_letters() -> None:
    stats = {"visible": 213, "inFlight": 1, "oldestAgeSeconds": 7200.0}
    said = "214 dead letters, the oldest arrived 2 h ago."
    assert sentence({}, stats, dead_letters=True) == (said, "warning")
    assert sentence({}, {}, dead_letters=True) == ("No dead letters.", "ok")

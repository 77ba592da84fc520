"""Answers of the REST API in the shapes of its contract."""

from __future__ import annotations

from typing import Any

from tests.dashboard.pages import NOW_S

NOW_MS = int(NOW_S * 1000)


def status(**changes: Any) -> dict[str, Any]:
    return {
        "version": "0.1",
        "node": "one",
        "profile": "development",
        "readOnly": False,
        "startedAtMs": NOW_MS - 86_400_000,
        "atMs": NOW_MS,
        "verdict": {"level": "ok", "sentence": "All well: 14 queues, oldest message 2 s.", "problems": []},
        "queues": 14,
        "visible": 48_312,
        "inFlight": 612,
        "delayed": 12,
        "owed": 0,
        "dead": 0,
        "deadLetters": 0,
        "bytes": 90_123_456,
        "oldestAgeSeconds": 240.0,
        "oldestVisibleAgeSeconds": 2.0,
        "sentPerSecond": 1204.0,
        "receivedPerSecond": 1198.0,
        "ackedPerSecond": 1190.0,
        "retriedPerSecond": 4.8,
        "deadLetteredPerSecond": 0.0,
        "connections": 12,
        "waitingReceives": 3,
        "shards": [
            {"number": 0, "state": "serving", "why": "", "epoch": 3, "owner": "one", "logBytes": 1, "room": "plenty"}
        ],
        "nodes": [{"name": "one"}],
        "disk": {"freeBytes": 10**11, "totalBytes": 2 * 10**11, "usedBytes": 10**11},
        "memory": {"residentBytes": 10**8},
        "cpuSeconds": 12.5,
        "alarms": {"active": 0, "unacknowledged": 0},
        **changes,
    }


def summary(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "account": "000000000000",
        "mode": "STANDARD",
        "isDeadLetterQueue": False,
        "sources": [],
        "visible": 48_120,
        "inFlight": 300,
        "delayed": 12,
        "owed": 0,
        "dead": 0,
        "bytes": 9_000_000,
        "oldestAgeSeconds": 240.0,
        "oldestVisibleAgeSeconds": 240.0,
        "sentPerSecond": 410.0,
        "receivedPerSecond": 400.0,
        "ackedPerSecond": 380.0,
        "retriedPerSecond": 0.4,
        "sent": 1_000_000,
        "received": 990_000,
        "deleted": 950_000,
        "arrived": 0,
        "deadLettered": 3,
        "expired": 0,
        "waitingReceives": 2,
        "trend": [*range(0, 400, 20)],
        "level": "ok",
        "note": "",
        **changes,
    }


def queue_stats(*queues: dict[str, Any], total: int | None = None, offset: int = 0) -> dict[str, Any]:
    return {
        "total": len(queues) if total is None else total,
        "offset": offset,
        "atMs": NOW_MS,
        "queues": [*queues],
    }

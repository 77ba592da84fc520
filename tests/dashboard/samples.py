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


def queue(name: str = "orders", **changes: Any) -> dict[str, Any]:
    return {
        "queueId": "q_7",
        "name": name,
        "mode": "STANDARD",
        "fifo": False,
        "arn": f"arn:aws:sqs:us-east-1:000000000000:{name}",
        "createdAtMs": NOW_MS - 86_400_000,
        "modifiedAtMs": NOW_MS - 3_600_000,
        "retentionSeconds": 345_600,
        "defaultVisibilityTimeoutSeconds": 30,
        "maxReceiveCount": 5,
        "deadLetterQueue": "orders-dlq",
        "strictReceipts": True,
        "deduplication": {"windowSeconds": 300, "scope": "window"},
        "tags": {},
        **changes,
    }


def stats(**changes: Any) -> dict[str, Any]:
    return {
        "queue": "orders",
        "visible": 7,
        "inFlight": 2,
        "delayed": 1,
        "owed": 0,
        "dead": 0,
        "bytes": 1234,
        "oldestAgeSeconds": 4.0,
        "sent": 100,
        "received": 95,
        "deleted": 90,
        "returned": 1,
        "expiredLeases": 2,
        "expired": 0,
        "deadLettered": 3,
        "arrived": 0,
        "duplicates": 0,
        "staleAcks": 0,
        "lateAcks": 0,
        "waitingReceives": 1,
        "atMs": NOW_MS,
        **changes,
    }


def peeked(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "messageId": f"00000000-0000-0000-0000-{number:012d}",
        "currentId": f"00000000-0000-0000-0000-{number:012d}",
        "sequence": number + 1,
        "state": "VISIBLE",
        "receiveCount": 1,
        "body": {"order": number},
        "bodyBytes": 12,
        "sentAtMs": NOW_MS - 5_000,
        "expiresAtMs": NOW_MS + 10**8,
        "why": "It can be received now.",
        **changes,
    }


def series(**changes: Any) -> dict[str, Any]:
    return {
        "range": "15m",
        "stepSeconds": 5,
        "startAtMs": NOW_MS - 15_000,
        "endAtMs": NOW_MS,
        "values": {"sent": [1.0, None, 3.5], "visible": [5, 6, 7], "endToEndP50Ms": [120.0, None, 90.0]},
        "marks": [],
        **changes,
    }


def topic(name: str = "events", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mode": "STANDARD",
        "fifo": False,
        "arn": f"arn:aws:sns:us-east-1:000000000000:{name}",
        "createdAtMs": NOW_MS - 3_600_000,
        "modifiedAtMs": NOW_MS - 3_600_000,
        "retentionSeconds": 345_600,
        "tags": {},
        "subscriptions": 2,
        **changes,
    }


def subscription(queue: str, **changes: Any) -> dict[str, Any]:
    return {
        "subscriptionId": f"id-of-{queue}",
        "topic": "events",
        "queue": queue,
        "arn": f"arn:aws:sns:us-east-1:000000000000:events:id-of-{queue}",
        "queueArn": f"arn:aws:sqs:us-east-1:000000000000:{queue}",
        "createdAtMs": NOW_MS - 60_000,
        "rawDelivery": False,
        **changes,
    }


def reader(name: str = "analytics", **changes: Any) -> dict[str, Any]:
    shard = {"shard": 3, "committed": "3:17", "lagMessages": 0, "lagSeconds": 0.0, "last": "3:17"}
    return {
        "name": name,
        "queue": "orders",
        "createdAtMs": NOW_MS - 60_000,
        "epoch": 4,
        "maxFailures": 3,
        "sessionSeconds": 30.0,
        "lagMessages": 0,
        "lagSeconds": 0.0,
        "members": [{"member": "worker-1", "shards": [3]}],
        "shards": [shard],
        **changes,
    }


def counters(**changes: Any) -> dict[str, Any]:
    counted = {
        "sent": 10,
        "arrived": 2,
        "deleted": 5,
        "expired": 1,
        "moved": 2,
        "present": 4,
        "unaccounted": 0,
        "deadLettered": 2,
        "delivered": 9,
        "returned": 1,
        "expiredLeases": 1,
        "visible": 3,
        "inFlight": 1,
        "delayed": 0,
        "owed": 0,
        "dead": 0,
        "bytes": 400,
        **changes,
    }
    shards = [{"shard": 3, "position": "3:1204", "counters": counted}]
    return {"queue": "orders", "atMs": NOW_MS, "positions": ["3:1204"], "counters": counted, "shards": shards}


def schedule(name: str = "nightly", **changes: Any) -> dict[str, Any]:
    return {
        "scheduleId": f"{name}@reports",
        "name": name,
        "queue": "reports",
        "cron": "30 2 * * *",
        "timeZone": "Europe/Berlin",
        "missed": "last",
        "enabled": True,
        "state": "ACTIVE",
        "why": "",
        "nextAtMs": NOW_MS + 3_600_000,
        "lastFiredAtMs": NOW_MS - 60_000,
        "lastMessageId": "m-9",
        "firings": 7,
        "lateFirings": 1,
        "skippedFirings": 0,
        "createdAtMs": NOW_MS - 86_400_000,
        "modifiedAtMs": NOW_MS - 86_400_000,
        "message": {"body": {"report": "daily"}, "attributes": {"kind": "report"}},
        **changes,
    }

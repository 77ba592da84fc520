"""An example request for each operation that takes a body, for the OpenAPI document and its page. A test sends them
all.
"""

from __future__ import annotations

from typing import Any

RECEIPT = "AQEAAAACAAAAAAAAAAEAAAAAAAEAAACpv9HOWT5Oyxug"

EXAMPLES: dict[str, Any] = {
    "createQueue": {
        "name": "emails",
        "defaultVisibilityTimeoutSeconds": 60,
        "maxReceiveCount": 3,
        "deadLetterQueue": "emails-dead",
        "retainSeconds": 86400,
        "retry": {"kind": "schedule", "delaysSeconds": [60, 300, 1800], "jitter": 0.2},
    },
    "updateQueue": {"retentionSeconds": 86400, "slaSeconds": None},
    "sendMessage": {
        "body": {"to": "ann@example.com", "template": "receipt"},
        "deduplicationKey": "receipt:1017",
        "priority": "high",
        "attributes": {"tenant": "acme"},
    },
    "sendBatch": {
        "messages": [
            {"clientMessageId": "a", "body": {"n": 1}},
            {"clientMessageId": "b", "bodyBase64": "AAEC", "delaySeconds": 30},
        ]
    },
    "receive": {"maxMessages": 10, "waitSeconds": 20, "visibilityTimeoutSeconds": 60, "consumer": "worker-1"},
    "receiveAny": {"queues": ["emails", "hooks-*"], "maxMessages": 10, "waitSeconds": 20},
    "nack": {"delaySeconds": 30, "reason": "smtp timeout", "errorClass": "TimeoutError"},
    "changeVisibility": {"visibilityTimeoutSeconds": 120},
    "ackBatch": {"receiptHandles": [RECEIPT]},
    "nackBatch": {"messages": [{"receiptHandle": RECEIPT, "reason": "bad address", "deadLetter": True}]},
    "changeVisibilityBatch": {"messages": [{"receiptHandle": RECEIPT, "visibilityTimeoutSeconds": 120}]},
    "editMessage": {
        "body": {"to": "ann@example.com"},
        "setAttributes": {"corrected": 1},
        "removeAttributes": ["draft"],
    },
    "deleteMessages": {"filter": {"errorClass": "ValueError", "minAgeSeconds": 3600}, "dryRun": True},
    "redrive": {
        "maxMessagesPerSecond": 100,
        "filter": {"errorClass": "TimeoutError", "attributes": {"tenant": "acme"}},
        "edit": {"setAttributes": {"redriven": 1}},
        "dryRun": True,
    },
    "replay": {
        "targetQueue": "emails",
        "from": "2026-11-17T22:00:00Z",
        "until": "2026-11-17T23:00:00Z",
        "filter": {"attributes": {"tenant": "acme"}},
        "maxMessagesPerSecond": 500,
        "dryRun": True,
    },
    "createReader": {"name": "audit", "from": "start", "deadLetterQueue": "emails-dead", "maxFailures": 3},
    "joinReader": {"member": "worker-1"},
    "fetchReader": {"member": "worker-1", "epoch": 1763416800001, "maxMessages": 500, "waitSeconds": 20},
    "commitReader": {"member": "worker-1", "epoch": 1763416800001, "positions": ["0:4295032832"]},
    "failReader": {"member": "worker-1", "epoch": 1763416800001, "position": "0:4295032833", "error": "ValueError"},
    "seekReader": {"to": "2026-11-17T22:00:00Z"},
    "leaveReader": {"member": "worker-1"},
    "importDefinitions": {
        "version": 1,
        "queues": [
            {"name": "reports", "deadLetterQueue": "reports-dead", "maxReceiveCount": 5, "tags": {"team": "red"}},
            {"name": "reports-dead", "retentionSeconds": 1209600},
        ],
    },
    "createTopic": {"name": "orders", "retentionSeconds": 86400, "tags": {"team": "shop"}},
    "updateTopic": {"displayName": "Orders of all shops"},
    "publishMessage": {"body": {"order": 1017, "total": 12.5}, "attributes": {"shop": "north", "total": 12.5}},
    "publishBatch": {
        "messages": [
            {"clientMessageId": "a", "body": {"order": 1018}, "attributes": {"shop": "north"}},
            {"clientMessageId": "b", "body": {"order": 1019}, "attributes": {"shop": "south"}},
        ]
    },
    "matchTopic": {"body": {"order": 1017}, "attributes": {"shop": "north", "total": 12.5}},
    "createSubscription": {
        "queue": "emails",
        "filterPolicy": {"shop": ["north", {"prefix": "east-"}], "total": [{"numeric": [">", 10]}]},
    },
    "updateSubscription": {"filterPolicy": {"shop": [{"anything-but": "south"}]}, "rawDelivery": True},
    "createSchedule": {
        "name": "nightly",
        "queue": "emails",
        "cron": "0 3 * * *",
        "timeZone": "Europe/Berlin",
        "message": {"body": {"report": "daily"}},
    },
    "updateSchedule": {"cron": "30 3 * * MON-FRI", "missed": "all"},
    "previewSchedule": {"cron": "0 3 * * *", "timeZone": "Europe/Berlin", "count": 3},
    "acknowledgeAlarm": {"note": "I am looking at it"},
    "createKey": {"name": "billing workers", "role": "write", "expiresInSeconds": 7_776_000},
}

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
    "importDefinitions": {
        "version": 1,
        "queues": [
            {"name": "reports", "deadLetterQueue": "reports-dead", "maxReceiveCount": 5, "tags": {"team": "red"}},
            {"name": "reports-dead", "retentionSeconds": 1209600},
        ],
    },
    "acknowledgeAlarm": {"note": "I am looking at it"},
    "createKey": {"name": "billing workers", "role": "write", "expiresInSeconds": 7_776_000},
}

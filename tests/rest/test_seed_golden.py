"""The API's first sketch, request by request: what it prints is asked, and what it prints is answered.

Ids are of our own making, so `<...>` stands for what is compared by kind; every other byte of a value is literal.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.api.support import wait_until
from tests.rest.support import Rest

QUEUE = """{
"name": "email-send",
"mode": "STANDARD",
"retentionSeconds": 345600,
"defaultVisibilityTimeoutSeconds": 60,
"maxReceiveCount": 8,
"deadLetterQueue": "email-send-dlq"
}"""
MESSAGE = """{
"body": {
"notificationId": "n_987",
"template": "receipt"
},
"deduplicationKey": "notification:n_987",
"messageGroupId": "merchant_42",
"delaySeconds": 0,
"attributes": {
"priority": "normal"
}
}"""
BATCH = """{
"messages": [
{
"clientMessageId": "m1",
"body": { "notificationId": "n_988" }
}
]
}"""
RECEIVE = """{
"maxMessages": 10,
"waitSeconds": 20,
"visibilityTimeoutSeconds": 60
}"""
KEY = {"Idempotency-Key": "6d096e2f-9b96-41d9-a5f8-1a3f8d5427e4"}

_KINDS = {
    "<queue id>": re.compile(r"q_[0-9]+"),
    "<message id>": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}"),
    "<receipt>": re.compile(r"[A-Za-z0-9_-]{44}"),
    "<job id>": re.compile(r"[0-9a-f]{32}"),
}


def alike(got: Any, printed: Any) -> bool:
    """Everything that is printed is there; more may be."""
    if isinstance(printed, dict):
        return isinstance(got, dict) and all(name in got and alike(got[name], printed[name]) for name in printed)
    if isinstance(printed, list):
        return isinstance(got, list) and len(got) == len(printed) and all(map(alike, got, printed))
    if isinstance(printed, str) and printed in _KINDS:
        return isinstance(got, str) and _KINDS[printed].fullmatch(got) is not None
    if printed == "<number>":
        return type(got) is int and got > 0
    return type(got) is type(printed) and bool(got == printed)


def ask(rest: Rest, request: str, text: str = "", headers: dict[str, str] | None = None) -> tuple[int, Any]:
    method, path = request.split()
    answer = rest(method, path, raw=text.encode(), headers=headers)
    return answer.status, answer.value


@pytest.fixture
def made(rest: Rest) -> Rest:
    assert ask(rest, "POST /v1/queues", QUEUE)[0] == 201
    return rest


def leased(rest: Rest) -> dict[str, Any]:
    assert ask(rest, "POST /v1/queues/email-send/messages", MESSAGE)[0] == 202
    status, value = ask(rest, "POST /v1/queues/email-send/messages:receive", RECEIVE)
    assert status == 200
    (message,) = value["messages"]
    assert isinstance(message, dict)
    return message


def test_create(rest: Rest) -> None:
    status, value = ask(rest, "POST /v1/queues", QUEUE)
    assert status == 201
    assert alike(value, {"queueId": "<queue id>"})


def test_send(made: Rest) -> None:
    status, value = ask(made, "POST /v1/queues/email-send/messages", MESSAGE, KEY)
    assert status == 202
    assert set(value) == {"messageId", "sequence"}
    assert alike(value, {"messageId": "<message id>", "sequence": "<number>"})
    assert ask(made, "POST /v1/queues/email-send/messages", MESSAGE, KEY) == (202, value)


def test_batch(made: Rest) -> None:
    status, value = ask(made, "POST /v1/queues/email-send/messages:batch", BATCH)
    assert status == 202
    assert alike(value, {"results": [{"clientMessageId": "m1", "messageId": "<message id>", "sequence": "<number>"}]})


def test_receive(made: Rest) -> None:
    _, sent = ask(made, "POST /v1/queues/email-send/messages", MESSAGE)
    status, value = ask(made, "POST /v1/queues/email-send/messages:receive", RECEIVE)
    assert status == 200
    printed = {
        "messages": [
            {
                "messageId": "<message id>",
                "receiptHandle": "<receipt>",
                "receiveCount": 1,
                "body": {"notificationId": "n_987", "template": "receipt"},
                "messageGroupId": "merchant_42",
                "attributes": {"priority": "normal"},
            }
        ]
    }
    assert alike(value, printed)
    (message,) = value["messages"]
    assert message["messageId"] == sent["messageId"]
    assert message["sequence"] == sent["sequence"]
    assert message["deadlineMs"] == message["firstReceivedAtMs"] + 60_000


def test_ack(made: Rest) -> None:
    receipt = leased(made)["receiptHandle"]
    assert ask(made, f"POST /v1/queues/email-send/messages/{receipt}:ack") == (204, None)
    assert made.stats("/v1/queues/email-send")["deleted"] == 1


def test_change_visibility(made: Rest) -> None:
    receipt = leased(made)["receiptHandle"]
    text = '{\n"visibilityTimeoutSeconds": 120\n}'
    assert ask(made, f"POST /v1/queues/email-send/messages/{receipt}:change-visibility", text) == (204, None)
    made.server.advance(119)
    assert made.receive("/v1/queues/email-send") == []
    made.server.advance(2)
    assert made.receive("/v1/queues/email-send")[0]["receiveCount"] == 2


def test_nack(made: Rest) -> None:
    receipt = leased(made)["receiptHandle"]
    text = '{\n"delaySeconds": 30,\n"reason": "third_party_timeout"\n}'
    assert ask(made, f"POST /v1/queues/email-send/messages/{receipt}:nack", text) == (204, None)
    assert made.receive("/v1/queues/email-send") == []
    made.server.advance(30)
    (again,) = made.receive("/v1/queues/email-send")
    assert again["receiveCount"] == 2
    assert again["lastFailure"]["reason"] == "third_party_timeout"


def test_redrive(made: Rest) -> None:
    receipt = leased(made)["receiptHandle"]
    assert made("POST", f"/v1/queues/email-send/messages/{receipt}:nack", {"deadLetter": True}).status == 204
    text = '{\n"targetQueue": "email-send",\n"maxMessagesPerSecond": 1000\n}'
    status, value = ask(made, "POST /v1/queues/email-send-dlq:redrive", text)
    assert status == 202
    printed = {
        "jobId": "<job id>",
        "kind": "redrive",
        "sourceQueue": "email-send-dlq",
        "targetQueue": "email-send",
        "state": "RUNNING",
        "maxMessagesPerSecond": 1000,
        "startedAtMs": "<number>",
        "moved": 0,
        "remaining": 1,
    }
    assert alike(value, printed), json.dumps(value)
    (again,) = made.receive("/v1/queues/email-send", waitSeconds=20)
    assert again["body"]["notificationId"] == "n_987"
    wait_until(lambda: bool(made.good("GET", f"/v1/jobs/{value['jobId']}")["state"] == "COMPLETED"))


def test_the_printed_requests_are_what_they_are() -> None:
    """A typing error here would make a test of something else."""
    assert json.loads(QUEUE)["maxReceiveCount"] == 8
    assert json.loads(MESSAGE)["attributes"] == {"priority": "normal"}
    assert json.loads(BATCH)["messages"][0]["clientMessageId"] == "m1"
    assert json.loads(RECEIVE)["waitSeconds"] == 20

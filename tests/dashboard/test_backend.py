"""The dashboard's access to REST."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller
from batonq.api.ui.backend import BODY_BYTES_MAX, LIST_BYTES_MAX, Backend


class Answering:
    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    async def handle(self, request: Request, caller: Caller) -> Response:
        return Response(200, json.dumps(self.answer, separators=(",", ":")).encode())


def got(answer: dict[str, Any]) -> Any:
    return asyncio.run(Backend(Answering(answer), Caller("000000000000", "")).get("/v1/queues/q/messages"))


def test_long_bodies_of_a_long_list_stay_text() -> None:
    """Millions of small values would delay other requests while they are decoded."""
    long, short = [0] * LIST_BYTES_MAX, {"order": 7, "text": "ü"}
    attributes = {"a": "x" * BODY_BYTES_MAX}
    rows = [{"messageId": "1", "body": long}, {"messageId": "2", "body": short, "attributes": attributes}]
    found = got({"messages": rows, "nextAfter": 9, "complete": False})
    assert found["messages"][0] == {"messageId": "1", "body": ("[" + "0," * BODY_BYTES_MAX)[:BODY_BYTES_MAX]}
    assert found["messages"][1] == rows[1]
    assert (found["nextAfter"], found["complete"]) == (9, False)


def test_other_answers_are_decoded_as_they_are() -> None:
    for answer in ({"messages": [{"body": [0] * 100}]}, {"queues": ["x" * LIST_BYTES_MAX]}):
        assert got(answer) == answer

"""The corpus reaches a server: what is planted is there, as it was sent."""

from __future__ import annotations

import json

from tests.ui.servers import Rest
from tests.ui.xss import PAYLOADS, SHORT, TIGHT, plant


def test_the_planted_texts_are_stored_as_they_were_sent(rest: Rest) -> None:
    planted = plant(rest, "corpus")
    assert rest("GET", "/v1/queues/corpus")["tags"][PAYLOADS[0]] == PAYLOADS[0]
    messages = {m["messageId"]: m for m in rest("GET", "/v1/queues/corpus/messages?limit=100")["messages"]}
    waiting, held = messages[planted.message_id], messages[planted.held_id]
    assert waiting["body"] == json.dumps(PAYLOADS) and waiting["messageGroupId"] == TIGHT
    assert held["holder"] == SHORT
    letters = rest("GET", "/v1/queues/corpus-dead/messages?limit=100")["messages"]
    assert {letter["deadLetter"]["reason"] for letter in letters} == set(PAYLOADS)
    assert {letter["deadLetter"]["errorClass"] for letter in letters} == {payload[:100] for payload in PAYLOADS}

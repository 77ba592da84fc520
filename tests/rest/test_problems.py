"""What a client is told when something is wrong: a problem with a code, and what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batonq import errors
from batonq.api.rest import problems
from batonq.api.rest.codec import JSON, MSGPACK
from batonq.errors import BatonError, DiskFull, OverLimit, Unavailable
from tests.rest.support import Rest


def kinds(root: type[BatonError] = BatonError) -> list[type[BatonError]]:
    found = [root]
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            found += kinds(kind)
    return found


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: str(kind.code))
@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)
def test_every_error_is_a_problem(kind: type[BatonError], codec: Any) -> None:
    response = problems.respond(kind("What happened."), codec)
    assert response.status == kind.status
    assert response.content_type == codec.problem_type
    told = codec.decode(response.body, problems.Problem)
    assert (told.code, told.status, told.retryable) == (kind.code, kind.status, kind.retryable)
    assert told.type == f"/problems/{kind.code}"
    assert told.detail == "What happened."
    assert told.title


@pytest.mark.parametrize("kind", [OverLimit, Unavailable, DiskFull])
def test_what_passes_by_itself_says_when_to_try_again(kind: type[BatonError]) -> None:
    headers = dict(problems.respond(kind(), JSON).headers)
    assert int(headers["Retry-After"]) >= 1


def test_a_limit_is_429_with_retry_after(rest: Rest) -> None:
    queue = rest.create(maxMessages=1)
    rest.send(queue, 1)
    answer = rest("POST", f"{queue}/messages", {"body": 2})
    assert (answer.status, answer.code) == (429, "over_limit")
    assert answer.value["retryable"] is True
    assert int(answer.headers["retry-after"]) >= 1
    assert rest.receive(queue, 1)[0]["body"] == 1


def test_a_full_flight_is_429(rest: Rest) -> None:
    queue = rest.create(maxInFlight=1)
    rest.send(queue, 1)
    rest.send(queue, 2)
    rest.receive(queue)
    assert rest("POST", f"{queue}/messages:receive", {}).status == 429


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "name is missing. name: Name of the queue: letters, digits"),
        ({"name": "a b"}, "name does not have the required format. name: Name of the queue: letters, digits"),
        ({"name": "q", "mode": "LIFO"}, "mode cannot be 'LIFO'. mode: `STANDARD`, or `FIFO`"),
        ({"name": "q", "delaySeconds": -1}, "delaySeconds must be a number, 0 or more. delaySeconds: Default delay"),
        ({"name": "q", "delaySeconds": "1"}, "delaySeconds must be a number or null, not text."),
        (
            {"name": "q", "retry": {"kind": "x"}},
            "retry.kind cannot be 'x'. kind: Kind of policy: `exponential`",
        ),
        ({"name": "q", "retry": {"kind": "schedule", "delaysSeconds": []}}, "must be an array of 1 or more entries."),
        ({"name": "q", "colour": 1}, "unknown field colour."),
        ([], "it must be an object, not an array."),
    ],
)
def test_a_body_is_refused_in_words_that_its_sender_uses(rest: Rest, spec: Any, says: str) -> None:
    answer = rest("POST", "/v1/queues", spec)
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert says in answer.value["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1"),
        ("GET", "/v1/"),
        ("GET", "/v1/queues/"),
        ("GET", "/v1/other"),
        ("POST", "/v1/queues/queue:explode"),
        ("POST", "/v1/queues/queue/messages:explode"),
        ("POST", "/v1/queues/queue/messages/x:explode"),
        ("POST", "/v1/queues/queue/messages/:ack"),
        ("GET", "/v1/queues/queue/other"),
        ("GET", "/v1/queues/queue/messages/x/y"),
        ("GET", "/v1/jobs/"),
    ],
)
def test_nothing_is_there(rest: Rest, method: str, path: str) -> None:
    answer = rest(method, path)
    assert (answer.status, answer.code) == (404, "not_found")
    assert "/v1/docs" in answer.value["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/queues/queue", "DELETE, GET, HEAD, PATCH"),
        ("DELETE", "/v1/queues", "GET, HEAD, POST"),
        ("GET", "/v1/queues/queue/messages:batch", "POST"),
        ("TRACE", "/v1/queues", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/queues/queue/stats", "GET, HEAD"),
        ("POST", "/v1/openapi.json", "GET, HEAD"),
        ("DELETE", "/v1/docs", "GET, HEAD"),
    ],
)
def test_another_method_is_told_which_ones_there_are(rest: Rest, method: str, path: str, allowed: str) -> None:
    answer = rest(method, path)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "x"])
def test_another_content_type_is_refused(rest: Rest, content_type: str) -> None:
    answer = rest("POST", "/v1/queues", {"name": "x"}, {"Content-Type": content_type})
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("accept", ["text/html", "application/xml, text/*", "application/json;q=0", "*/*;q=0"])
def test_an_answer_that_cannot_be_given(rest: Rest, accept: str) -> None:
    answer = rest("GET", "/v1/queues", headers={"Accept": accept})
    assert (answer.status, answer.code) == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/msgpack", "application/msgpack"),
        ("application/vnd.msgpack", "application/msgpack"),
        ("application/x-msgpack; q=0.9, application/json; q=0.5", "application/msgpack"),
        ("application/json;q=0.2, application/*;q=0.1", "application/json"),
        ("application/json, application/msgpack", "application/json"),
    ],
)
def test_an_answer_in_the_form_that_is_accepted(rest: Rest, accept: str, given: str) -> None:
    assert rest("GET", "/v1/queues", headers={"Accept": accept}).headers["content-type"] == given


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "name"),
        (b"{", "truncated"),
        (b"[]", "an object, not an array"),
        (b'{"name":"x","retention":1}', "retention"),
        (b'{"name":"x","retentionSeconds":59}', "retentionSeconds"),
        (b'{"name":"x","retentionSeconds":60.5}', "retentionSeconds"),
        (b'{"name":"x","retentionSeconds":"60"}', "retentionSeconds"),
        (b'{"name":"x","mode":"fifo"}', "mode"),
        (b'{"name":"x","retry":{"kind":"never"}}', "retry"),
        (b'{"name":"x","retry":{"kind":"schedule"}}', "delaysSeconds"),
        (b'{"name":"x","tags":{"":"x"}}', "tags"),
        (b'{"name":"\xff"}', "utf-8"),
    ],
)
def test_a_body_that_is_not_valid_says_where(rest: Rest, body: bytes, said: str) -> None:
    answer = rest("POST", "/v1/queues", raw=body)
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert said in answer.value["detail"].replace("UTF", "utf")


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"body": 1, "bodyBase64": "eA=="},
        {"bodyBase64": "?"},
        {"bodyBase64": None},
        {"body": 1, "deduplicationKey": ""},
        {"body": 1, "deduplicationKey": "with space"},
        {"body": 1, "messageGroupId": "line\n"},
        {"body": 1, "delaySeconds": -1},
        {"body": 1, "delaySeconds": 31_622_401},
        {"body": 1, "deliverAt": "2027-01-31T09:00:00"},
        {"body": 1, "ttlSeconds": 0},
        {"body": 1, "priority": "urgent"},
        {"body": 1, "priority": -1},
        {"body": 1, "maxReceiveCount": 0},
        {"body": 1, "traceparent": "00"},
        {"body": 1, "attributes": {"": "x"}},
        {"body": 1, "attributes": {"a b": "x"}},
        {"body": 1, "attributes": {"AWS.x": "x"}},
        {"body": 1, "attributes": {"Baton.Priority": 1}},
        {"body": 1, "attributes": {"x": True}},
        {"body": 1, "attributes": {"x": None}},
        {"body": 1, "attributes": {"x": {"base64": "?"}}},
        {"body": 1, "attributes": {"x": "nul\0"}},
        {"body": 1, "attributes": {f"a{number}": 1 for number in range(51)}},
        {"body": 1, "clientMessageId": "only in a batch"},
    ],
    ids=repr,
)
def test_messages_that_are_refused_in_both_forms(rest: Rest, packed: Rest, message: dict[str, Any]) -> None:
    queue = rest.create()
    for sender in (rest, packed):
        answer = sender("POST", f"{queue}/messages", message)
        assert (answer.status, answer.code) == (400, "invalid_input")
    assert rest.stats(queue)["sent"] == 0


@pytest.mark.parametrize(
    "body", [{"a": b"x"}, [b"x"], {1: 2}, float("nan"), [float("inf")], {"a": {"b": [b""]}}], ids=repr
)
def test_values_that_json_has_not_are_refused(packed: Rest, body: Any) -> None:
    answer = packed("POST", f"{packed.create()}/messages", {"body": body})
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert "JSON" in answer.value["detail"]


def test_bodies_that_are_too_deep_are_refused(rest: Rest, packed: Rest) -> None:
    queue = rest.create()
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    for sender in (rest, packed):
        assert sender("POST", f"{queue}/messages", {"body": deep}).code == "invalid_input"
        assert sender("POST", f"{queue}/messages", {"body": deep[0]}).status == 202
    rest.send(queue, [{"a": "]"} for _ in range(300)])
    assert rest("POST", f"{queue}/messages", raw=b'{"body":' + b"[" * 90_000).status == 400
    assert packed("POST", f"{queue}/messages", raw=b"\x81\xa4body" + b"\x91" * 19_000).status == 400


def test_a_message_that_is_too_large_is_413(rest: Rest, packed: Rest) -> None:
    queue = rest.create(maxMessageBytes=1024)
    for sender in (rest, packed):
        answer = sender("POST", f"{queue}/messages", {"body": "x" * 1025})
        assert (answer.status, answer.code) == (413, "too_large")
        assert "1024" in answer.value["detail"]
        assert sender("POST", f"{queue}/messages", {"body": "x" * 1000, "attributes": {"a": "y" * 30}}).status == 413
        assert sender("POST", f"{queue}/messages", {"body": "x" * 1024}).status == 202


def test_a_document_of_very_many_values_is_413(rest: Rest) -> None:
    queue = rest.create()
    for path, field in (("messages", "body"), ("messages:batch", "messages")):
        answer = rest("POST", f"{queue}/{path}", {field: [{}] * 160_000})
        assert (answer.status, answer.code) == (413, "too_large")
        assert "100000 objects and arrays" in answer.value["detail"]


def test_a_request_that_is_too_large_is_413_with_a_problem(rest: Rest) -> None:
    answer = rest("POST", f"{rest.create()}/messages", raw=b" " * (4 * 1024 * 1024 + 1))
    assert (answer.status, answer.code) == (413, "too_large")


def test_a_mistake_of_ours_says_no_more_than_that(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rest.create()

    async def broken(*_: Any) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(rest.server.broker, "counters", broken)
    answer = rest("GET", f"{queue}/stats")
    assert (answer.status, answer.code) == (500, "internal")
    assert "secret" not in answer.body.decode()


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}], ids=repr
)
def test_pages_of_other_sites_are_refused_in_development(rest: Rest, headers: dict[str, str]) -> None:
    answer = rest("GET", "/v1/queues", headers=headers)
    assert (answer.status, answer.code) == (403, "access_denied")


def test_problems_come_in_messagepack_too(packed: Rest) -> None:
    answer = packed("GET", "/v1/queues/missing")
    assert answer.headers["content-type"] == "application/problem+msgpack"
    assert (answer.status, answer.code) == (404, "queue_does_not_exist")


def test_errors_are_counted_by_code(rest: Rest) -> None:
    before = rest.server.rest.errors.get("not_found", 0)
    rest("GET", "/v1/nothing")
    assert rest.server.rest.errors["not_found"] == before + 1
    calls = rest.server.rest.calls["listQueues"]
    rest.good("GET", "/v1/queues")
    assert rest.server.rest.calls["listQueues"] == calls + 1

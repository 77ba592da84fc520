"""Reader groups and retained history over REST."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.rest.support import Answer, Rest
from tests.support.server import TestServer


def make(rest: Rest, *bodies: Any, retain: int = 3600, name: str = "queue", **spec: Any) -> str:
    """The address of a queue that retains its history, with messages."""
    address = rest.create(name, retainSeconds=retain, **spec)
    for body in bodies:
        rest.good("POST", address + "/messages", {"body": body})
    return address


def group(rest: Rest, address: str, name: str = "audit", member: str = "m1", **spec: Any) -> tuple[str, dict[str, Any]]:
    """The address of a new group, and the member and epoch of its only member."""
    rest.good("POST", address + "/readers", {"name": name, **spec})
    path = f"{address}/readers/{name}"
    joined = rest.good("POST", path + ":join", {"member": member})
    return path, {"member": member, "epoch": joined["epoch"], "shards": joined["shards"]}


def without_shards(who: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in who.items() if name != "shards"}


def commit(rest: Rest, path: str, who: dict[str, Any], *positions: str) -> Answer:
    return rest("POST", path + ":commit", {**without_shards(who), "positions": [*positions]})


def fail(rest: Rest, path: str, who: dict[str, Any], position: str, error: str = "") -> Answer:
    return rest("POST", path + ":fail", {**without_shards(who), "position": position, "error": error})


def drain(rest: Rest, address: str) -> int:
    deleted = 0
    while messages := rest.good("POST", address + "/messages:receive", {"maxMessages": 10})["messages"]:
        receipts = [message["receiptHandle"] for message in messages]
        rest.good("POST", address + "/messages:ack", {"receiptHandles": receipts})
        deleted += len(messages)
    return deleted


def test_a_group_reads_what_is_deleted_and_commits(rest: Rest) -> None:
    bodies = ["text", {"a": [1, None]}, 5]
    address = make(rest, *bodies)
    assert drain(rest, address) == 3
    path, who = group(rest, address)
    found = rest.good("POST", path + ":fetch", who)
    assert [message["body"] for message in found["messages"]] == bodies and found["lagMessages"] == 3
    positions = [message["position"] for message in found["messages"]]
    assert commit(rest, path, who, positions[1]).value == {"positions": [positions[1]]}
    again = rest.good("POST", path + ":fetch", without_shards(who))  # the server looks up which shards it has
    assert [message["position"] for message in again["messages"]] == positions[2:]
    after = rest.good("POST", path + ":fetch", {**who, "after": [positions[2]]})
    assert after["messages"] == []
    shown = rest.good("GET", path)
    assert (shown["lagMessages"], shown["shards"][0]["committed"], shown["queue"]) == (1, positions[1], "queue")
    assert shown["members"] == [{"member": "m1", "shards": who["shards"]}]
    assert rest.good("GET", address + "/readers")["readers"] == [rest.good("GET", path)]
    assert rest("DELETE", path).status == 204
    assert rest("GET", path).code == "reader_does_not_exist"
    assert rest.good("GET", address + "/readers")["readers"] == []


def test_two_groups_read_independently(rest: Rest) -> None:
    address = make(rest, "a", "b")
    one, first = group(rest, address, "one")
    two, second = group(rest, address, "two", **{"from": "end"})
    rest.good("POST", address + "/messages", {"body": "c"})
    assert [m["body"] for m in rest.good("POST", one + ":fetch", first)["messages"]] == ["a", "b", "c"]
    assert [m["body"] for m in rest.good("POST", two + ":fetch", second)["messages"]] == ["c"]


def test_a_stale_member_is_refused(rest: Rest) -> None:
    address = make(rest, "a")
    path, old = group(rest, address)
    (message,) = rest.good("POST", path + ":fetch", old)["messages"]
    assert rest("POST", path + ":leave", {"member": "m1"}).status == 204
    joined = rest.good("POST", path + ":join", {"member": "m2"})
    new = {"member": "m2", "epoch": joined["epoch"], "shards": joined["shards"]}
    assert joined["shards"] == old["shards"] and joined["epoch"] > old["epoch"]
    rest.good("POST", path + ":fetch", new)
    for refused in (commit(rest, path, old, message["position"]), fail(rest, path, old, message["position"])):
        assert refused.status == 409 and refused.code == "stale_member" and "Join again" in refused.value["detail"]
    assert rest("POST", path + ":fetch", old).code == "stale_member"
    assert rest("POST", path + ":fetch", without_shards(old)).code == "stale_member"  # it is no longer a member
    assert rest.good("GET", path)["shards"][0]["committed"].endswith(":0")
    assert commit(rest, path, new, message["position"]).status == 200


def test_a_position_that_fails_three_times_goes_to_the_dead_letter_queue_once(rest: Rest) -> None:
    dead = rest.create("dead")
    address = make(rest, "poison", "good")
    rest.good("POST", address + "/messages", {"body": "more", "attributes": {"color": "red"}})
    path, who = group(rest, address, deadLetterQueue="dead")
    poison = rest.good("POST", path + ":fetch", who)["messages"][0]["position"]
    told = [fail(rest, path, who, poison, "no").value for _ in range(3)]
    assert [one["failures"] for one in told] == [1, 2, 3]
    assert [one["skipped"] for one in told] == [False, False, True]
    (letter,) = rest.receive(dead)
    assert letter["body"] == "poison"
    assert letter["attributes"] == {"reader-error": "no", "reader-position": poison, "reader-group": "audit"}
    left = rest.good("POST", path + ":fetch", who)["messages"]
    assert [message["body"] for message in left] == ["good", "more"]
    assert fail(rest, path, who, poison).code == "position_invalid"
    for _ in range(3):
        assert fail(rest, path, who, left[0]["position"]).status == 200
    assert [letter["body"] for letter in rest.receive(dead)] == ["good"]
    assert commit(rest, path, who, left[1]["position"]).status == 200
    assert rest.good("GET", path)["lagMessages"] == 0


def test_without_a_dead_letter_queue_a_position_is_not_skipped(rest: Rest) -> None:
    address = make(rest, "poison")
    path, who = group(rest, address)
    position = rest.good("POST", path + ":fetch", who)["messages"][0]["position"]
    for _ in range(5):
        told = fail(rest, path, who, position, "boom").value
    assert told == {"failures": 5, "skipped": False}
    (shard,) = rest.good("GET", path)["shards"]
    assert (shard["failures"], shard["failedPosition"], shard["error"]) == (5, position, "boom")


def test_a_group_seeks_to_a_time_or_a_position(rest: Rest) -> None:
    address = make(rest, "a", "b", "c")
    path, old = group(rest, address)
    found = rest.good("POST", path + ":fetch", old)["messages"]
    positions = [message["position"] for message in found]
    assert commit(rest, path, old, positions[2]).status == 200
    shown = rest.good("POST", path + ":seek", {"positions": [positions[1]]})
    assert shown["lagMessages"] == 2
    assert commit(rest, path, old, positions[2]).code == "stale_member"
    joined = rest.good("POST", path + ":join", {"member": "m1"})
    who = {"member": "m1", "epoch": joined["epoch"], "shards": joined["shards"]}
    assert old["epoch"] < joined["resetEpoch"] <= joined["epoch"]
    assert [m["body"] for m in rest.good("POST", path + ":fetch", who)["messages"]] == ["b", "c"]
    sent = datetime.fromtimestamp(found[0]["enteredAtMs"] // 1000, UTC).isoformat()
    assert rest.good("POST", path + ":seek", {"to": sent})["lagMessages"] == 3
    assert rest.good("POST", path + ":seek", {"to": "end"})["lagMessages"] == 0
    assert rest.good("POST", path + ":seek", {"to": "start"})["lagMessages"] == 3


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"positions": ["999:1"]}, "position_invalid", "but queue queue is on shard"),
        ({"positions": ["N:1"]}, "position_invalid", "no retained message at position N:1. Its retained messages"),
        ({"positions": ["x"]}, "position_invalid", "positions[0]: 'x' is not a position"),
        ({"positions": ["1:1", "1:2"]}, "position_invalid", "positions[1]: there is already a position of shard 1"),
        ({"to": "yesterday"}, "invalid_input", "to: 'yesterday' is neither"),
        ({"to": "2026-11-17T22:00:00"}, "invalid_input", "with a time zone"),
        ({"to": -5}, "invalid_input", "out of range"),
        ({}, "invalid_input", "Set either `to`"),
    ],
)
def test_a_wrong_position_or_time_says_where(rest: Rest, given: Any, code: str, says: str) -> None:
    path, who = group(rest, make(rest, "a"))
    shard = str(who["shards"][0])
    if "positions" in given:
        given = {"positions": [position.replace("N", shard) for position in given["positions"]]}
    refused = rest("POST", path + ":seek", given)
    assert refused.status == 400 and refused.code == code, refused
    assert says.replace("N:", shard + ":") in refused.value["detail"], refused.value
    assert rest.good("GET", path)["lagMessages"] == 1


def test_a_commit_past_the_end_is_refused(rest: Rest) -> None:
    path, who = group(rest, make(rest, "a"))
    shard = who["shards"][0]
    refused = commit(rest, path, who, f"{shard}:999999999999")
    assert refused.code == "position_invalid" and f"are from {shard}:" in refused.value["detail"]
    assert commit(rest, path, who, "999:1").code == "position_invalid"


def test_groups_need_a_queue_that_retains(rest: Rest) -> None:
    address = rest.create("plain")
    refused = rest("POST", address + "/readers", {"name": "g"})
    assert refused.status == 409 and refused.code == "not_retained" and "retainSeconds" in refused.value["detail"]
    assert rest("GET", address + "/history").code == "not_retained"
    assert rest("POST", address + "/readers", {"name": "no spaces"}).status == 400
    retaining = make(rest)
    assert rest("POST", retaining + "/readers", {"name": "g"}).status == 201
    assert rest("POST", retaining + "/readers", {"name": "g"}).status == 200
    assert rest("POST", retaining + "/readers", {"name": "g", "maxFailures": 9}).code == "reader_exists"
    missing = rest("POST", retaining + "/readers", {"name": "h", "deadLetterQueue": "nowhere"})
    assert missing.status == 400 and missing.value["detail"].startswith("deadLetterQueue")


def test_a_fetch_waits_for_the_first_message(rest: Rest, server: TestServer) -> None:
    other = Rest(server, rest.account)
    address = make(rest)
    path, who = group(rest, address)
    assert rest.good("POST", path + ":fetch", {**who, "waitSeconds": 0.05})["messages"] == []
    body = rest.encode({**who, "waitSeconds": 20})
    rest.connection.request(
        "POST",
        path + ":fetch",
        body,
        {"Authorization": f"AWS4-HMAC-SHA256 Credential={rest.account}/x", "Content-Type": "application/json"},
    )
    other.good("POST", address + "/messages", {"body": "now"})
    response = rest.connection.getresponse()
    assert b'"now"' in response.read()
    other.close()


def test_history_is_read_in_pages_without_a_group(rest: Rest) -> None:
    address = make(rest, *range(7))
    drain(rest, address)
    page = rest.good("GET", address + "/history?limit=3")
    bodies = [message["body"] for message in page["messages"]]
    while "nextCursor" in page:
        page = rest.good("GET", f"{address}/history?limit=3&cursor={page['nextCursor']}")
        bodies += [message["body"] for message in page["messages"]]
    assert bodies == [*range(7)]
    third = rest.good("GET", address + "/history?limit=3")["messages"][2]["position"]
    assert rest.good("GET", f"{address}/history?from={third}")["messages"][0]["body"] == 2
    assert rest.good("GET", f"{address}/history?from=9999999999999")["messages"] == []
    assert rest("GET", f"{address}/history?from=never").status == 400
    assert rest("GET", f"{address}/history?from=start&cursor=0:1").status == 400
    assert rest("GET", f"{address}/history?cursor=999:1").code == "position_invalid"


def test_retained_messages_in_messagepack(packed: Rest) -> None:
    address = make(packed, b"\x00\xff", {"a": 1}, "text")
    path, who = group(packed, address)
    found = packed.good("POST", path + ":fetch", who)["messages"]
    assert [message["body"] for message in found] == [b"\x00\xff", {"a": 1}, "text"]

"""Exact counters at log positions: GET /v1/queues/{queue}/counters."""

from __future__ import annotations

from typing import Any

from tests.api.support import wait_until
from tests.rest.support import Rest


def counters(rest: Rest, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = rest.good("GET", f"{queue}/counters")
    for part in (found, *found["shards"]):
        count = part["counters"]
        entered, left = ("sent", "arrived"), ("deleted", "expired", "moved", "present")
        assert sum(count[name] for name in entered) == sum(count[name] for name in left)
        assert count["unaccounted"] == 0
    assert found["positions"] == [part["position"] for part in found["shards"]]
    assert all(part["position"].startswith(f"{part['shard']}:") for part in found["shards"])
    for name, total in found["counters"].items():
        assert total == sum(part["counters"][name] for part in found["shards"])
    return found


def test_what_happened_to_the_messages_of_a_queue(rest: Rest) -> None:
    queue = rest.create()
    for number in range(6):
        rest.send(queue, number)
    first, _ = rest.receive(queue, 2)
    rest.good("POST", f"{queue}/messages/{first['receiptHandle']}:ack")
    before = counters(rest, queue)["counters"]
    assert (before["sent"], before["delivered"], before["deleted"], before["present"]) == (6, 2, 1, 5)
    assert (before["visible"], before["inFlight"], before["delayed"]) == (4, 1, 0)
    rest.good("POST", f"{queue}:purge")
    after = counters(rest, queue)["counters"]
    assert (after["deleted"], after["present"]) == (6, 0)


def test_a_position_moves_only_with_records(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, 1)
    first, again = (counters(rest, queue)["positions"] for _ in range(2))
    rest.send(queue, 2)
    later = counters(rest, queue)["positions"]
    numbers = [[int(position.partition(":")[2]) for position in positions] for positions in (first, again, later)]
    assert numbers[0] <= numbers[1] and sum(numbers[1]) < sum(numbers[2])


def test_dead_letters_and_their_redrive_are_moves(rest: Rest) -> None:
    dead = rest.create("counted-dead")
    queue = rest.create("counted", deadLetterQueue="counted-dead", maxReceiveCount=1)
    rest.send(queue, "a")
    (message,) = rest.receive(queue)
    rest.good("POST", f"{queue}/messages/{message['receiptHandle']}:nack", {"delaySeconds": 0})
    assert rest.receive(queue) == []
    wait_until(lambda: counters(rest, queue)["counters"]["moved"] == 1)
    assert counters(rest, queue)["counters"]["deadLettered"] == 1
    assert counters(rest, dead)["counters"]["arrived"] == 1
    job = rest.good("POST", f"{dead}:redrive")

    def is_done() -> bool:
        rest.server.advance(0.1)
        return bool(rest.good("GET", f"/v1/jobs/{job['jobId']}")["state"] == "COMPLETED")

    wait_until(is_done)
    assert counters(rest, dead)["counters"]["moved"] == 1
    back = counters(rest, queue)["counters"]
    assert (back["sent"], back["arrived"], back["moved"], back["present"]) == (1, 1, 1, 1)


def test_a_queue_that_does_not_exist(rest: Rest) -> None:
    assert rest("GET", "/v1/queues/nothing/counters").code == "queue_does_not_exist"

"""Retries: only where they help, later each time, as long as there is time; and what a repetition must not do."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.client import Nack, Retries
from batonq.client.retry import NO_RETRIES, as_retries
from batonq.errors import (
    AccessDenied,
    BatonError,
    DiskFull,
    InvalidInput,
    JobConflict,
    LeaseLost,
    MessageGone,
    OverLimit,
    QueueDoesNotExist,
    Unavailable,
)
from tests.client.support import Asked, ScriptedServer, answer, connected, problem, run, sent

QUICK = Retries(base=0.001, cap=0.002)


def test_pauses_grow_and_are_left_to_chance() -> None:
    retries = Retries(attempts=100, base=1.0, factor=2.0, cap=20.0, deadline=1e9)
    for attempt, most in ((0, 1.0), (1, 2.0), (2, 4.0), (4, 16.0), (5, 20.0), (90, 20.0)):
        pauses = [retries.pause(attempt, Unavailable(), 0.0) or 0.0 for _ in range(200)]
        assert 0.0 <= min(pauses) < max(pauses) <= most
        assert len(set(pauses)) > 100


def test_the_server_may_ask_for_more_time() -> None:
    retries = Retries(base=0.001)
    pause = retries.pause(0, OverLimit(), 0.0, retry_after=3.0)
    assert pause is not None and pause >= 3.0
    assert Retries(deadline=2.0).pause(0, OverLimit(), 0.0, retry_after=3.0) is None


def test_it_ends() -> None:
    assert Retries(attempts=3).pause(1, Unavailable(), 0.0) is not None
    assert Retries(attempts=3).pause(2, Unavailable(), 0.0) is None
    assert Retries(deadline=10.0, cap=0.001).pause(0, Unavailable(), 9.9) is not None
    assert Retries(deadline=10.0).pause(0, Unavailable(), 10.1) is None
    assert NO_RETRIES.pause(0, Unavailable(), 0.0) is None


def test_as_a_number() -> None:
    assert as_retries(None) == Retries()
    assert as_retries(3).attempts == 4
    assert as_retries(0) == NO_RETRIES


@pytest.mark.parametrize("error", [InvalidInput(), QueueDoesNotExist(), AccessDenied(), LeaseLost(), JobConflict()])
def test_what_a_retry_does_not_help_is_not_tried_again(error: BatonError) -> None:
    assert Retries().pause(0, error, 0.0) is None


@pytest.mark.parametrize("error", [Unavailable(), OverLimit(), DiskFull()])
def test_what_passes_by_itself_is_tried_again(error: BatonError) -> None:
    assert Retries().pause(0, error, 0.0) is not None


def test_requests_are_repeated_as_they_were(form: str) -> None:
    async def body() -> None:
        says = [
            problem(503, "unavailable", retryable=True),
            problem(429, "over_limit", retryable=True),
            answer(502, headers={"X": "y"}, body=b"bad gateway"),
        ]

        async def script(asked: Asked) -> bytes | None:
            return says.pop(0) if says else sent(asked)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=QUICK) as baton:
                result = await baton.queue("q").send("x")
            assert result.id.startswith("m")
            assert len(server.asked) == 4
            assert len({asked.body for asked in server.asked}) == 1

    run(body())


def test_other_errors_reach_the_caller_at_once(form: str) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return problem(404, "queue_does_not_exist")

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=QUICK) as baton:
                with pytest.raises(QueueDoesNotExist, match="told queue_does_not_exist"):
                    await baton.queue("q").send("x")
            assert len(server.asked) == 1

    run(body())


@pytest.mark.parametrize(
    ("status", "code", "retryable", "expected"),
    [
        (418, "teapot", False, InvalidInput),
        (503, "new_trouble", True, Unavailable),
        (500, "internal", False, BatonError),
        (500, "newer_trouble", False, BatonError),
    ],
)
def test_codes_of_a_newer_server(
    form: str, status: int, code: str, retryable: bool, expected: type[BatonError]
) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return problem(status, code, retryable=retryable)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=0) as baton:
                with pytest.raises(BatonError, match=f"told {code}") as caught:
                    await baton.queue("q").stats()
                assert type(caught.value) is expected

    run(body())


def test_an_answer_that_is_not_a_batons(form: str) -> None:
    async def body() -> None:
        says = [
            answer(200, body=b"<html>hello</html>"),
            answer(403, headers={"X": "y"}, body=b"forbidden"),
            answer(404, body=b""),
        ]

        async def script(asked: Asked) -> bytes:
            return says.pop(0)

        with ScriptedServer(script) as server:
            async with connected(form, server.url) as baton:
                with pytest.raises(BatonError, match="has an unknown format"):
                    await baton.queue("q").stats()
                with pytest.raises(AccessDenied, match="403"):
                    await baton.queue("q").stats()
                with pytest.raises(InvalidInput, match="404"):
                    await baton.queue("q").stats()

    run(body())


# --- messages of a batch ----------------------------------------------------------------------------


def _error(code: str, status: int, *, retryable: bool = False) -> dict[str, Any]:
    return {"error": {"code": code, "detail": code, "status": status, "retryable": retryable}}


def test_messages_refused_for_now_are_sent_again_with_new_numbers(form: str) -> None:
    """An old number might be below one that was taken meanwhile, and the message would pass for a repetition."""

    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            if len(server.asked) > 1:
                return sent(asked)
            wait = _error("over_limit", 429, retryable=True)
            return answer(200, {"results": [{"messageId": "a", "sequence": 1}, wait, _error("too_large", 413), wait]})

        server = ScriptedServer(script)
        with server:
            async with connected(form, server.url, retries=QUICK) as baton:
                results = await baton.queue("q").send_many(["a", "b", "c", "d"])
            first, second = (asked.value for asked in server.asked)
            assert [message["body"] for message in second["messages"]] == ["b", "d"]
            assert second["producer"]["id"] == first["producer"]["id"]
            assert second["producer"]["sequence"] >= first["producer"]["sequence"] + 4
            assert [getattr(result, "id", None) for result in results] == ["a", "m5", None, "m6"]
            assert isinstance(results[2], InvalidInput)

    run(body())


def test_refusals_reach_their_callers_in_the_end(form: str) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return answer(200, {"results": [_error("over_limit", 429, retryable=True)]})

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=Retries(attempts=3, base=0.001)) as baton:
                with pytest.raises(OverLimit):
                    await baton.queue("q").send("x")
            assert len(server.asked) == 3

    run(body())


def test_a_later_request_that_fails_stands_in_the_results(form: str) -> None:
    async def body() -> None:
        async def script(asked: Asked) -> bytes:
            return sent(asked) if len(server.asked) == 1 else problem(404, "queue_does_not_exist")

        server = ScriptedServer(script)
        with server:
            async with connected(form, server.url) as baton:
                results = await baton.queue("q").send_many(range(2_500))
        assert all(result.id for result in results[:1_000])
        assert all(isinstance(result, QueueDoesNotExist) for result in results[1_000:2_000])
        assert all(isinstance(result, Unavailable) for result in results[2_000:])

    run(body())


# --- repetitions of what is not a send ---------------------------------------------------------------


def test_a_repeated_ack_of_a_message_that_is_gone_was_done_before(form: str) -> None:
    async def body() -> None:
        gone = {"results": [_error("message_gone", 409)]}
        says = [None, answer(200, gone), answer(200, gone)]

        async def script(asked: Asked) -> bytes | None:
            return says.pop(0)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=QUICK) as baton:
                assert await baton.queue("q").ack_many(["r"]) == [None]  # the first answer was lost
                (told,) = await baton.queue("q").ack_many(["r"])
                assert isinstance(told, MessageGone)

    run(body())


def test_a_repeated_nack_of_a_lease_that_is_over_was_done_before(form: str) -> None:
    async def body() -> None:
        lost = {"results": [_error("lease_lost", 409)]}
        says = [problem(503, "unavailable", retryable=True), answer(200, lost)]

        async def script(asked: Asked) -> bytes | None:
            return says.pop(0)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=QUICK) as baton:
                assert await baton.queue("q").nack_many([Nack("r")]) == [None]

    run(body())


def test_a_repeated_delete_of_a_queue_was_done_before(form: str) -> None:
    async def body() -> None:
        says = [None, problem(404, "queue_does_not_exist"), problem(404, "queue_does_not_exist")]

        async def script(asked: Asked) -> bytes | None:
            return says.pop(0)

        with ScriptedServer(script) as server:
            async with connected(form, server.url, retries=QUICK) as baton:
                await baton.queue("q").delete()
                with pytest.raises(QueueDoesNotExist):
                    await baton.queue("q").delete()

    run(body())

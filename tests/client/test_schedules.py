"""Schedules and single messages through the client: for asyncio and threads, over HTTP and in the same process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from batonq.errors import (
    InvalidInput,
    MessageHeld,
    MessageNotFound,
    ScheduleExists,
    ScheduleNotFound,
)
from tests.client.support import run
from tests.client.test_queue import Place
from tests.support.server import TestServer


@pytest.fixture(params=["server", "memory"])
def place(request: pytest.FixtureRequest, form: str, server: TestServer, account: str) -> Place:
    return Place(form, request.param, server, account)


def test_a_schedule_is_made_changed_and_deleted(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("scheduled")
            end = datetime.now(UTC) + timedelta(days=300)
            made = await queue.schedules.create(
                "nightly", {"report": 1}, cron="0 3 * * *", time_zone="Europe/Berlin", end_at=end, priority="high"
            )
            assert (made.id, made.state, made.cron, made.missed) == ("nightly@scheduled", "ACTIVE", "0 3 * * *", "last")
            again = await queue.schedules.create(
                "nightly", {"report": 1}, cron="0 3 * * *", time_zone="Europe/Berlin", end_at=end, priority="high"
            )
            assert again.created_at_ms == made.created_at_ms
            with pytest.raises(ScheduleExists):
                await queue.schedules.create("nightly", "other", rate=60)
            shown = await queue.schedules.get("nightly")
            assert shown.message == {"body": {"report": 1}, "priority": 192}
            assert [one.name for one in await queue.schedules.all()] == ["nightly"]
            assert [one.id for one in await baton.schedules.all()] == ["nightly@scheduled"]
            paused = await queue.schedules.update("nightly", enabled=False)
            assert paused.state == "PAUSED"
            changed = await queue.schedules.update("nightly", b"bytes", rate=90.0, end_at=None, attributes={"a": "b"})
            assert (changed.rate, changed.cron, changed.end_at) == (90.0, None, None)
            assert changed.message == {"body": b"bytes", "attributes": {"a": "b"}}
            with pytest.raises(InvalidInput, match="give its body too"):
                await queue.schedules.update("nightly", priority="low")
            with pytest.raises(InvalidInput, match=r"field 1 \(minute\)"):
                await queue.schedules.update("nightly", cron="99 * * * *")
            with pytest.raises(InvalidInput, match="either cron or rate"):
                await queue.schedules.create("both", 1, cron="* * * * *", rate=5)
            with pytest.raises(TypeError, match="unknown setting of a schedule: every"):
                await queue.schedules.create("wrong", 1, every=5)
            fired = await queue.schedules.fire("nightly")
            (message,) = await queue.receive(wait=0)
            assert (message.id, message.body) == (fired.id, b"bytes")
            assert message.attributes["scheduleName"] == "nightly"
            await queue.schedules.delete("nightly")
            with pytest.raises(ScheduleNotFound):
                await queue.schedules.get("nightly")

    run(body())


def test_times_can_be_previewed(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            times = await baton.schedules.preview(3, cron="0 12 * * *", time_zone="Asia/Tokyo")
            assert len(times) == 3 and all(time.endswith("T12:00:00+09:00") for time in times)

    run(body())


def test_a_delayed_message_is_cancelled_or_changed_by_its_id(place: Place) -> None:
    async def body() -> None:
        async with place.open() as baton:
            queue = await baton.create_queue("later")
            first = await queue.send("unwanted", deliver_at=datetime.now(UTC) + timedelta(days=200))
            second = await queue.send({"amount": 1}, delay=86_400 * 300)
            third = await queue.send("now")
            (held,) = await queue.receive(wait=0)
            await queue.delete_message(first.id)
            await queue.edit_message(second.id, {"amount": 2}, attributes={"corrected": "yes"})
            (left,) = await queue.peek(state="DELAYED")
            assert (left.body, left.attributes) == ({"amount": 2}, {"corrected": "yes"})
            await queue.edit_message(second.id, b"\x00\xff")
            (left,) = await queue.peek(state="DELAYED")
            assert left.body == b"\x00\xff"
            with pytest.raises(MessageHeld, match="holds the message"):
                await queue.delete_message(third.id)
            with pytest.raises(MessageHeld):
                await queue.edit_message(third.id, "too late")
            await held.ack()
            for gone in (first, third):
                with pytest.raises(MessageNotFound):
                    await queue.delete_message(gone.id)
                with pytest.raises(MessageNotFound):
                    await queue.edit_message(gone.id, "x")

    run(body())

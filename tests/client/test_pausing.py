"""Pausing, pacing, draining and explaining a queue with both clients."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.errors import QueuePaused
from tests.client.support import run
from tests.client.test_queue import Place, place


async def play(place: Place) -> None:
    async with place.open() as baton:
        queue = await baton.create_queue("orders")
        await queue.send({"n": 1}, group="g")
        assert (await queue.pause()).paused == "delivery"
        assert await queue.receive(wait=0) == []
        explanation = await queue.explain()
        assert [finding.cause for finding in explanation.findings] == ["paused"]
        assert (explanation.paused, explanation.visible) == ("delivery", 1)
        assert [group.message_group_id for group in explanation.groups] == ["g"]
        assert (await queue.pause("both")).paused == "both"
        with pytest.raises(QueuePaused, match="orders are paused"):
            await queue.send({"n": 2})
        assert (await queue.resume()).paused == "none"
        assert (await queue.pace(7)).deliveries_per_second == 7
        assert (await queue.pace(0)).deliveries_per_second == 0
        left = await queue.drain()
        assert left.depth == 1 and left.oldest_visible_age_seconds >= 0
        assert (await queue.info()).paused == "sends"
        (message,) = await queue.receive(wait=0)
        await message.ack()
        assert (await queue.stats()).depth == 0


def test_a_queue_is_paused_explained_and_resumed(place: Place) -> None:
    run(play(place))


__all__: list[Any] = ["place"]

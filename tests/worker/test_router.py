"""Tiers, their queues, and what came by the wrong one."""

from __future__ import annotations

import pytest

from batonq.client.models import MessageFields
from batonq.worker import LEVELS, Router, Worker, level
from tests.worker.memory import MemorySource
from tests.worker.support import work


def message(queue: str, **attributes: str) -> MessageFields:
    return MessageFields(id="1", receipt="1:1", queue=queue, attributes=dict(attributes))


def test_a_tier_has_its_queue() -> None:
    router = Router({"paid": "jobs-paid", "free": "jobs-free"}, default="free")
    assert router.queue_for("paid") == "jobs-paid"
    assert router.queue_for("trial") == "jobs-free" and router.unknown == 1
    with pytest.raises(ValueError, match="no queue for tier 'trial'"):
        Router({"paid": "jobs-paid"}).queue_for("trial")


def test_a_message_that_came_by_another_lane_is_counted() -> None:
    router = Router({"paid": "jobs-paid", "free": "jobs-free"})
    assert router.check(message("jobs-paid", tier="paid")) and router.check(message("jobs-free"))
    assert router.check(message("jobs-free", tier="unheard of"))
    assert not router.check(message("jobs-free", tier="paid"))
    assert router.misrouted == {("paid", "jobs-free"): 1}


def test_the_worker_counts_what_was_misrouted_and_handles_it() -> None:
    source = MemorySource()
    source.send("slow", "a", attributes={"tier": "paid"})
    source.send("slow", "b", attributes={"tier": "free"})
    router = Router({"paid": "fast", "free": "slow"})
    app = Worker(source=source)

    @app.task(queue=["fast", "slow"], router=router)
    async def handle(message: MessageFields) -> None:
        """Nothing to do."""

    work(app, lambda: source.left == 0)
    assert sorted(source.acked) == ["a", "b"]
    assert app.counters["handle"].misrouted == router.misrouted[("paid", "slow")] == 1


def test_priorities_have_names() -> None:
    assert level("high") == LEVELS["high"] == 192 and level(7) == 7
    for bad in ("urgent", 256, -1, True):
        with pytest.raises(ValueError, match="a number from 0 to 255 or one of lowest"):
            level(bad)


def test_bad_routers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one tier"):
        Router({})
    with pytest.raises(ValueError, match="default tier"):
        Router({"paid": "a"}, default="free")

"""Starts everything, publishes events, and waits until each is delivered or dead-lettered."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batonq import Baton, sync
from batonq.client import Message
from batonq.idempotency import SqliteStore
from batonq.worker import Worker
from examples.harness.servers import BatonServer
from examples.harness.story import Story, percentile
from examples.webhooks import policy
from examples.webhooks.dispatcher import Dispatcher
from examples.webhooks.endpoints import Endpoint, Endpoints
from examples.webhooks.publish import publish
from examples.webhooks.receivers import Receiver, Silent, serving

SCHEDULE = policy.DEMO
DOWN_S = 3.0  # how long the flaky receiver fails; less than all its attempts take
AFTERWARDS = 3  # events that are published while one receiver is disabled
STUCK_S = 60.0
LOOK_S = 0.05


@dataclass
class World:
    """Everything that runs, for the checks and the report."""

    baton: Baton
    endpoints: Endpoints
    receivers: dict[str, Receiver]
    letters: list[dict[str, Any]]  # notifications to owners
    published_at_s: dict[str, float]
    tasks: list[asyncio.Task[Any]]

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        async with asyncio.timeout(STUCK_S):
            while not await holds():
                for task in self.tasks:
                    if task.done():
                        task.result()
                        raise RuntimeError("a worker has ended before its time")
                await asyncio.sleep(LOOK_S)


async def run(events: int, directory: Path, story: Story) -> None:
    async with _started(directory, story) as world:
        story.say(f"publishing {events} events to {', '.join(world.receivers)}; flaky is down for {DOWN_S:g} s")
        for number in range(events):
            await _publish(world, number)
        await world.until(lambda: _reached(world, "steady", events))
        story.say(f"steady has all {events}, independently of the others")
        await world.until(lambda: _reached(world, "flaky", events))
        story.say(f"flaky is back and has all {events}")
        await world.until(lambda: _given_up(world, events))
        story.say(f"silent was disabled: its {events} events are in {policy.DEAD}")
        for number in range(events, events + AFTERWARDS):
            told = await _publish(world, number)
        story.say(f"{AFTERWARDS} more events to {told} receivers, without the disabled one")
        await world.until(lambda: _reached(world, "steady", events + AFTERWARDS))
        await world.until(lambda: _reached(world, "flaky", events + AFTERWARDS))
        await world.until(lambda: _is_quiet(world))
        await _balance(world, story, events)


@asynccontextmanager
async def _started(directory: Path, story: Story) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(BatonServer(directory / "baton")).url()
        baton = await stack.enter_async_context(Baton(url))
        endpoints = Endpoints(directory / "endpoints.db")
        stack.callback(endpoints.close)
        back_at_s = time.monotonic() + DOWN_S
        secret = {name: secrets.token_bytes(32) for name in ("steady", "flaky", "silent")}
        receivers = {
            "steady": Receiver(secret["steady"], lambda: True),
            "flaky": Receiver(secret["flaky"], lambda: time.monotonic() >= back_at_s),
            "silent": Silent(secret["silent"], lambda: False),
        }
        address = stack.enter_context(serving(receivers))
        for name in receivers:
            endpoints.add(Endpoint(name, f"{address}/{name}", secret[name], f"{name}@example.org", None))
        await policy.create_queues(baton, list(receivers), SCHEDULE)
        letters: list[dict[str, Any]] = []
        blocking = stack.enter_context(sync.Baton(url))
        delivered = SqliteStore(str(directory / "delivered.db"))
        stack.callback(delivered.close)
        workers = [
            Dispatcher(blocking, endpoints, delivered, policy.tries(SCHEDULE)).worker(),
            _owners(url, letters, story),
        ]
        tasks = [asyncio.create_task(worker.serve()) for worker in workers]
        stack.push_async_callback(_stopped, workers, tasks)
        yield World(baton, endpoints, receivers, letters, {}, tasks)


async def _stopped(workers: list[Worker], tasks: list[asyncio.Task[int]]) -> None:
    for worker in workers:
        worker.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


def _owners(url: str, letters: list[dict[str, Any]], story: Story) -> Worker:
    """Sends the notifications to owners; here they are printed."""
    app = Worker(url, name="owners")

    @app.task(queue=policy.OWNERS)
    async def write(message: Message) -> None:
        letters.append(message.body)
        story.say(f"to {message.body['to']}: {message.body['text']}")

    return app


async def _publish(world: World, number: int) -> int:
    event_id = f"evt-{number}"
    world.published_at_s[event_id] = time.time()
    event = {"id": event_id, "type": "order.paid", "data": {"order": number}}
    return await publish(world.baton, world.endpoints, event)


async def _reached(world: World, name: str, events: int) -> bool:
    return len(world.receivers[name].handled) == events


async def _is_quiet(world: World) -> bool:
    """No delivery is in progress or waiting for a retry."""
    stats = await asyncio.gather(*(world.baton.queue(policy.PREFIX + name).stats() for name in world.receivers))
    return not any(each.depth for each in stats)


async def _given_up(world: World, events: int) -> bool:
    dead = await world.baton.queue(policy.DEAD).stats()
    return dead.visible == events and bool(world.letters)


async def _balance(world: World, story: Story, events: int) -> None:
    steady, flaky, silent = (world.receivers[name] for name in ("steady", "flaky", "silent"))
    story.heading("Checks")
    for name in ("steady", "flaky"):
        handled = world.receivers[name].handled
        once = len(handled) == events + AFTERWARDS and set(handled.values()) == {1}
        story.check(f"{name}: {len(handled)} events handled, each once", once)
    story.check("no delivery without a valid signature", steady.refused + flaky.refused == 0)
    dead = (await world.baton.queue(policy.DEAD).stats()).visible
    story.check(f"silent: {dead} events dead-lettered, none lost", dead == events and not silent.handled)
    disabled = world.endpoints.get("silent")
    story.check("silent is disabled, the others are not", bool(disabled and disabled.disabled) and _two_left(world))
    story.check(f"its owner was notified {len(world.letters)} time", len(world.letters) == 1)
    story.heading("Results")
    waits = [at_s - world.published_at_s[event] for event, at_s in steady.handled_at_s.items()]
    story.figure(
        "steady: from event to delivery", f"p50 {percentile(waits, 0.5):.3f} s, p99 {percentile(waits, 0.99):.3f} s"
    )
    story.figure("flaky: delivery attempts", f"{flaky.tries.total()} for {len(flaky.handled)} events")
    story.figure("flaky: duplicates by event ID", str(flaky.absorbed))
    story.figure("silent: delivery attempts", f"{silent.tries.total()}, up to {max(silent.tries.values())} per event")


def _two_left(world: World) -> bool:
    return [endpoint.name for endpoint in world.endpoints.enabled()] == ["flaky", "steady"]

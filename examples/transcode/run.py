"""Starts everything, lets the visitors upload, and waits until all images are accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batonq import Baton
from batonq.scaling import Decision, run_autoscaled, stats_readings
from batonq.worker.pool import Pool, worker_command
from examples.harness.servers import BatonServer, Command, postgres_server
from examples.harness.story import Story
from examples.transcode import plan, repair
from examples.transcode.alarm import Watch
from examples.transcode.books import Books
from examples.transcode.database import Database
from examples.transcode.notices import notifier
from examples.transcode.objects import ObjectStore
from examples.transcode.service import serving
from examples.transcode.visitors import Visitors

ALARM_AFTER_S = 1.0
STUCK_S = 120.0
LOOK_S = 0.1


@dataclass
class Pipeline:
    """Everything that runs, for the checks and the report."""

    baton: Baton
    database: Database
    objects: ObjectStore
    visitors: Visitors
    books: Books
    watch: Watch
    relay: Command
    workers_most: int = 0
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
        """Wait for the condition. Fails at once if a part of the pipeline has died."""
        try:
            async with asyncio.timeout(STUCK_S):
                while not await holds():
                    self.relay.check()
                    for task in self.tasks:
                        if task.done():
                            task.result()
                            raise RuntimeError(f"a part of the pipeline has ended while waiting for {what}")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise RuntimeError(f"waited {STUCK_S:g} s for {what}") from None


async def run(images: int, directory: Path, story: Story) -> None:
    async with _started(images, directory, story) as pipeline:
        story.say(f"{images} users upload images, some of them corrupt")
        await asyncio.to_thread(pipeline.visitors.upload_all, _milestones(images, story))
        story.say("all uploads were accepted with 202; the workers continue")
        await _first_pass(pipeline, story)
        redriven = await _repair(pipeline, story)
        await pipeline.until(lambda: _all_told(pipeline), "every image to be announced")
        await pipeline.until(lambda: _is_quiet(pipeline), "the last duplicate to be absorbed")
        if redriven:
            await pipeline.until(lambda: _is_set(pipeline.watch.dead_letters_cleared), "the alarm to be over")
        await pipeline.books.balance(story, redriven)
        pipeline.books.figures(story, pipeline.workers_most)


@asynccontextmanager
async def _started(images: int, directory: Path, story: Story) -> AsyncIterator[Pipeline]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_context
        server = enter(BatonServer(directory / "baton"))
        dsn = enter(postgres_server())
        url = server.url()
        baton = await stack.enter_async_context(Baton(url))
        await plan.create_queues(baton)
        database = Database(dsn)
        stack.callback(database.close)
        database.create()
        objects = ObjectStore(directory / "objects")
        relay = enter(Command("outbox", "relay", "--dsn", dsn, "--url", url, output=directory / "relay.log"))
        visitors = Visitors(images, enter(serving(url, database, objects)), url)
        _register(database, visitors)
        watch = Watch(baton, story.say, ALARM_AFTER_S)
        books = Books(baton, database, objects, visitors)
        pipeline = Pipeline(baton, database, objects, visitors, books, watch, relay)
        environment = {
            "BATON_URL": url,
            "TRANSCODE_DATABASE": dsn,
            "TRANSCODE_OBJECTS": str(directory / "objects"),
        }
        words = worker_command("examples.transcode.worker:app", "--log-level", "error")
        pool = await stack.enter_async_context(Pool(words, 0, environment=environment))
        stop = asyncio.Event()
        told = notifier(url, database)
        pipeline.start(told.serve())
        pipeline.start(watch.run())
        pipeline.start(_scaled(pipeline, pool, stop, story))
        stack.push_async_callback(_stopped, pipeline.tasks, [told.stop, watch.stop, stop.set])
        story.say(f"running: Baton at {url}, PostgreSQL, relay, upload service at {visitors.url}")
        yield pipeline


async def _scaled(pipeline: Pipeline, pool: Pool, stop: asyncio.Event, story: Story) -> None:
    def tell(decision: Decision) -> None:
        pipeline.workers_most = max(pipeline.workers_most, decision.workers)
        if decision.changes:
            story.say(f"workers: {decision.before} → {decision.workers} ({decision.why})")

    readings = stats_readings(pipeline.baton, plan.LANES)
    await run_autoscaled(pool, readings, plan.scaler(), interval=0.5, stop=stop, on_decision=tell)


async def _stopped(tasks: list[asyncio.Task[Any]], stops: list[Callable[[], None]]) -> None:
    for stop in stops:
        stop()
    await asyncio.gather(*tasks, return_exceptions=True)


def _register(database: Database, visitors: Visitors) -> None:
    with database.transaction() as connection:
        for user, tier in sorted({(visit.user, visit.tier) for visit in visitors.visits}):
            connection.execute("INSERT INTO users VALUES (%s, %s)", (user, tier))


def _milestones(images: int, story: Story) -> Callable[[int], None]:
    def tell(accepted: int) -> None:
        if accepted * 4 % images == 0 or accepted == images:
            story.say(f"{accepted} uploads accepted")

    return tell


# --- the phases


async def _first_pass(pipeline: Pipeline, story: Story) -> None:
    """Wait until each image is done or dead-lettered, and the alarm has been raised."""
    uploads = len(pipeline.visitors.images)
    shown = 0

    async def settled() -> bool:
        nonlocal shown
        done = await asyncio.to_thread(pipeline.books.done)
        dead = (await pipeline.baton.queue(plan.DEAD).stats()).visible
        if done + dead - shown >= max(1, uploads // 4) or (done + dead == uploads and shown < uploads):
            shown = done + dead
            story.say(f"{done} images done, {dead} dead-lettered")
        return done + dead == uploads

    await pipeline.until(settled, "every image to be done or dead")
    if any(visit.is_corrupt for visit in pipeline.visitors.visits):
        await pipeline.until(lambda: _is_set(pipeline.watch.dead_letters_raised), "the alarm")


async def _repair(pipeline: Pipeline, story: Story) -> int:
    """Repair one cause after another. Messages of other causes stay in the dead-letter queue."""

    def original(image_id: str) -> bytes:
        return pipeline.visitors.images[image_id].picture()

    redriven = 0
    for cause, image_ids in (await repair.causes(pipeline.baton)).items():
        redriven += await repair.redrive(pipeline.baton, pipeline.objects, cause, image_ids, original, story.say)
    return redriven


async def _all_told(pipeline: Pipeline) -> bool:
    rows = await asyncio.to_thread(pipeline.database.rows, "SELECT count(*) FROM notices")
    return bool(rows[0][0] == len(pipeline.visitors.images))


async def _is_quiet(pipeline: Pipeline) -> bool:
    return await pipeline.books.left() == 0


async def _is_set(event: asyncio.Event) -> bool:
    return event.is_set()

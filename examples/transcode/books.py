"""Checks that every upload is accounted for in the status endpoint, the database, the object store and the queues."""

from __future__ import annotations

import asyncio

from batonq import Baton
from examples.harness.story import Story, percentile
from examples.transcode.database import Database
from examples.transcode.objects import ObjectStore
from examples.transcode.plan import DEAD, EVENTS, LANES, THUMBNAIL_SLO_S, VARIANTS, output_key, raw_key
from examples.transcode.visitors import Visitors


class Books:
    def __init__(self, baton: Baton, database: Database, objects: ObjectStore, visitors: Visitors) -> None:
        self._baton = baton
        self._database = database
        self._objects = objects
        self._visitors = visitors

    async def balance(self, story: Story, redriven: int) -> None:
        story.heading("Checks")
        images = self._visitors.images
        corrupt = sum(visit.is_corrupt for visit in images.values())
        statuses = await asyncio.to_thread(self._visitors.statuses, list(images))
        done = sum(status == "done" for status in statuses.values())
        story.check(f"{len(images)} uploads, {done} done by status", done == len(self._visitors.visits))
        story.check(f"{corrupt} corrupt images were dead-lettered, and redriven: {redriven}", redriven == corrupt)
        wanted = {raw_key(image_id) for image_id in images}
        wanted |= {output_key(variant, image_id) for image_id in images for variant in VARIANTS}
        story.check(f"{len(wanted)} objects in the store, and no others", sorted(wanted) == self._objects.keys())
        told = self._database.rows("SELECT image_id, times FROM notices")
        once = sum(times == 1 for _, times in told)
        story.check(f"{once} images announced as done, once each", once == len(told) == len(images))
        repeated = sum(visit.is_put_twice for visit in images.values())
        announced = sum(visit.is_announced_twice for visit in images.values())
        uploads, jobs = self._absorbed()
        story.check(f"{repeated} uploads were repeated: {uploads} recognized by the row", uploads == repeated)
        # When a worker dies, its message is delivered again, so there may be more duplicates than were sent.
        story.check(f"{announced} jobs were sent twice: {jobs} duplicates recognized by the status", jobs >= announced)
        left = await self.left()
        story.check(f"messages left in queues and outbox: {left}", left == 0)

    def figures(self, story: Story, workers_most: int) -> None:
        story.heading("Results")
        for tier in ("paid", "free"):
            waits = self._thumbnail_waits(tier)
            story.figure(f"thumbnail, {tier} lane ({len(waits)})", _times(waits))
        waits = self._thumbnail_waits("paid") + self._thumbnail_waits("free")
        met = "within" if percentile(waits, 0.99) <= THUMBNAIL_SLO_S else "NOT within"
        story.figure("thumbnails at p99", f"{percentile(waits, 0.99):.1f} s, {met} {THUMBNAIL_SLO_S:.0f} s")
        story.figure("duplicates recognized", str(sum(self._absorbed())))
        story.figure("most workers at once", str(workers_most))

    def done(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM images WHERE status = 'done'")[0][0])

    def _thumbnail_waits(self, tier: str) -> list[float]:
        """Seconds from the accepted upload to its thumbnail, without images that had to be repaired first."""
        rows = self._database.rows(
            "SELECT extract(epoch FROM thumbnail_at - uploaded_at)::float8 FROM images JOIN users ON users.id = user_id"
            " WHERE tier = %s AND why IS NULL AND thumbnail_at IS NOT NULL",
            tier,
        )
        return [row[0] for row in rows]

    def _absorbed(self) -> tuple[int, int]:
        uploads, jobs = self._database.rows("SELECT sum(uploads_repeated), sum(jobs_repeated) FROM images")[0]
        return int(uploads), int(jobs)

    async def left(self) -> int:
        """Messages left in any queue, including the dead-letter queue."""
        stats = await asyncio.gather(*(self._baton.queue(name).stats() for name in (*LANES, DEAD, EVENTS)))
        waiting = self._database.rows("SELECT count(*) FROM batonq_outbox WHERE published_at IS NULL")[0][0]
        return sum(each.depth for each in stats) + int(waiting)


def _times(waits: list[float]) -> str:
    return f"p50 {percentile(waits, 0.5):.1f} s, p99 {percentile(waits, 0.99):.1f} s"

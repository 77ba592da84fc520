"""The operator's work after the alarm: inspect the dead-letter queue, fix one cause, redrive its messages."""

from __future__ import annotations

from collections.abc import Callable

from batonq import Baton, RedriveFilter
from examples.transcode.objects import ObjectStore
from examples.transcode.plan import DEAD, raw_key

CAUSES = ("truncated", "not an image")
PAGE = 100
RATE = 50  # messages per second; use less for slower workers


async def causes(baton: Baton) -> dict[str, list[str]]:
    """The images in the dead-letter queue, by cause."""
    found: dict[str, list[str]] = {cause: [] for cause in CAUSES}
    letters = await baton.queue(DEAD).peek(limit=PAGE)
    while letters:
        for letter in letters:
            reason = letter.dead_letter.reason if letter.dead_letter else ""
            cause = next((cause for cause in CAUSES if cause in reason), reason)
            found.setdefault(cause, []).append(letter.body["image_id"])
        letters = await baton.queue(DEAD).peek(limit=PAGE, after=letters[-1].sequence)
    return {cause: image_ids for cause, image_ids in found.items() if image_ids}


async def redrive(
    baton: Baton,
    objects: ObjectStore,
    cause: str,
    image_ids: list[str],
    original: Callable[[str], bytes],
    tell: Callable[[str], None],
) -> int:
    """Replace each broken object with its original, then redrive the messages of this cause to their lanes."""
    dead = baton.queue(DEAD)
    chosen = RedriveFilter(reason_contains=cause)
    preview = await dead.redrive(dry_run=True, filter=chosen)
    tell(f"dry run: {preview.matched} of {preview.examined} dead-lettered messages have the reason “{cause}”")
    for image_id in image_ids:
        objects.put(raw_key(image_id), original(image_id))
    job = await (await dead.redrive(rate=RATE, filter=chosen)).wait()
    tell(f"repaired: {len(image_ids)}; redriven to their lanes: {job.moved} (job {job.state.lower()})")
    return job.moved

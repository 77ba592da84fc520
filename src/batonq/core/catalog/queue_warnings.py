"""Settings of a queue that SQS allows and that lose good messages, or hide dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.attribute_formats.redrive_policy import parse_redrive_policy
from batonq.core.catalog.attributes import effective
from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.state import CatalogState
from batonq.queue_attributes import DEAD_LETTER_POLICY, MAX_RECEIVES, RETENTION

FEW_RECEIVES = 2
DAY_S = 86_400


def queue_warnings(catalog: CatalogState, queue: QueueEntry) -> list[str]:
    """What is wrong with this queue's settings, one sentence each."""
    return list(_warnings(catalog, queue))


def _warnings(catalog: CatalogState, queue: QueueEntry) -> Iterator[str]:
    target = queue.dead_letter_target
    receives = int(queue.attributes.get(MAX_RECEIVES, "0"))
    if target is not None:
        receives = parse_redrive_policy(queue.attributes[DEAD_LETTER_POLICY]).max_receives
    if 0 < receives <= FEW_RECEIVES:
        times = "receive" if receives == 1 else "receives"
        fate = "dead-letters a message" if target is not None else "gives up a message"
        yield (
            f"Queue {queue.name} {fate} after {receives} {times}, so one restart of a consumer is enough to fail a "
            "good message. Allow at least 3 receives."
        )
    if target is None:
        return
    sources = catalog.sources_of(queue.key)
    if sources:
        yield (
            f"Queue {queue.name} is the dead-letter queue of {sources[0].name} and has a dead-letter queue itself, "
            f"{target.name}: dead letters that fail again leave {queue.name}. Remove its dead-letter queue."
        )
    dead = catalog.by_name.get(target)
    if dead is None:
        return
    if dead.dead_letter_target is not None:
        yield (
            f"The dead-letter queue {dead.name} of queue {queue.name} has a dead-letter queue itself, "
            f"{dead.dead_letter_target.name}: dead letters that fail again leave {dead.name}. Remove the dead-letter "
            f"queue of {dead.name}."
        )
    own_s, dead_s = (int(effective(entry.attributes)[RETENTION]) for entry in (queue, dead))
    if dead_s <= own_s and dead_s < 14 * DAY_S:
        yield (
            f"The dead-letter queue {dead.name} keeps messages for {dead_s} seconds, no longer than the {own_s} "
            f"seconds of queue {queue.name}: dead letters can expire before anyone sees them. Set the retention of "
            f"{dead.name} to 14 days."
        )

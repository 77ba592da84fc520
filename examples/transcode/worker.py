"""The worker: `baton worker examples.transcode.worker:app`. The environment names its database and store.

A message can be delivered twice, and a worker can die at any line, so every step is idempotent. Objects are overwritten
with the same bytes under the same keys. The status moves forward once, and the event commits with it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from batonq import outbox
from batonq.client import Message
from batonq.idempotency.conditional import advance_status
from batonq.worker import Lane, Worker
from examples.transcode.database import STATUSES, Database
from examples.transcode.objects import ObjectStore
from examples.transcode.pictures import CorruptImage, variants
from examples.transcode.plan import EVENTS, FREE, PAID, ROUTER, output_key

app = Worker()


@cache
def database() -> Database:
    return Database(os.environ["TRANSCODE_DATABASE"])


@cache
def objects() -> ObjectStore:
    return ObjectStore(Path(os.environ["TRANSCODE_OBJECTS"]))


# One image at a time, because an image keeps a core busy. Four of five messages come from paying customers.
@app.task(queue=[Lane(PAID, weight=4), Lane(FREE)], router=ROUTER, concurrency=1, visibility=30, deadline=120)
def transcode(message: Message) -> None:
    image_id = str(message.body["image_id"])
    if _is_done(image_id):
        _absorb(image_id)
        return
    try:
        made = _make(image_id, objects().get(message.body["key"]))
    except CorruptImage as problem:
        _mark_corrupt(image_id, str(problem))
        raise
    _finish(image_id, made)


def _make(image_id: str, raw: bytes) -> dict[str, str]:
    made: dict[str, str] = {}
    for variant, data in variants(raw):
        key = made[variant.name] = output_key(variant, image_id)
        objects().put(key, data)
        if variant.name == "thumb":
            _note_thumbnail(image_id)
    return made


def _is_done(image_id: str) -> bool:
    """Skips a duplicate that arrives late. A duplicate that arrives at the same time is caught in `_finish`."""
    return database().rows("SELECT status FROM images WHERE id = %s", image_id) == [("done",)]


def _note_thumbnail(image_id: str) -> None:
    with database().transaction() as connection:
        connection.execute(
            "UPDATE images SET thumbnail_at = clock_timestamp() WHERE id = %s AND thumbnail_at IS NULL", (image_id,)
        )


def _finish(image_id: str, made: dict[str, str]) -> None:
    """Commit the status and its event together, and only once."""
    with database().transaction() as connection:
        values = {"variants": json.dumps(made)}
        if not advance_status(connection, "images", {"id": image_id}, "done", order=STATUSES, values=values):
            connection.execute("UPDATE images SET jobs_repeated = jobs_repeated + 1 WHERE id = %s", (image_id,))
            return
        connection.execute("UPDATE images SET done_at = clock_timestamp() WHERE id = %s", (image_id,))
        outbox.put(connection, EVENTS, {"event": "image.done", "image_id": image_id, "variants": made}, key=image_id)


def _absorb(image_id: str) -> None:
    with database().transaction() as connection:
        connection.execute("UPDATE images SET jobs_repeated = jobs_repeated + 1 WHERE id = %s", (image_id,))


def _mark_corrupt(image_id: str, why: str) -> None:
    """Let the status endpoint report the error to the user."""
    with database().transaction() as connection:
        advance_status(connection, "images", {"id": image_id}, "corrupt", order=STATUSES, values={"why": why})

"""The worker's handler: whatever is repeated, the effect is there once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from batonq import outbox
from batonq.client import Message
from examples.transcode import worker
from examples.transcode.database import Database
from examples.transcode.objects import ObjectStore
from examples.transcode.pictures import CorruptImage
from examples.transcode.plan import EVENTS, VARIANTS, output_key, raw_key
from examples.transcode.uploads import job
from examples.transcode.visitors import Visit

IMAGE = "img-00000000000000aa"
EVENT_COUNT = f"SELECT count(*) FROM batonq_outbox WHERE queue = '{EVENTS}'"


@pytest.fixture
def objects(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """One image, uploaded; the worker's own connections are made from the environment, as in its process."""
    monkeypatch.setattr(worker, "database", lambda: database)
    store = ObjectStore(tmp_path)
    monkeypatch.setattr(worker, "objects", lambda: store)
    store.put(raw_key(IMAGE), Visit(0).picture())
    with database.transaction() as connection:
        connection.execute("INSERT INTO images (id, user_id, status) VALUES (%s, 'u-1', 'pending')", (IMAGE,))
    return store


def message() -> Message:
    return Message(id="m-1", receipt="r-1", body=job(IMAGE), queue="transcode-paid")


def test_an_image_is_made_into_its_variants_and_announced(database: Database, objects: ObjectStore) -> None:
    worker.transcode(message())
    keys = {variant.name: output_key(variant, IMAGE) for variant in VARIANTS}
    assert objects.keys() == sorted([raw_key(IMAGE), *keys.values()])
    assert database.rows("SELECT status, variants, thumbnail_at <= done_at FROM images") == [("done", keys, True)]
    assert database.rows("SELECT body FROM batonq_outbox") == [
        ({"event": "image.done", "image_id": IMAGE, "variants": keys},)
    ]


def test_a_late_duplicate_is_absorbed_without_work(database: Database, objects: ObjectStore) -> None:
    worker.transcode(message())
    before = database.rows("SELECT done_at FROM images")
    objects.put(raw_key(IMAGE), b"would be corrupt if anybody looked")
    worker.transcode(message())
    assert database.rows("SELECT done_at FROM images") == before
    assert database.rows("SELECT jobs_repeated FROM images") == [(1,)]
    assert database.rows(EVENT_COUNT) == [(1,)]


@pytest.mark.usefixtures("objects")
def test_duplicates_at_the_same_time_announce_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both have looked at the status before either is done.
    both = threading.Barrier(2, timeout=300)
    looked = worker._is_done

    def look(image_id: str) -> bool:
        answer = looked(image_id)
        both.wait()
        return answer

    monkeypatch.setattr(worker, "_is_done", look)
    threads = [threading.Thread(target=worker.transcode, args=(message(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.rows("SELECT status, jobs_repeated FROM images") == [("done", 1)]
    assert database.rows(EVENT_COUNT) == [(1,)]


def test_a_crash_before_the_commit_is_made_good_by_the_next_try(
    database: Database, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as broken:
        broken.setattr(outbox, "put", crash)
        with pytest.raises(SystemExit):
            worker.transcode(message())
    assert database.rows("SELECT status FROM images") == [("pending",)]
    assert database.rows(EVENT_COUNT) == [(0,)]
    left = objects.keys()
    worker.transcode(message())
    assert objects.keys() == left
    assert database.rows("SELECT status, jobs_repeated FROM images") == [("done", 0)]
    assert database.rows(EVENT_COUNT) == [(1,)]


def test_a_corrupt_image_is_told_to_its_owner_and_done_after_its_repair(
    database: Database, objects: ObjectStore
) -> None:
    objects.put(raw_key(IMAGE), Visit(7).upload())
    with pytest.raises(CorruptImage, match="truncated"):
        worker.transcode(message())
    status, why = database.rows("SELECT status, why FROM images")[0]
    assert status == "corrupt" and "truncated" in why
    objects.put(raw_key(IMAGE), Visit(7).picture())
    worker.transcode(message())
    assert database.rows("SELECT status FROM images") == [("done",)]

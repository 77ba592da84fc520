"""The upload service: what it answers, and what it leaves behind."""

from __future__ import annotations

import http.client
import io
import json
from pathlib import Path
from typing import Any

import pytest

from batonq import sync
from examples.transcode import service
from examples.transcode.database import Database
from examples.transcode.links import Links
from examples.transcode.objects import ObjectStore
from examples.transcode.plan import FREE, PAID
from examples.transcode.uploads import BYTES_MAX, Uploads
from tests.support.server import TestServer

JOBS = "SELECT queue, body ->> 'image_id' FROM batonq_outbox ORDER BY id"


class Browser:
    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def call(self, method: str, address: str, body: bytes = b"", **changes: str) -> tuple[int, dict[str, Any]]:
        path, _, query = address.partition("?")
        environment = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **changes,
        }
        told: list[str] = []
        answer = b"".join(self._uploads(environment, lambda status, headers: told.append(status)))
        return int(told[0].split()[0]), json.loads(answer)

    def begin(self, user: str = "u-1") -> tuple[str, str]:
        status, answer = self.call("POST", "/uploads", json.dumps({"user": user}).encode())
        assert status == 201
        return answer["imageId"], answer["uploadUrl"]


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path)


@pytest.fixture
def browser(database: Database, objects: ObjectStore) -> Browser:
    return Browser(Uploads(database, objects, Links(b"secret")))


@pytest.mark.parametrize(("user", "lane"), [("u-1", PAID), ("u-2", FREE)])
def test_an_upload_is_a_row_and_a_job_in_its_lane(browser: Browser, database: Database, user: str, lane: str) -> None:
    image_id, address = browser.begin(user)
    assert database.rows(JOBS) == []
    status, answer = browser.call("PUT", address, b"bytes")
    assert (status, answer) == (202, {"imageId": image_id, "statusUrl": f"/images/{image_id}"})
    assert database.rows(JOBS) == [(lane, image_id)]
    assert browser.call("GET", answer["statusUrl"]) == (200, {"imageId": image_id, "status": "pending"})


def test_a_repeated_upload_is_answered_again_and_adds_no_job(browser: Browser, database: Database) -> None:
    image_id, address = browser.begin()
    assert [browser.call("PUT", address, b"bytes")[0] for _ in range(3)] == [202, 202, 202]
    assert database.rows(JOBS) == [(PAID, image_id)]
    assert database.rows("SELECT uploads_repeated FROM images") == [(2,)]


def test_an_address_that_was_changed_is_refused_and_stores_nothing(browser: Browser, objects: ObjectStore) -> None:
    image_id, address = browser.begin()
    other = address.replace(image_id, "img-0000000000000000")
    assert browser.call("PUT", other, b"bytes") == (403, {"detail": "the signature does not fit"})
    assert objects.keys() == []


def test_bad_requests_say_what_to_do(browser: Browser) -> None:
    _, address = browser.begin()
    assert browser.call("POST", "/uploads", b"{")[0] == 400
    assert browser.call("POST", "/uploads", b'{"user": "nobody"}')[0] == 403
    assert browser.call("PUT", address, CONTENT_LENGTH="")[0] == 411
    assert browser.call("PUT", address, CONTENT_LENGTH=str(BYTES_MAX + 1))[0] == 413
    assert browser.call("GET", "/images/img-0000000000000000")[0] == 404
    assert browser.call("DELETE", "/uploads")[0] == 404


def test_new_uploads_are_refused_while_the_lanes_are_too_deep(
    database: Database, objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HIGH_WATER", 2)
    with TestServer(str(tmp_path / "baton")) as server, sync.Baton(server.url) as baton:
        for lane in (PAID, FREE):
            baton.create_queue(lane).send_many([{}, {}])
        with service.serving(server.url, database, objects) as address:
            connection = http.client.HTTPConnection(address.removeprefix("http://"))
            connection.request("POST", "/uploads", b'{"user": "u-1"}')
            response = connection.getresponse()
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            connection.close()

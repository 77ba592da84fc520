"""The upload service, a WSGI application: validates and stores an image, commits its row and job, returns 202.

    POST /uploads {"user": "u-7"}    201: a URL for the upload, valid for 15 minutes
    PUT  that URL                    202: the image is stored and will be processed
    GET  /images/{id}                200: its status

The service never waits for a worker or the queue: it writes the job to the outbox, and `baton outbox relay` sends it.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

from batonq import outbox
from batonq.idempotency.conditional import insert_if_absent
from examples.transcode.database import Database
from examples.transcode.links import Links
from examples.transcode.objects import ObjectStore
from examples.transcode.plan import ROUTER, VARIANTS, raw_key

BYTES_MAX = 20 << 20
_UPLOAD = re.compile(r"/objects/(img-[0-9a-f]{16})")
_IMAGE = re.compile(r"/images/(img-[0-9a-f]{16})")
_STATUS = {200: "OK", 201: "Created", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
           405: "Method Not Allowed", 411: "Length Required", 413: "Content Too Large"}  # fmt: skip

Environment = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class Refused(Exception):
    """An error response."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Uploads:
    def __init__(self, database: Database, objects: ObjectStore, links: Links) -> None:
        self._database = database
        self._objects = objects
        self._links = links

    def __call__(self, environment: Environment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            status, answer = self._answer(environment)
        except Refused as refused:
            status, answer = refused.status, {"detail": str(refused)}
        body = json.dumps(answer).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {_STATUS[status]}", headers)
        return [body]

    def _answer(self, environment: Environment) -> tuple[int, dict[str, Any]]:
        method, path = environment["REQUEST_METHOD"], environment["PATH_INFO"]
        if path == "/uploads" and method == "POST":
            return self._begin(environment)
        if (found := _UPLOAD.fullmatch(path)) and method == "PUT":
            return self._receive(environment, path, found[1])
        if (found := _IMAGE.fullmatch(path)) and method == "GET":
            return self._status(found[1])
        raise Refused(404, f"there is no {method} {path}")

    # --- the three requests

    def _begin(self, environment: Environment) -> tuple[int, dict[str, Any]]:
        """Writes nothing yet: a client that never uploads leaves no trace."""
        try:
            user = str(json.loads(_body(environment))["user"])
        except (ValueError, KeyError, TypeError):
            raise Refused(400, 'the body must be JSON with a "user"') from None
        if not self._database.rows("SELECT 1 FROM users WHERE id = %s", user):
            raise Refused(403, f"there is no user {user}")
        image_id = f"img-{secrets.token_hex(8)}"
        address = self._links.signed(f"/objects/{image_id}", user, time.time())
        return 201, {"imageId": image_id, "uploadUrl": address, "validSeconds": self._links.valid_s}

    def _receive(self, environment: Environment, path: str, image_id: str) -> tuple[int, dict[str, Any]]:
        query = dict(parse_qsl(environment.get("QUERY_STRING", "")))
        if problem := self._links.problem(path, query, time.time()):
            raise Refused(403, problem)
        self._objects.put(raw_key(image_id), _body(environment))
        self._accept(image_id, query["user"])
        return 202, {"imageId": image_id, "statusUrl": f"/images/{image_id}"}

    def _accept(self, image_id: str, user: str) -> None:
        """The image's row and its job commit together. A repeated upload finds the row and adds no job."""
        with self._database.transaction() as connection:
            row = {"id": image_id, "user_id": user, "status": "pending"}
            if not insert_if_absent(connection, "images", row, key="id"):
                connection.execute(
                    "UPDATE images SET uploads_repeated = uploads_repeated + 1 WHERE id = %s", (image_id,)
                )
                return
            found = connection.execute("SELECT tier FROM users WHERE id = %s", (user,)).fetchone()
            tier = found[0] if found else "free"
            outbox.put(connection, ROUTER.queue_for(tier), job(image_id), key=image_id, attributes={"tier": tier})

    def _status(self, image_id: str) -> tuple[int, dict[str, Any]]:
        found = self._database.rows("SELECT status, variants, why FROM images WHERE id = %s", image_id)
        if not found:
            raise Refused(404, f"there is no image {image_id}")
        status, variants, why = found[0]
        answer = {"imageId": image_id, "status": status}
        if status == "done":
            return 200, {**answer, "variants": variants}
        return 200, {**answer, "why": why} if why else answer


def job(image_id: str) -> dict[str, Any]:
    """The job for a worker: the key of the image, not the image itself."""
    return {"image_id": image_id, "key": raw_key(image_id), "variants": [variant.name for variant in VARIANTS]}


def _body(environment: Environment) -> bytes:
    length = environment.get("CONTENT_LENGTH") or ""
    if not length.isdigit():
        raise Refused(411, "say how long the body is: Content-Length")
    if int(length) > BYTES_MAX:
        raise Refused(413, f"an image has at most {BYTES_MAX:,} bytes")
    body: bytes = environment["wsgi.input"].read(int(length))
    return body

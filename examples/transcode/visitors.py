"""The users: threads that draw an image, request a URL, and upload the image. Some uploads go wrong."""

from __future__ import annotations

import http.client
import io
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from PIL import Image, ImageDraw

from batonq import sync
from examples.transcode.plan import ROUTER
from examples.transcode.uploads import job

SIZE = (1000, 750)
THREADS = 4


@dataclass(slots=True, frozen=True)
class Visit:
    """One upload and its fault. The numbers are chosen so that any twenty consecutive uploads contain every fault."""

    number: int

    @property
    def user(self) -> str:
        return f"u-{self.number % 50}"

    @property
    def tier(self) -> str:
        return "paid" if self.number % 50 % 3 == 0 else "free"

    @property
    def is_truncated(self) -> bool:
        return self.number % 20 == 7  # the connection broke unnoticed

    @property
    def is_no_image(self) -> bool:
        return self.number % 20 == 13  # the first page of a document

    @property
    def is_corrupt(self) -> bool:
        return self.is_truncated or self.is_no_image

    @property
    def is_put_twice(self) -> bool:
        return self.number % 10 == 4  # the response was lost, and the browser retried

    @property
    def is_announced_twice(self) -> bool:
        return self.number % 10 == 8  # stores send their notifications at least once, so sometimes twice

    def picture(self) -> bytes:
        """The intact image; the same for every call."""
        chance = random.Random(self.number)
        image = Image.new("RGB", SIZE, _color(chance))
        draw = ImageDraw.Draw(image)
        for _ in range(60):
            x, y, side = chance.randrange(SIZE[0]), chance.randrange(SIZE[1]), chance.randrange(20, 300)
            draw.ellipse((x, y, x + side, y + side), fill=_color(chance))
        encoded = io.BytesIO()
        image.save(encoded, "JPEG", quality=88)
        return encoded.getvalue()

    def upload(self) -> bytes:
        """The bytes that are uploaded."""
        if self.is_no_image:
            return b"%PDF-1.7 an invoice, not a photograph\n" * 50
        picture = self.picture()
        return picture[: len(picture) // 2] if self.is_truncated else picture


class Visitors:
    """`images` maps each visit to its image."""

    def __init__(self, count: int, uploads_url: str, baton_url: str) -> None:
        self.visits = [Visit(number) for number in range(count)]
        self.images: dict[str, Visit] = {}
        self.url = uploads_url
        self._host = urlsplit(uploads_url).netloc
        self._baton_url = baton_url

    def upload_all(self, tell: Callable[[int], None]) -> None:
        """Upload all images; `tell` is called with the number accepted so far."""
        with sync.Baton(self._baton_url) as baton, ThreadPoolExecutor(THREADS) as threads:
            for visit, image_id in threads.map(lambda visit: (visit, self._upload(visit, baton)), self.visits):
                self.images[image_id] = visit
                tell(len(self.images))

    def statuses(self, image_ids: Sequence[str]) -> dict[str, str]:
        """The status of each image from the status endpoint."""
        with ThreadPoolExecutor(THREADS) as threads:
            answers = threads.map(lambda image_id: self._request("GET", f"/images/{image_id}", b"", 200), image_ids)
            return {answer["imageId"]: answer["status"] for answer in answers}

    def _upload(self, visit: Visit, baton: sync.Baton) -> str:
        asked = self._request("POST", "/uploads", json.dumps({"user": visit.user}).encode(), 201)
        image_id: str = asked["imageId"]
        data = visit.upload()
        for _ in range(2 if visit.is_put_twice else 1):
            self._request("PUT", asked["uploadUrl"], data, 202)
        if visit.is_announced_twice:
            baton.queue(ROUTER.queue_for(visit.tier)).send(job(image_id), attributes={"tier": visit.tier})
        return image_id

    def _request(self, method: str, path: str, body: bytes, expected: int) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != expected:
            raise RuntimeError(f"{method} {path}: {response.status} {answer}")
        return answer


def _color(chance: random.Random) -> tuple[int, int, int]:
    return chance.randrange(256), chance.randrange(256), chance.randrange(256)

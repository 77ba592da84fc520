"""The parts of the transcode example that need no other: links, objects, pictures, alarm."""

from __future__ import annotations

import io
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from PIL import Image

from examples.harness.story import percentile
from examples.transcode.alarm import Alarm
from examples.transcode.links import Links
from examples.transcode.objects import ObjectStore
from examples.transcode.pictures import CorruptImage, variants
from examples.transcode.plan import VARIANTS, output_key
from examples.transcode.visitors import Visit


def test_a_signed_address_is_good_for_one_path_one_user_and_a_while() -> None:
    links = Links(b"secret", valid_s=900)
    path, _, text = links.signed("/objects/img-1", "u-1", 1_000.0).partition("?")
    query = dict(parse_qsl(text))
    assert links.problem(path, query, 1_900.0) is None
    assert links.problem(path, query, 1_901.0) == "the address has expired; ask for another one"
    for changed in ({"user": "u-2"}, {"expires": "9999"}, {"signature": "0"}, {"signature": ""}):
        assert links.problem(path, {**query, **changed}, 1_000.0) == "the signature does not fit"
    assert links.problem("/objects/img-2", query, 1_000.0) == "the signature does not fit"
    assert links.problem(path, {}, 1_000.0) == "the signature does not fit"


def test_an_object_is_overwritten_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    objects = ObjectStore(tmp_path)
    objects.put("out/thumb/img-1.jpg", b"first")
    objects.put("out/thumb/img-1.jpg", b"second")
    assert objects.get("out/thumb/img-1.jpg") == b"second"
    assert objects.keys() == ["out/thumb/img-1.jpg"]


@pytest.mark.parametrize("key", ["", "../x", "/etc/x", "a//b", "a/.b", "A"])
def test_a_key_stays_within_the_store(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        ObjectStore(tmp_path).put(key, b"")


def test_every_variant_has_its_format_and_size_and_is_the_same_again() -> None:
    raw = Visit(0).picture()
    made = dict(variants(raw))
    assert tuple(made) == VARIANTS
    for variant, data in made.items():
        image = Image.open(io.BytesIO(data))
        assert (image.format, max(image.size)) == (variant.format, variant.side)
    assert dict(variants(raw)) == made


@pytest.mark.parametrize(
    ("raw", "cause"),
    [(Visit(7).upload(), "truncated"), (Visit(13).upload(), "not an image"), (b"", "not an image")],
)
def test_what_cannot_be_read_is_poison_and_says_why(raw: bytes, cause: str) -> None:
    with pytest.raises(CorruptImage, match=cause):
        list(variants(raw))


def test_outputs_have_the_same_key_at_every_try() -> None:
    keys = [output_key(variant, "img-1") for variant in VARIANTS]
    assert keys == [
        "out/thumb/img-1.jpg",
        "out/medium/img-1.jpg",
        "out/large/img-1.jpg",
        "out/webp/img-1.webp",
    ]


def test_twenty_visits_have_every_kind_of_bad_day() -> None:
    visits = [Visit(number) for number in range(20)]
    assert sum(visit.is_truncated for visit in visits) == 1
    assert sum(visit.is_no_image for visit in visits) == 1
    assert sum(visit.is_put_twice for visit in visits) == 2
    assert sum(visit.is_announced_twice for visit in visits) == 2
    assert {visit.tier for visit in visits} == {"paid", "free"}


def test_an_alarm_is_raised_after_its_time_and_cleared_at_once() -> None:
    alarm = Alarm(limit=0, for_s=60)
    told = [alarm.observe(value, now_s) for now_s, value in ((0, 1), (59, 3), (60, 3), (70, 2), (71, 0), (72, 0))]
    assert told == [None, None, "raised", None, "cleared", None]


def test_an_alarm_that_was_never_raised_for_long_enough_is_not_raised() -> None:
    alarm = Alarm(limit=0, for_s=60)
    assert [alarm.observe(value, now_s) for now_s, value in ((0, 1), (30, 0), (31, 1), (90, 1))] == [None] * 4


def test_percentiles() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(number) for number in range(1, 101)], 0.99) == 100.0

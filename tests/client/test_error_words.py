"""Errors name what the program passed: the client's arguments and settings, not the fields of the REST API."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from batonq.client import RedriveFilter
from batonq.client.error_words import in_client_words
from batonq.errors import BatonError
from batonq.sync import Baton
from batonq.testing import memory

_REST = re.compile(r"[a-z]+(?:[A-Z][a-z]+)+|GET|POST|PATCH|DELETE|/v1|request's body")  # camelCase, methods, paths

WRONG: dict[str, Callable[[Baton], Any]] = {
    "delay must be a number": lambda baton: baton.queue("q").send("x", delay=-1),
    "ttl must be a number": lambda baton: baton.queue("q").send("x", ttl=0),
    "priority cannot be": lambda baton: baton.queue("q").send("x", priority="urgent"),  # type: ignore[arg-type]
    "group must be text": lambda baton: baton.queue("q").send("x", group=""),
    "dedup_key must be text": lambda baton: baton.queue("q").send("x", dedup_key="k" * 200),
    "max_receives must be": lambda baton: baton.queue("q").send("x", max_receives=0),
    "needs a group": lambda baton: baton.queue("q.fifo").send("x"),
    "deliver_at or delay, not both": lambda baton: baton.queue("q").send(
        "x", deliver_at=datetime(2027, 1, 1, tzinfo=UTC), delay=5
    ),
    "deliver_at must be a time with a time zone": lambda baton: baton.queue("q").send(
        "x",
        deliver_at=datetime(2027, 1, 1),  # noqa: DTZ001
    ),
    "max_messages must be": lambda baton: baton.queue("q").receive(0),
    "wait must be": lambda baton: baton.queue("q").receive(wait=21),
    "attempt_id can be used only": lambda baton: baton.queue("q").receive(attempt_id="a", wait=0),
    "visibility must be": lambda baton: baton.queue("q").receive(visibility=-1),
    "a different visibility": lambda baton: baton.create_queue("q", visibility=77),
    "retention must be": lambda baton: baton.create_queue("other", retention=1),
    "sla must be": lambda baton: baton.queue("q").update(sla=-1),
    "filter.min_age must be": lambda baton: baton.queue("q").redrive(filter=RedriveFilter(min_age=-1)),
    "to: Queue 'nope' does not exist": lambda baton: baton.queue("q").redrive("nope"),
    "rate must be": lambda baton: baton.queue("q").redrive(rate=0),
    "Queue 'nope' does not exist. Create it first.": lambda baton: baton.queue("nope").send("x"),
}


def test_errors_use_the_words_of_the_client() -> None:
    with memory() as baton:
        baton.create_queue("q")
        baton.create_queue("q.fifo", fifo=True)
        for words, wrong in WRONG.items():
            with pytest.raises(BatonError) as info:
                wrong(baton)
            assert words in str(info.value)
            assert not _REST.search(str(info.value)), str(info.value)


def test_other_text_stays_as_it_is() -> None:
    text = "'delay' and body, messages[1].reason; maxMessagesOfMine is not ours."
    assert in_client_words(text) == text

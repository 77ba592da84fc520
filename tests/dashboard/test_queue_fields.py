"""The form of a queue's settings: complete, as the table of attributes says, and strict about what it takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from batonq.api.rest.queue_shapes import QueueChanges
from batonq.api.ui import queue_fields
from batonq.api.ui.queue_fields import FIELDS, Wrong, blamed, changes, groups, parse
from batonq.queue_attributes import REST_ATTRIBUTES

BY_NAME = {field.name: field for field in FIELDS}
QUEUE: dict[str, Any] = {
    "name": "orders",
    "retentionSeconds": 345600,
    "maxReceiveCount": 5,
    "strictReceipts": True,
    "deadLetterOn": "failure",
    "deduplication": {"windowSeconds": 300, "scope": "window"},
    "tags": {"team": "shop", "stage": "test"},
    "retry": {"kind": "schedule", "delaysSeconds": [1.0, 5.0], "jitter": 0.0},
}


def test_every_field_of_rest_is_in_the_form() -> None:
    assert len(FIELDS) == len(REST_ATTRIBUTES) + 1
    shown = [field for fields in groups(fifo=True).values() for field in fields]
    assert {field.name for field in shown} == {field.name for field in FIELDS}
    assert all(field.help and field.label for field in FIELDS)


def test_groups_name_only_fields_that_exist() -> None:
    known = {row.field for row in REST_ATTRIBUTES}
    named = {name for fields in queue_fields.GROUPS.values() for name in fields}
    assert named <= known and {*queue_fields.FIRST} <= known and {*queue_fields._LABELS} <= known


def test_a_standard_queue_has_no_fields_of_fifo_queues() -> None:
    shown = {field.name for fields in groups(fifo=False).values() for field in fields}
    assert "deduplication.contentBased" not in shown and "deduplication.windowSeconds" in shown


def test_current_values() -> None:
    assert BY_NAME["retentionSeconds"].shown(QUEUE) == "345600"
    assert BY_NAME["strictReceipts"].shown(QUEUE) == "true"
    assert BY_NAME["deduplication.windowSeconds"].shown(QUEUE) == "300"
    assert BY_NAME["deadLetterQueue"].shown(QUEUE) == ""
    assert BY_NAME["tags"].shown(QUEUE) == "team=shop\nstage=test"


def test_a_form_that_changes_nothing_asks_for_nothing() -> None:
    form = {field.name: field.shown(QUEUE) for field in FIELDS}
    assert changes(form, QUEUE, fifo=False) == ({}, {})
    form["tags"] = form["tags"].replace("\n", "\r\n")  # as browsers send it
    assert changes(form, QUEUE, fifo=False) == ({}, {})


def test_changes_become_a_request_that_rest_takes() -> None:
    form = {
        "retentionSeconds": "60",
        "maxReceiveCount": "",
        "strictReceipts": "false",
        "deadLetterQueue": "orders-dlq",
        "deadLetterOn": "receive",
        "durability": "3",
        "deduplication.windowSeconds": "1,000",
        "deduplication.scope": "lives",
        "retry": '{"kind": "exponential", "baseSeconds": 2}',
        "tags": "team=ops\n\n",
        "alarmSeverity": "page",
    }
    body, wrong = changes(form, QUEUE, fifo=False)
    assert not wrong
    assert body == {
        "retentionSeconds": 60,
        "maxReceiveCount": None,
        "strictReceipts": False,
        "deadLetterQueue": "orders-dlq",
        "deadLetterOn": "receive",
        "durability": 3,
        "deduplication": {"windowSeconds": 1000, "scope": "lives"},
        "retry": {"kind": "exponential", "baseSeconds": 2},
        "tags": {"team": "ops"},
        "alarmSeverity": "page",
    }
    msgspec.json.decode(json.dumps(body), type=QueueChanges)


def test_all_tags_can_be_removed() -> None:
    assert changes({"tags": ""}, QUEUE, fifo=False) == ({"tags": {}}, {})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("retentionSeconds", "59", "Use 60 to 1,209,600."),
        ("retentionSeconds", "one day", "'one day' is not a whole number. Use 60 to 1,209,600."),
        ("retentionSeconds", "60.5", "is not a whole number"),
        ("retentionSeconds", "9" * 100, "is not a whole number"),
        ("retentionSeconds", "-1", "is not a whole number"),
        ("deadLetterOn", "never", "Choose one of receive, failure."),
        ("retry", "{", "This is not JSON."),
        ("retry", "[" * 100_000, "This is not JSON."),
        ("tags", "team", "'team' is not of the form name=value."),
        ("tags", "=x", "is not of the form name=value"),
    ],
)
def test_what_a_field_refuses(name: str, text: str, said: str) -> None:
    with pytest.raises(Wrong) as refused:
        parse(BY_NAME[name], text)
    assert said in str(refused.value)
    body, wrong = changes({name: text}, QUEUE, fifo=False)
    assert not body and said in wrong[name]


def test_fields_of_fifo_queues_are_ignored_for_others() -> None:
    form = {"deduplication.contentBased": "true"}
    assert changes(form, QUEUE, fifo=False) == ({}, {})
    assert changes(form, QUEUE, fifo=True) == ({"deduplication": {"contentBased": True}}, {})


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        ("deadLetterQueue must be another queue.", "deadLetterQueue"),
        ("Expected `int` <= 5 at `$.retentionSeconds`", "retentionSeconds"),
        ("Expected `int` >= 1 at `$.deduplication.windowSeconds`", "deduplication.windowSeconds"),
        ("Something else.", ""),
    ],
)
def test_which_field_an_error_is_about(detail: str, field: str) -> None:
    assert blamed(detail) == field

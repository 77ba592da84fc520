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


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retentionSeconds", "4d", 345_600),
        ("retentionSeconds", "12h", 43_200),
        ("retentionSeconds", "1.5h", 5_400),
        ("retentionSeconds", "1.1h", 3_960),
        ("retentionSeconds", "4 d", 345_600),
        ("retentionSeconds", "61000ms", 61),
        ("maxMessageBytes", "64KiB", 65_536),
        ("maxMessageBytes", "65,536", 65_536),
    ],
)
def test_quantities_with_units(name: str, text: str, value: int) -> None:
    assert parse(BY_NAME[name], text) == value


def test_the_same_value_in_another_unit_changes_nothing() -> None:
    assert changes({"retentionSeconds": "4d"}, QUEUE, fifo=False) == ({}, {})


@pytest.mark.parametrize(
    ("name", "shown", "said"),
    [
        ("retentionSeconds", "345600", "4 d (345,600 s)"),
        ("retentionSeconds", "30", "30 s"),
        ("maxMessageBytes", "262144", "256 KiB (262,144 B)"),
        ("maxMessages", "120000", "120,000"),
        ("deadLetterQueue", "", ""),
        ("deadLetterQueue", "2024", "2024"),
    ],
)
def test_values_for_those_who_only_read(name: str, shown: str, said: str) -> None:
    assert queue_fields.read_view(BY_NAME[name], shown) == said


def test_what_changed_is_said_in_words() -> None:
    body = {"slaSeconds": 5, "deduplication": {"windowSeconds": 60}, "defaultVisibilityTimeoutSeconds": 9, "tags": {}}
    words = {field.words for field in queue_fields.changed(body)}
    assert words == {"visibility timeout", "deduplication window", "SLA", "tags"}


def test_all_tags_can_be_removed() -> None:
    assert changes({"tags": ""}, QUEUE, fifo=False) == ({"tags": {}}, {})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("retentionSeconds", "59", "Use 60 to 1,209,600."),
        ("retentionSeconds", "one day", "'one day' is not a whole number of seconds, such as 90, 12h or 4d. Use 60"),
        ("retentionSeconds", "20d", "Use 60 to 1,209,600."),
        ("retentionSeconds", "4x", "is not a whole number"),
        ("retentionSeconds", "60500ms", "is not a whole number"),
        ("retentionSeconds", "64KiB", "is not a whole number"),
        ("maxMessageBytes", "4d", "is not a whole number of bytes, such as 65536 or 64KiB."),
        ("maxReceiveCount", "4d", "'4d' is not a whole number. Use"),
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

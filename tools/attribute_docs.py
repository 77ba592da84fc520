"""The generated parts of the page on what Baton adds to SQS: attributes of queues and messages, and headers."""

from __future__ import annotations

from batonq.api.sqs import extensions
from batonq.queue_attributes import ATTRIBUTES, REST_ATTRIBUTES, Access, camel
from tools.make_docs import table


def queue_attributes_part() -> str:
    rows = [
        [f"`{row.name}`", row.allowed, "unset" if row.default is None else row.default, row.doc]
        for row in ATTRIBUTES.values()
        if row.own and row.access is not Access.READ_ONLY
    ]
    return table(("attribute", "values", "default", "meaning"), rows)


def sqs_queue_attributes_part() -> str:
    rows = []
    for row in ATTRIBUTES.values():
        if not row.own:
            values = "–" if row.access is Access.READ_ONLY else row.allowed
            rows.append([f"`{row.name}`", values, row.default or "", row.doc])
    return table(("attribute", "values", "default", "meaning"), rows)


def queue_setting_names_part() -> str:
    """The names of a queue's settings for SQS, REST and the Python client."""
    rows = []
    for row in REST_ATTRIBUTES:
        field = ".".join(map(camel, row.field.split(".")))
        rows.append([f"`{row.name}`", f"`{field}`", f"`{row.keyword or row.field}`"])
    return table(("attribute of SQS", "field of REST", "keyword of the Python client"), rows)


def queue_readings_part() -> str:
    readings = [row for row in ATTRIBUTES.values() if row.own and row.access is Access.READ_ONLY]
    return table(("attribute", "meaning"), ([f"`{row.name}`", row.doc] for row in readings))


def message_attributes_part() -> str:
    rows = ([f"`{row.name}`", f"{row.low} to {row.high}", row.doc] for row in extensions.MESSAGE_ATTRIBUTES.values())
    return table(("attribute", "values", "meaning"), rows)


def system_attributes_part() -> str:
    rows = ([f"`{row.name}`", row.doc] for row in extensions.SYSTEM_ATTRIBUTES.values())
    return table(("attribute", "meaning"), rows)


def headers_part() -> str:
    return table(("header", "meaning"), ([f"`{row.name}`", row.doc] for row in extensions.HEADERS.values()))

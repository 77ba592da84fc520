"""Write the client's types of a queue's settings from the table of queue attributes: `make_settings.py [--check]`.

Types of keyword arguments must stand in the source for type checkers and editors, so the module is written, not made
while Python runs. With --check nothing is written, and the exit code says whether anything would be.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import wrap

from batonq.queue_attributes import REST_FIELDS, QueueAttribute, ValueKind, camel

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "batonq" / "client" / "queue_settings.py"
WIDTH = 114  # of a comment within a class
MODULE = '''\
# Made by tools/make_settings.py from batonq/queue_attributes.py; change that one.
"""A queue's settings, with Python names and wire names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import Struct

from batonq.client.models import RetryPolicy


class Deduplication(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a queue recognizes duplicates: within a window, or for as long as the first message exists."""

{deduplication}

class QueueSettings(TypedDict, total=False):
    """Settings of a queue. Times are in seconds; omitted settings have the server's default."""

{settings}    # Names and values of your own, up to 50.
    tags: Mapping[str, str]


class QueueInfo(Struct, rename="camel"):
    """A queue's current settings."""

    queue_id: str
    name: str
    mode: str = "STANDARD"
    fifo: bool = False
    arn: str = ""
    created_at_ms: int = 0
    modified_at_ms: int = 0
{info}    tags: dict[str, str] = {{}}
    subscriptions: int = 0  # number of topics that the queue is subscribed to; only in `Queue.info`
    subscribed_topics: list[str] = []  # names of the first 100 of them
    warnings: list[str] = []  # settings that lose good messages or hide dead letters, one sentence each


WIRE_NAMES = {names}
'''
# Attributes that REST has in a form of its own.
FIELD_DOCS = {"deduplication": "How the queue recognizes duplicates."}
OWN_FORMS = {"RedrivePolicy": "str", "Baton.RetryPolicy": "RetryPolicy"}


def kind(row: QueueAttribute, *, answered: bool = False) -> str:
    """The type of a value that is given, or that comes in an answer."""
    if row.name in OWN_FORMS:
        return OWN_FORMS[row.name]
    if row.rest_boolean or row.kind is ValueKind.BOOLEAN:
        return "bool"
    if row.kind is ValueKind.CHOICE and not answered:
        return f"Literal[{', '.join(choice if row.numeric else repr(choice) for choice in row.choices)}]"
    if row.seconds:
        return "float"
    return "int" if row.numeric else "str"


def comment(text: str) -> str:
    return "".join(f"    # {line}\n" for line in wrap(text, WIDTH))


def made() -> str:
    """The text of the module, formatted as the rest of the code is."""
    settings = info = ""
    names = {}
    for field, rows in REST_FIELDS.items():
        row = rows[0]
        keyword, given, told = row.keyword, kind(row), kind(row, answered=True)
        if row.parent:  # an object; its class has the same name
            keyword, given, told = field, f"{field.capitalize()} | None", "dict[str, Any]"
        elif row.kind is ValueKind.JSON and not row.composite:
            given += " | None"
        settings += f"{comment(FIELD_DOCS.get(field) or row.meaning)}    {keyword}: {given}\n"
        info += f"    {field}: {told} | None = None\n"
        names[keyword] = camel(field)
    deduplication = "".join(
        f"{comment(row.meaning)}    {row.member}: {kind(row)} | None = None\n" for row in REST_FIELDS["deduplication"]
    )
    text = MODULE.format(deduplication=deduplication, settings=settings, info=info, names={**names, "tags": "tags"})
    ruff = [str(Path(sys.executable).parent / "ruff"), "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def outdated() -> bool:
    return not TARGET.exists() or TARGET.read_text() != made()


def main(arguments: list[str]) -> int:
    if not outdated():
        return 0
    print(TARGET.relative_to(ROOT))
    if "--check" in arguments:
        return 1
    TARGET.write_text(made())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`baton peek QUEUE`: show a queue's messages with their state and the reason why each is not delivered. It changes
nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from batonq.cli.admin import call
from batonq.cli.clock import DEFAULT_URL

HEAD = ("SEQUENCE", "STATE", "RECEIVED", "SENT", "MESSAGE ID", "BODY", "WHY")
BODY_WIDTH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument("--after", type=int, default=0, help="show messages after this sequence number (default 0)")
    parser.add_argument("--limit", type=int, default=10, help="maximum number of messages, 1 to 100 (default 10)")
    parser.add_argument("--json", action="store_true", help="print all details of each message as JSON")
    parser.add_argument("--account", help="account of the queue (default: the server's account)")
    parser.add_argument("--url", help=f"URL of the server (default {DEFAULT_URL})")
    parser.add_argument(
        "--data", help="data directory of a secured server, from which its URL and admin token are read"
    )


def run(arguments: argparse.Namespace) -> int:
    url, token, context = arguments.url or DEFAULT_URL, "", None
    if arguments.data:
        # imported late: it loads the node, which the development profile does not need
        from batonq.cli.server import find

        found = find(arguments.data)
        url, token = arguments.url or found.address, found.token
        context = None if arguments.url else found.context
    given = {"queue": arguments.queue, "after": arguments.after, "limit": arguments.limit}
    if arguments.account:
        given["account"] = arguments.account
    answer = call(url, "/_baton/peek", given, token, context)
    if arguments.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return 0
    messages = answer["messages"]
    if not messages:
        after = f" after {arguments.after}" if arguments.after else ""
        print(f"Queue {arguments.queue} has no messages{after}.")
        return 0
    for line in table(messages):
        print(line)
    if answer["next"] is not None:
        print(f"There are more messages: --after {answer['next']}")
    return 0


def table(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Format rows as a table. Columns are as wide as needed; the last one is free text."""
    rows = [HEAD, *(_row(message) for message in messages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        yield "  ".join((*cells, row[-1]))


def _row(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(message["sequence"]),
        message["state"],
        str(message["receive_count"]),
        message["sent"].replace("T", " ").partition(".")[0],
        message["message_id"],
        _start_of(message),
        printable(message["why"]),
    )


def _start_of(message: dict[str, Any]) -> str:
    if message["problem"]:
        return "(cannot be read)"
    if message["body_encoding"] != "text":
        return f"({message['body_bytes']} bytes)"
    text = printable(message["body"][: BODY_WIDTH + 1])
    return text if len(text) <= BODY_WIDTH and not message["body_cut"] else text[: BODY_WIDTH - 1] + "…"


def printable(text: str) -> str:
    """Text from a message, made safe for a terminal: on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "\ufffd" for letter in text)

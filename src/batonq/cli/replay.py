"""`baton replay QUEUE`: send messages of a queue's retained history again, to the same queue or another one."""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.connection import add_connection_arguments, connect, queue_path
from batonq.cli.jobs import report, report_watched, watch
from batonq.cli.quantities import parse_duration_s, parse_time
from batonq.cli.send import parse_attributes

RATE_DEFAULT = 100
FLAGS = {
    "from": "--from",
    "until": "--until",
    "fromPositions": "--from-position",
    "untilPositions": "--until-position",
    "targetQueue": "--to",
    "maxMessagesPerSecond": "--rate",
    "maxMessages": "--max",
    "messageIds": "--message",
    "retainSeconds": "--retain",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue whose retained history is replayed")
    parser.add_argument("--to", metavar="QUEUE", help="target queue (default: the same queue)")
    chosen = parser.add_argument_group("which messages (all conditions must hold; default: the whole history)")
    chosen.add_argument(
        "--from", dest="since", type=parse_time, metavar="TIME", help="sent at this time or later: 2027-01-31T09:00:00Z"
    )
    chosen.add_argument("--until", type=parse_time, metavar="TIME", help="sent before this time (default: now)")
    chosen.add_argument("--older-than", type=parse_duration_s, metavar="TIME", help="minimum age: 2h, 3d")
    chosen.add_argument("--newer-than", type=parse_duration_s, metavar="TIME", help="maximum age: 2h, 3d")
    chosen.add_argument(
        "--from-position", action="append", default=[], metavar="POSITION", help="SHARD:NUMBER; one per shard"
    )
    chosen.add_argument(
        "--until-position", action="append", default=[], metavar="POSITION", help="SHARD:NUMBER; one per shard"
    )
    chosen.add_argument("--body-contains", metavar="TEXT", help="text in the body")
    chosen.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="an attribute; can be repeated"
    )
    chosen.add_argument("--message", action="append", default=[], metavar="ID", help="a message; can be repeated")
    chosen.add_argument("--max", type=int, metavar="N", help="maximum number of messages")
    parser.add_argument("--dry-run", action="store_true", help="only report what matches, with examples")
    parser.add_argument(
        "--rate",
        type=int,
        default=RATE_DEFAULT,
        metavar="N",
        help=f"maximum number of messages per second, 1 to 10,000 (default {RATE_DEFAULT})",
    )
    parser.add_argument("--no-wait", action="store_true", help="return at once; `baton jobs` shows the progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments, FLAGS)
    job = server.post(queue_path(arguments.queue) + ":replay", spec(arguments))
    if not (arguments.no_wait or job["dryRun"]):
        return report_watched(arguments, watch(server, job))
    return report(arguments, job)


def spec(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        "bodyContains": arguments.body_contains,
        "attributes": parse_attributes(arguments.attribute) or None,
        "minAgeSeconds": arguments.older_than,
        "maxAgeSeconds": arguments.newer_than,
        "messageIds": arguments.message or None,
    }
    fields = {
        "targetQueue": arguments.to,
        "from": arguments.since,
        "until": arguments.until,
        "fromPositions": arguments.from_position or None,
        "untilPositions": arguments.until_position or None,
        "filter": {name: value for name, value in chosen.items() if value is not None} or None,
        "maxMessagesPerSecond": arguments.rate,
        "dryRun": arguments.dry_run or None,
        "maxMessages": arguments.max,
    }
    return {name: value for name, value in fields.items() if value is not None}

"""`baton redrive QUEUE`: move dead letters back to their source queue, or to another queue."""

from __future__ import annotations

import argparse
import json
from typing import Any

from batonq.cli.connection import add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.jobs import job_path, report, report_watched, watch
from batonq.cli.quantities import parse_duration_s
from batonq.cli.send import is_json, parse_attributes

RATE_DEFAULT = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="name of the dead-letter queue")
    parser.add_argument("--to", metavar="QUEUE", help="target queue (default: the source queue of each message)")
    add_selection_arguments(parser)
    edit = parser.add_argument_group("changes before the move")
    edit.add_argument(
        "--set-attribute", action="append", default=[], metavar="NAME=VALUE", help="set an attribute; can be repeated"
    )
    edit.add_argument(
        "--remove-attribute", action="append", default=[], metavar="NAME", help="remove an attribute; can be repeated"
    )
    edit.add_argument("--replace-body", metavar="BODY", help="replace the whole body")
    edit.add_argument(
        "--replace-text",
        action="append",
        nargs=2,
        default=[],
        metavar=("FIND", "WITH"),
        help="replace a text in the body; can be repeated",
    )
    pace = parser.add_argument_group("pace")
    pace.add_argument(
        "--rate",
        type=int,
        default=RATE_DEFAULT,
        metavar="N",
        help=f"maximum number of messages per second, 1 to 10,000 (default {RATE_DEFAULT})",
    )
    pace.add_argument("--ramp", type=parse_duration_s, metavar="TIME", help="time in which the rate is reached")
    pace.add_argument(
        "--pause-when-dying",
        type=float,
        metavar="SHARE",
        help="pause if this share of the moved messages is dead-lettered again (default 0.5)",
    )
    pace.add_argument("--no-wait", action="store_true", help="return at once; `baton jobs` shows the progress")
    control = parser.add_argument_group("a redrive that is running").add_mutually_exclusive_group()
    for verb in ("pause", "resume", "cancel"):
        control.add_argument(f"--{verb}", metavar="JOB", help=f"{verb} a redrive; the same as `baton jobs {verb}`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def add_selection_arguments(parser: argparse.ArgumentParser) -> None:
    """Which dead letters: for a redrive, and for `baton dlq delete`."""
    group = parser.add_argument_group("which messages (all conditions must hold; default: all messages)")
    group.add_argument("--group", metavar="GROUP", help="a group of dead letters, from `baton dlq show`")
    group.add_argument("--error-class", metavar="NAME", help="class of the last error")
    group.add_argument("--reason", metavar="TEXT", help="text in the reason of the last error")
    group.add_argument("--body-contains", metavar="TEXT", help="text in the body")
    group.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="an attribute; can be repeated"
    )
    group.add_argument("--older-than", type=parse_duration_s, metavar="TIME", help="minimum age: 2h, 3d")
    group.add_argument("--newer-than", type=parse_duration_s, metavar="TIME", help="maximum age: 2h, 3d")
    group.add_argument("--message", action="append", default=[], metavar="ID", help="a message; can be repeated")
    group.add_argument("--max", type=int, metavar="N", help="maximum number of messages")
    group.add_argument("--dry-run", action="store_true", help="only report what matches, with examples")


def selection(arguments: argparse.Namespace) -> dict[str, Any]:
    """The filter of the REST API for the flags of `add_selection_arguments`."""
    fields = {
        "group": arguments.group,
        "errorClass": arguments.error_class,
        "reasonContains": arguments.reason,
        "bodyContains": arguments.body_contains,
        "attributes": parse_attributes(arguments.attribute) or None,
        "minAgeSeconds": arguments.older_than,
        "maxAgeSeconds": arguments.newer_than,
        "messageIds": arguments.message or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def run(arguments: argparse.Namespace) -> int:
    control = next((verb for verb in ("pause", "resume", "cancel") if getattr(arguments, verb)), None)
    if (arguments.queue is None) == (control is None):
        raise WrongUsage("Name the dead-letter queue, for example `baton redrive orders-dead`, or a job to control.")
    server = connect(arguments)
    if control is not None:
        job = server.post(f"{job_path(getattr(arguments, control))}:{control}")
    else:
        job = server.post(queue_path(arguments.queue) + ":redrive", spec(arguments))
        if not (arguments.no_wait or job["dryRun"]):
            return report_watched(arguments, watch(server, job))
    return report(arguments, job)


def spec(arguments: argparse.Namespace) -> dict[str, Any]:
    edit: dict[str, Any] = {}
    if arguments.set_attribute:
        edit["setAttributes"] = parse_attributes(arguments.set_attribute)
    if arguments.remove_attribute:
        edit["removeAttributes"] = arguments.remove_attribute
    if arguments.replace_body is not None:
        edit["replaceBody"] = (
            json.loads(arguments.replace_body) if is_json(arguments.replace_body) else arguments.replace_body
        )
    if arguments.replace_text:
        edit["replaceText"] = [{"find": find, "with": text} for find, text in arguments.replace_text]
    fields = {
        "targetQueue": arguments.to,
        "maxMessagesPerSecond": arguments.rate,
        "rampSeconds": arguments.ramp,
        "filter": selection(arguments) or None,
        "edit": edit or None,
        "dryRun": arguments.dry_run or None,
        "maxMessages": arguments.max,
        "pauseWhenDyingShare": arguments.pause_when_dying,
    }
    return {name: value for name, value in fields.items() if value is not None}

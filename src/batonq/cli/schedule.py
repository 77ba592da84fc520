"""`baton schedule list|show|create|set|delete|preview|fire`: messages that are sent at recurring times."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import body_text, duration, moment, note, print_fields, print_json, print_table, printable
from batonq.cli.quantities import parse_duration_s, parse_time
from batonq.cli.send import FLAGS as MESSAGE_FLAGS
from batonq.cli.send import encode_body, encode_message, parse_attributes, parse_priority
from batonq.priorities import PRIORITIES

SCHEDULES = "/v1/schedules"
FLAGS = {
    **MESSAGE_FLAGS,
    "rateSeconds": "--every",
    "timeZone": "--time-zone",
    "startAt": "--start-at",
    "endAt": "--end-at",
    "count": "--count",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list schedules, with their next times and what they wait for")
    listing.add_argument("--queue", metavar="QUEUE", help="only schedules of this queue")
    show = add_action(actions, "show", "show a schedule, its message and what it has done")
    create = add_action(actions, "create", "create a schedule; an existing one with the same definition is no error")
    change = add_action(actions, "set", "change a schedule; what is not named does not change")
    delete = add_action(actions, "delete", "delete a schedule; messages that it has sent stay")
    fire = add_action(actions, "fire", "send the message of a schedule now, in addition to its own times")
    preview = add_action(actions, "preview", "show the next times of a cron expression or a rate")
    for action in (show, create, change, delete, fire):
        action.add_argument("schedule", metavar="NAME@QUEUE", help="the schedule's name and its queue: nightly@reports")
    create.add_argument("body", metavar="BODY", help="body of the message; JSON objects are sent as JSON")
    change.add_argument("--body", help="the new body; the rest of the message is then replaced too")
    for action in (create, change):
        _add_message_arguments(action)
        action.add_argument(
            "--missed",
            choices=("all", "last", "none"),
            help="which due times are fired when several have passed, for example during an outage (default: last)",
        )
    for action in (create, change, preview):
        _add_timing_arguments(action)
    create.add_argument("--paused", action="store_true", help="create it paused")
    change.add_argument("--pause", action="store_true", help="stop firing")
    change.add_argument("--resume", action="store_true", help="fire again, from the next due time on")
    preview.add_argument("--count", type=int, default=10, metavar="N", help="number of times (default 10)")
    preview.add_argument("--after", type=parse_time, metavar="WHEN", help="show times after this one (default: now)")
    add_yes_argument(delete)
    for action in (listing, show, create, change, delete, fire, preview):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def _add_timing_arguments(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--cron", metavar="EXPRESSION", help="minute hour day month weekday: '30 8 * * MON-FRI'")
    when.add_argument("--every", type=parse_duration_s, metavar="TIME", help="fire at this interval: 30s, 5m, 1d")
    parser.add_argument("--time-zone", metavar="ZONE", help="time zone of --cron: Europe/Berlin (default: UTC)")
    parser.add_argument("--start-at", type=parse_time, metavar="WHEN", help="first time: 2027-01-31T09:00:00Z")
    parser.add_argument("--end-at", type=parse_time, metavar="WHEN", help="last time: 2027-12-31T00:00:00Z")


def _add_message_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", action="store_true", help="send the body as text, even if it is JSON")
    parser.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="an attribute; can be repeated"
    )
    parser.add_argument("--group", metavar="ID", help="message group id")
    parser.add_argument("--ttl", type=parse_duration_s, metavar="TIME", help="time after which each message expires")
    parser.add_argument(
        "--priority",
        type=parse_priority,
        metavar="PRIORITY",
        help=f"{', '.join(PRIORITIES)}, or a number from 0 to 255",
    )
    parser.add_argument("--max-receives", type=int, metavar="N", help="maximum number of receives of each message")


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "show": _show,
        "create": _create,
        "set": _set,
        "delete": _delete,
        "fire": _fire,
        "preview": _preview,
    }
    return actions[arguments.action](connect(arguments, FLAGS), arguments)


def schedule_path(schedule: str) -> str:
    return f"{SCHEDULES}/{quote(schedule, safe='@')}"


# --- reading the arguments --------------------------------------------------------------------


def _timing(arguments: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "cron": arguments.cron,
        "rateSeconds": arguments.every,
        "timeZone": arguments.time_zone,
        "startAt": arguments.start_at,
        "endAt": arguments.end_at,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _message(arguments: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "attributes": parse_attributes(arguments.attribute) or None,
        "messageGroupId": arguments.group,
        "ttlSeconds": arguments.ttl,
        "priority": arguments.priority,
        "maxReceiveCount": arguments.max_receives,
    }
    body = encode_body(arguments.body.encode("utf-8", "surrogateescape"), text=arguments.text)
    given = {name: value for name, value in fields.items() if value is not None}
    message: dict[str, Any] = json.loads(encode_message(body, given))
    return message


# --- actions ----------------------------------------------------------------------------------


def _list(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(SCHEDULES, **({"queue": arguments.queue} if arguments.queue else {}))
    if arguments.json:
        print_json(found)
        return 0
    if not found["schedules"]:
        note("There are no schedules. `baton schedule create` makes one.")
    else:
        head = ("SCHEDULE", "WHEN", "STATE", "NEXT (UTC)", "FIRINGS", "LATE", "SKIPPED", "WHY")
        rows = [_row(schedule) for schedule in found["schedules"]]
        print_table(head, rows, right=("FIRINGS", "LATE", "SKIPPED"))
    if not found.get("complete", True):
        note("Some shards did not answer, so schedules are missing.")
    return 0


def _row(schedule: dict[str, Any]) -> tuple[str, ...]:
    return (
        schedule["scheduleId"],
        _when(schedule),
        schedule["state"],
        moment(schedule.get("nextAtMs")) if schedule["state"] != "PAUSED" else "",
        f"{schedule['firings']:,}",
        f"{schedule['lateFirings']:,}",
        f"{schedule['skippedFirings']:,}",
        printable(schedule.get("why", "")),
    )


def _when(schedule: dict[str, Any]) -> str:
    if "rateSeconds" in schedule:
        return f"every {duration(schedule['rateSeconds'])}"
    return f"{schedule['cron']} ({schedule['timeZone']})"


def _show(server: Server, arguments: argparse.Namespace) -> int:
    _print(arguments, server.get(schedule_path(arguments.schedule)))
    return 0


def _print(arguments: argparse.Namespace, schedule: dict[str, Any]) -> None:
    if arguments.json:
        print_json(schedule)
        return
    message = schedule.get("message", {})
    rows = [
        ("schedule", schedule["scheduleId"]),
        ("when", _when(schedule)),
        ("from", schedule.get("startAt", "")),
        ("until", schedule.get("endAt", "")),
        ("state", schedule["state"]),
        ("why", schedule.get("why", "")),
        ("next (UTC)", moment(schedule.get("nextAtMs")) if schedule["state"] != "PAUSED" else ""),
        ("last (UTC)", moment(schedule.get("lastFiredAtMs"))),
        ("last message", schedule.get("lastMessageId", "")),
        ("firings", f"{schedule['firings']:,}"),
        ("late", f"{schedule['lateFirings']:,}" if schedule["lateFirings"] else ""),
        ("skipped", f"{schedule['skippedFirings']:,}" if schedule["skippedFirings"] else ""),
        ("missed firings", schedule["missed"]),
        ("group", message.get("messageGroupId", "")),
        ("priority", str(message.get("priority", ""))),
        *((f"attribute {name}", str(value)) for name, value in sorted(message.get("attributes", {}).items())),
        ("body", body_text(message) if message else ""),
    ]
    print_fields([(name, printable(value)) for name, value in rows if value])


def _create(server: Server, arguments: argparse.Namespace) -> int:
    name, at, queue = arguments.schedule.rpartition("@")
    if not at or not name:
        raise WrongUsage(f"{arguments.schedule!r} must name the schedule and its queue: nightly@reports.")
    timing = _timing(arguments)
    if "cron" not in timing and "rateSeconds" not in timing:
        raise WrongUsage("Say when it fires: --cron '30 8 * * MON-FRI' or --every 5m.")
    spec = {"name": name, "queue": queue, **timing, "message": _message(arguments), "enabled": not arguments.paused}
    if arguments.missed:
        spec["missed"] = arguments.missed
    _print(arguments, server.post(SCHEDULES, spec))
    return 0


def _set(server: Server, arguments: argparse.Namespace) -> int:
    changes = _timing(arguments)
    if arguments.missed:
        changes["missed"] = arguments.missed
    if arguments.pause and arguments.resume:
        raise WrongUsage("Use --pause or --resume, not both.")
    if arguments.pause or arguments.resume:
        changes["enabled"] = arguments.resume
    if arguments.body is not None:
        changes["message"] = _message(arguments)
    elif arguments.attribute or arguments.group or arguments.ttl or arguments.priority or arguments.max_receives:
        raise WrongUsage("The message is replaced as a whole: give its --body too.")
    if not changes:
        raise WrongUsage("Nothing to change. Use --cron, --every, --body, --missed, --pause, --resume …")
    _print(arguments, server.call("PATCH", schedule_path(arguments.schedule), changes))
    return 0


def _delete(server: Server, arguments: argparse.Namespace) -> int:
    path = schedule_path(arguments.schedule)
    found = server.get(path)
    confirm(f"This deletes schedule {found['scheduleId']} ({printable(_when(found))}).", yes=arguments.yes)
    server.call("DELETE", path)
    if arguments.json:
        print_json({"scheduleId": found["scheduleId"], "deleted": True})
    else:
        print(f"Schedule {found['scheduleId']} is deleted.")
    return 0


def _fire(server: Server, arguments: argparse.Namespace) -> int:
    sent = server.post(f"{schedule_path(arguments.schedule)}:fire")
    if arguments.json:
        print_json(sent)
    else:
        queue = arguments.schedule.rpartition("@")[2]
        print(f"Sent {sent['messageId']} (sequence {sent['sequence']}) to {queue}.")
    return 0


def _preview(server: Server, arguments: argparse.Namespace) -> int:
    timing = _timing(arguments)
    if "cron" not in timing and "rateSeconds" not in timing:
        raise WrongUsage("Give --cron '30 8 * * MON-FRI' or --every 5m.")
    if arguments.after is not None:
        timing["after"] = arguments.after
    found = server.post(f"{SCHEDULES}:preview", {**timing, "count": arguments.count})
    if arguments.json:
        print_json(found)
    elif not found["times"]:
        note("It is never due after that time.")
    for time in [] if arguments.json else found["times"]:
        print(time)
    return 0

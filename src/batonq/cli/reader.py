"""`baton reader list|show|create|delete|seek|read`: reader groups, and the retained history of a queue."""

from __future__ import annotations

import argparse
import os
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.output import body_text, cut, duration, moment, note, print_fields, print_json, print_table, printable
from batonq.cli.quantities import parse_duration_s
from batonq.errors import ReaderDoesNotExist
from batonq.quantities import plural

BODY_WIDTH = 72
FLAGS = {
    "to": "--to",
    "from": "--from",
    "positions": "--position",
    "deadLetterQueue": "--dead-letter-queue",
    "maxFailures": "--max-failures",
    "sessionSeconds": "--session",
    "retainSeconds": "--retain",
}
PAGE_MAX = 1_000
_WHERE = "start, end, or a time with its time zone such as 2026-11-17T22:00:00Z"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list the reader groups of a queue, with their lag")
    show = add_action(actions, "show", "show a reader group: members, positions and lag")
    create = add_action(actions, "create", "create a reader group on a queue that retains its history")
    create.add_argument("--from", dest="start", metavar="WHERE", help=f"{_WHERE} (default start)")
    create.add_argument("--dead-letter-queue", metavar="QUEUE", help="queue for messages that fail too often")
    create.add_argument(
        "--max-failures",
        type=int,
        default=3,
        metavar="N",
        help="number of failures after which a message goes to the dead-letter queue (default 3)",
    )
    create.add_argument(
        "--session",
        type=parse_duration_s,
        default=30.0,
        metavar="TIME",
        help="time after which a silent member loses its shards (default 30s)",
    )
    delete = add_action(actions, "delete", "delete a reader group with its positions")
    seek = add_action(actions, "seek", "move a reader group to another position")
    where = seek.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="WHERE", help=_WHERE)
    where.add_argument(
        "--position",
        action="append",
        default=[],
        metavar="POSITION",
        help="continue with the message at this position, SHARD:NUMBER as `baton reader read` shows it; once per shard",
    )
    for action in (delete, seek):
        add_yes_argument(action)
    read = add_action(actions, "read", "print retained messages, deleted or not")
    read.add_argument(
        "--from", dest="start", default="start", metavar="WHERE", help="start (default), a time or a position"
    )
    read.add_argument("--limit", type=int, default=10, metavar="N", help="maximum number of messages (default 10)")
    read.add_argument("--commit", action="store_true", help="with GROUP: commit what was printed")
    for action in (listing, show, create, delete, seek, read):
        action.add_argument("queue", metavar="QUEUE", help="name of the queue")
        if action in (show, create, delete, seek):
            action.add_argument("group", metavar="GROUP", help="name of the reader group")
        elif action is read:
            action.add_argument("group", metavar="GROUP", nargs="?", help="read on as a member of this reader group")
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _run(connect(arguments, FLAGS), arguments)
    except ReaderDoesNotExist:
        queue = arguments.queue
        raise ReaderDoesNotExist(
            f"Queue {queue} has no reader group {arguments.group!r}. `baton reader list {queue}` lists its groups."
        ) from None


def _run(server: Server, arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        return _list(server, arguments)
    if arguments.action == "read":
        return _read(server, arguments)
    path = _path(arguments)
    if arguments.action == "create":
        spec = {"name": arguments.group, "from": arguments.start or "start", "maxFailures": arguments.max_failures}
        spec["sessionSeconds"] = arguments.session
        if arguments.dead_letter_queue:
            spec["deadLetterQueue"] = arguments.dead_letter_queue
        shown = server.post(queue_path(arguments.queue, "readers"), spec)
        is_new = server.status != 200
        if not arguments.json:
            what = f"Reader group {arguments.group} of queue {arguments.queue}"
            print(f"{what} {'is created' if is_new else 'already exists, unchanged'}.")
        if arguments.start is not None and not is_new:
            move = f"baton reader seek {arguments.queue} {arguments.group} --to {arguments.start}"
            note(f"--from has no effect on a reader group that exists. To move the group, run `{move}`.")
    elif arguments.action == "show":
        shown = server.get(path)
    else:
        before = server.get(path)
        what = f"Reader group {arguments.group} of queue {arguments.queue}"
        lag = f"its lag is {plural(before['lagMessages'], 'message')}"
        if arguments.action == "delete":
            confirm(f"{what} will be deleted with its positions; {lag}.", yes=arguments.yes)
            server.call("DELETE", path)
            if arguments.json:
                print_json({"queue": arguments.queue, "group": arguments.group, "deleted": True})
            else:
                note(f"Deleted {what[0].lower()}{what[1:]}.")
            return 0
        where = {"to": arguments.to} if arguments.to else {}
        if arguments.position:
            where["positions"] = arguments.position
        to = arguments.to or ", ".join(arguments.position)
        confirm(f"{what} will continue at {to}; {lag} now.", yes=arguments.yes)
        shown = server.post(f"{path}:seek", where)
    if arguments.json:
        print_json(shown)
    else:
        _show(shown)
    return 0


def _path(arguments: argparse.Namespace) -> str:
    return queue_path(arguments.queue, f"readers/{quote(arguments.group, safe='')}")


def _list(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(queue_path(arguments.queue, "readers"))
    if arguments.json:
        print_json(found)
        return 0
    if not found["readers"]:
        note(f"Queue {arguments.queue} has no reader groups. `baton reader create` creates one.")
        return 0
    rows = [
        (
            each["name"],
            str(len(each["members"])),
            f"{each['lagMessages']:,}",
            duration(each["lagSeconds"]),
            each.get("deadLetterQueue", ""),
            moment(each["createdAtMs"]),
        )
        for each in found["readers"]
    ]
    print_table(("GROUP", "MEMBERS", "LAG", "LAG TIME", "DEAD LETTERS TO", "CREATED"), rows, right=("MEMBERS", "LAG"))
    return 0


def _show(reader: dict[str, Any]) -> None:
    print_fields(
        [
            ("group", reader["name"]),
            ("queue", reader["queue"]),
            ("lag", f"{plural(reader['lagMessages'], 'message')}, {duration(reader['lagSeconds'])}"),
            ("epoch", str(reader["epoch"])),
            ("session", duration(reader["sessionSeconds"])),
            ("dead letters to", reader.get("deadLetterQueue", "-")),
            ("after failures", str(reader["maxFailures"]) if reader.get("deadLetterQueue") else "-"),
            ("created", moment(reader["createdAtMs"])),
        ]
    )
    names = {shard: member["member"] for member in reader["members"] for shard in member["shards"]}
    rows = [
        (
            str(shard["shard"]),
            printable(names.get(shard["shard"], "")),
            shard["committed"],
            shard.get("last", ""),
            f"{shard['lagMessages']:,}",
            f"{shard['failures']} at {shard['failedPosition']}: {printable(shard.get('error', ''))}"
            if shard.get("failures")
            else "",
        )
        for shard in reader["shards"]
    ]
    print()
    print_table(("SHARD", "MEMBER", "COMMITTED", "NEWEST", "LAG", "FAILURES"), rows, right=("SHARD", "LAG"))


def _read(server: Server, arguments: argparse.Namespace) -> int:
    if arguments.group:
        messages = _read_group(server, arguments)
    else:
        messages, after = [], {"from": arguments.start}
        while after and len(messages) < arguments.limit:
            limit = min(arguments.limit - len(messages), PAGE_MAX)
            page = server.get(queue_path(arguments.queue, "history"), limit=str(limit), **after)
            messages += page["messages"]
            after = {"cursor": page["nextCursor"]} if page.get("nextCursor") else {}
    if arguments.json:
        print_json({"messages": messages})
        return 0
    if not messages:
        note("There are no retained messages after this place.")
        return 0
    rows = [
        (
            each["position"],
            moment(each["enteredAtMs"]),
            each.get("messageGroupId", ""),
            cut(body_text(each), BODY_WIDTH),
        )
        for each in messages
    ]
    print_table(("POSITION", "TIME", "GROUP", "BODY"), rows)
    return 0


def _read_group(server: Server, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    path = _path(arguments)
    member = f"baton-cli-{os.getpid()}"
    joined = server.post(f"{path}:join", {"member": member})
    who = {"member": member, "epoch": joined["epoch"]}
    try:
        limit = min(arguments.limit, PAGE_MAX)
        found = server.post(f"{path}:fetch", {**who, "shards": joined["shards"], "maxMessages": limit})
        messages: list[dict[str, Any]] = found["messages"]
        if not joined["shards"]:
            note(f"Other members of reader group {arguments.group} have all shards of the queue.")
        if arguments.commit and messages:
            last = {each["position"].partition(":")[0]: each["position"] for each in messages}
            server.post(f"{path}:commit", {**who, "positions": [*last.values()]})
    finally:
        server.post(f"{path}:leave", {"member": member})
    return messages

"""`baton message show|delete|retry|edit QUEUE MESSAGE`: one message, by its id."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import body_text, moment, print_fields, print_json, printable, safe_lines, style
from batonq.cli.send import encode_body, encode_message, parse_attributes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    show = add_action(actions, "show", "show where a message is, why it is not delivered, and its history")
    delete = add_action(actions, "delete", "delete a message")
    retry = add_action(actions, "retry", "deliver a delayed message now, or return a dead letter to its source queue")
    edit = add_action(actions, "edit", "change the body or the attributes of a message that no consumer holds")
    edit.add_argument("--body", help="the new body; JSON objects are stored as JSON")
    edit.add_argument("--text", action="store_true", help="store the body as text, even if it is JSON")
    edit.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="set an attribute; can be repeated"
    )
    edit.add_argument(
        "--remove-attribute", action="append", default=[], metavar="NAME", help="remove an attribute; can be repeated"
    )
    for action in (show, delete, retry, edit):
        action.add_argument("queue", metavar="QUEUE", help="name of the queue")
        action.add_argument("message", metavar="MESSAGE", help="id of the message")
        action.add_argument("--json", action="store_true", help="print JSON")
        if action is delete:
            add_yes_argument(action)
        add_connection_arguments(action)


def message_path(queue: str, message: str) -> str:
    return queue_path(queue, "messages", quote(message, safe=""))


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    return {"show": _show, "delete": _delete, "retry": _retry, "edit": _edit}[arguments.action](server, arguments)


def _show(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(message_path(arguments.queue, arguments.message))
    if arguments.json:
        print_json(found)
    else:
        print_message(found)
    return 0


def print_message(found: dict[str, Any]) -> None:
    """Everything about a message: where it is and why, its content, and its history."""
    print(style(f"message {found['messageId']}", "bold"))
    print_fields(_fields(found))
    print(style("body", "bold"))
    print(safe_lines(body_text(found)))
    history = found.get("history", [])
    if history:
        print(style("history", "bold"))
        for event in history:
            print(f"{moment(event['atMs'])}  {printable(_event(event))}")
    if found.get("historyNote"):
        print(printable(found["historyNote"]))


def _fields(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("where", found.get("where", "")),
        ("why", found.get("why", "")),
        ("queue", found.get("queue", "")),
        ("state", found["state"]),
        ("sequence", str(found["sequence"])),
        ("current id", found["currentId"] if found["currentId"] != found["messageId"] else ""),
        ("sent", moment(found["sentAtMs"])),
        ("receives", str(found["receiveCount"])),
        ("holder", found.get("holder", "")),
        ("until", moment(found.get("untilMs"))),
        ("expires", moment(found["expiresAtMs"])),
        ("group", found.get("messageGroupId", "")),
        ("deduplication key", found.get("deduplicationKey", "")),
        ("priority", str(found["priority"]) if "priority" in found else ""),
        ("traceparent", found.get("traceparent", "")),
        ("problem", found.get("problem", "")),
    ]
    rows += [(f"attribute {name}", str(value)) for name, value in sorted(found.get("attributes", {}).items())]
    for title, name in (("dead letter", "deadLetter"), ("last failure", "lastFailure")):
        part = found.get(name)
        if part:
            why = ": ".join(filter(None, (part.get("errorClass"), part.get("reason")))) or "no reason was given"
            source = f"from {part['queue']}, " if part.get("queue") else ""
            rows.append((title, f"{source}{why}"))
    return [(name, printable(value)) for name, value in rows if value]


def _event(event: dict[str, Any]) -> str:
    parts = [str(event["event"])]
    if event.get("receiveCount"):
        parts.append(f"receive {event['receiveCount']}")
    if event.get("holder"):
        parts.append(f"by {event['holder']}")
    if event.get("queue"):
        parts.append(f"in {event['queue']}")
    if event.get("toQueue"):
        parts.append(f"to {event['toQueue']}")
    if event.get("untilMs"):
        parts.append(f"until {moment(event['untilMs'])}")
    why = ": ".join(filter(None, (event.get("errorClass"), event.get("reason"), event.get("detail"))))
    return ", ".join(parts) + (f" ({why})" if why else "")


def _delete(server: Server, arguments: argparse.Namespace) -> int:
    path = message_path(arguments.queue, arguments.message)
    found = server.get(path)
    held = f", which {found['holder'] or 'a consumer'} is processing" if found["state"] == "IN_FLIGHT" else ""
    confirm(f"This deletes 1 message, {found['messageId']}{held}, of queue {arguments.queue}.", yes=arguments.yes)
    server.call("DELETE", path)
    if arguments.json:
        print_json({"queue": arguments.queue, "messageId": found["messageId"], "deleted": True})
    else:
        print(f"Message {found['messageId']} is deleted.")
    return 0


def _retry(server: Server, arguments: argparse.Namespace) -> int:
    answer = server.post(message_path(arguments.queue, arguments.message) + ":retry")
    _changed(arguments, answer, f"can be received now. {answer.get('where', '')}".rstrip())
    return 0


def _edit(server: Server, arguments: argparse.Namespace) -> int:
    body = ""
    if arguments.body is not None:
        body = encode_body(arguments.body.encode("utf-8", "surrogateescape"), text=arguments.text)
    changes: dict[str, Any] = {}
    if arguments.attribute:
        changes["setAttributes"] = parse_attributes(arguments.attribute)
    if arguments.remove_attribute:
        changes["removeAttributes"] = arguments.remove_attribute
    if not changes and not body:
        raise WrongUsage("Nothing to change. Use --body, --attribute or --remove-attribute.")
    answer = server.call("PATCH", message_path(arguments.queue, arguments.message), encode_message(body, changes))
    _changed(arguments, answer, "is changed")
    return 0


def _changed(arguments: argparse.Namespace, answer: Any, what: str) -> None:
    if arguments.json:
        print_json(answer)
    else:
        print(printable(f"Message {arguments.message} {what.removesuffix('.')}."))

"""`baton peek QUEUE`: show a queue's messages with their state and the reason why each is not delivered. It changes
nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import body_text, cut, moment, note, print_json, print_table, printable

HEAD = ("SEQUENCE", "STATE", "RECEIVED", "SENT", "MESSAGE ID", "BODY", "WHY")
BODY_WIDTH = 32
STATES = ("DELAYED", "VISIBLE", "IN_FLIGHT", "OWED", "DEAD")
LIMIT_MAX = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument("--after", type=int, default=0, help="show messages after this sequence number (default 0)")
    parser.add_argument(
        "--limit", type=int, default=10, help=f"maximum number of messages, 1 to {LIMIT_MAX} (default 10)"
    )
    add_filter_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print all details of each message as JSON")
    add_connection_arguments(parser)


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=str.upper, choices=STATES, metavar="STATE", help=f"only {', '.join(STATES)}")
    parser.add_argument("--text", metavar="TEXT", help="only messages whose body contains this text")
    parser.add_argument("--group", metavar="ID", help="only messages of this message group")
    parser.add_argument("--error-class", metavar="NAME", help="only messages whose last error has this class")
    parser.add_argument("--holder", metavar="NAME", help="only messages that this consumer holds")


def filters(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters of the REST API for the flags of `add_filter_arguments`."""
    return {
        "state": arguments.state,
        "text": arguments.text,
        "group": arguments.group,
        "errorClass": arguments.error_class,
        "holder": arguments.holder,
    }


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit <= LIMIT_MAX:
        raise WrongUsage(f"--limit must be from 1 to {LIMIT_MAX}, not {arguments.limit}.")
    server = connect(arguments)
    found = look(server, arguments.queue, after=arguments.after, limit=arguments.limit, **filters(arguments))
    if arguments.json:
        print_json(found)
        return 0
    messages = found["messages"]
    if messages:
        print_table(HEAD, [row(message) for message in messages], right=("SEQUENCE", "RECEIVED"))
    elif any(filters(arguments).values()):
        examined = f" among the {found['examined']:,} examined" if "examined" in found else ""
        note(f"Queue {arguments.queue} has no such message{examined}.")
    else:
        note(f"Queue {arguments.queue} has no messages{f' after {arguments.after}' if arguments.after else ''}.")
    if "nextAfter" in found:
        note(f"There are more messages: --after {found['nextAfter']}")
    return 0


def look(server: Server, queue: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.get(queue_path(queue, "messages"), **query)
    return found


def row(message: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(message["sequence"]),
        message["state"],
        str(message["receiveCount"]),
        moment(message["sentAtMs"]),
        message["messageId"],
        start_of_body(message),
        message.get("why", ""),
    )


def start_of_body(message: dict[str, Any], width: int = BODY_WIDTH) -> str:
    if message.get("problem"):
        return "(cannot be read)"
    if "bodyBase64" in message:
        return f"({message.get('bodyBytes', len(message['bodyBase64']) * 3 // 4)} bytes)"
    return cut(printable(body_text(message)[: width + 1]), width)

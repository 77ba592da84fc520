"""`baton receive QUEUE…`: receive messages from one or several queues, and acknowledge them with --ack."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import FAILED, WrongUsage
from batonq.cli.output import body_text, moment, note, print_json, printable, safe_lines, style
from batonq.cli.quantities import parse_duration_s
from batonq.quantities import plural

MESSAGES_MAX = 1_000
WAIT_MAX_S = 20
ANSWER_EXTRA_S = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "queues", metavar="QUEUE", nargs="+", help="name of the queue; several names or patterns: orders-* emails"
    )
    parser.add_argument(
        "--max", type=int, default=1, metavar="N", help=f"maximum number of messages, 1 to {MESSAGES_MAX:,} (default 1)"
    )
    parser.add_argument(
        "--wait", type=parse_duration_s, default=0.0, metavar="TIME", help="wait for a message, up to 20s (default 0s)"
    )
    parser.add_argument(
        "--visibility", type=parse_duration_s, metavar="TIME", help="duration of the lease (default: the queue's)"
    )
    parser.add_argument("--consumer", metavar="NAME", help="name to show as the holder of the messages")
    parser.add_argument("--ack", action="store_true", help="acknowledge the messages once they are printed")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--body-only", action="store_true", help="print only the bodies, one per line")
    form.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.max <= MESSAGES_MAX:
        raise WrongUsage(f"--max must be from 1 to {MESSAGES_MAX:,}, not {arguments.max}.")
    if arguments.wait > WAIT_MAX_S:
        raise WrongUsage(f"--wait must be at most {WAIT_MAX_S}s, not {arguments.wait:g}s.")
    asked: dict[str, Any] = {"maxMessages": arguments.max, "waitSeconds": arguments.wait}
    if arguments.visibility is not None:
        asked["visibilityTimeoutSeconds"] = arguments.visibility
    if arguments.consumer:
        asked["consumer"] = arguments.consumer
    server = connect(arguments)
    names: list[str] = arguments.queues
    if len(names) == 1 and not set("*?") & set(names[0]):
        path = queue_path(names[0], "messages:receive")
    else:
        path, asked["queues"] = "/v1/messages:receive", names
    found = server.post(path, asked, timeout_s=arguments.wait + ANSWER_EXTRA_S)
    messages = found["messages"]
    if arguments.json:
        print_json(found)
    elif not messages:
        waited = f" after {arguments.wait:g}s" if arguments.wait else "; --wait 20s waits for one"
        subject = f"Queue {names[0]} has" if len(names) == 1 else "These queues have"
        if len(names) == 1 and (held_back := _held_back(server, names[0])):
            note(held_back)
        else:
            note(f"{subject} no visible message{waited}.")
    for place, message in enumerate(messages):
        if arguments.body_only:
            print(body_text(message))
        elif not arguments.json:
            _print(message, first=place == 0, with_receipt=not arguments.ack)
    sys.stdout.flush()
    return _ack(server, messages) if arguments.ack and messages else 0


def _held_back(server: Server, name: str) -> str:
    """Why a queue delivers nothing although it may have messages; empty if nothing is set so."""
    if set("*?") & set(name):
        return ""
    queue = server.get(queue_path(name))
    if queue["paused"] in ("delivery", "both"):
        return f"Delivery of queue {name} is paused; `baton queue resume {name}` resumes it."
    if queue.get("onlyGroup") or queue["minimumPriority"]:
        return f"Queue {name} delivers only some messages, and none of those is visible: see `baton explain {name}`."
    return ""


def _print(message: dict[str, Any], *, first: bool, with_receipt: bool) -> None:
    if not first:
        print()
    group = f"  group {printable(message['messageGroupId'])}" if message.get("messageGroupId") else ""
    where = f"  queue {message['queue']}  sequence {message['sequence']}{group}"
    print(style(f"message {message['messageId']}", "bold") + where)
    until = "" if not with_receipt else f"  leased until {moment(message['deadlineMs'])} UTC"
    print(f"sent {moment(message['sentAtMs'])} UTC  receive {message['receiveCount']}{until}")
    for name, value in sorted(message.get("attributes", {}).items()):
        print(f"{printable(name)}: {printable(str(value))}")
    dead = message.get("deadLetter")
    if dead:
        why = ": ".join(filter(None, (dead.get("errorClass"), dead.get("reason"))))
        print(f"dead letter of {dead.get('queue', '')}: {printable(why) or 'no reason was given'}")
    if with_receipt:
        print(f"receipt {message['receiptHandle']}")
    print()
    print(safe_lines(body_text(message)))


def _ack(server: Server, messages: list[dict[str, Any]]) -> int:
    receipts: dict[str, list[str]] = {}
    for message in messages:
        receipts.setdefault(message["queue"], []).append(message["receiptHandle"])
    failed = []
    for queue, handles in receipts.items():
        results = server.post(queue_path(queue, "messages:ack"), {"receiptHandles": handles})["results"]
        failed += [result["error"] for result in results if "error" in result]
    for error in failed:
        note(f"baton: a message was not acknowledged: {error['detail']}")
    if not failed:
        note(f"{plural(len(messages), 'message')} acknowledged.")
    return FAILED if failed else 0

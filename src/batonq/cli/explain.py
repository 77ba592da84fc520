"""`baton explain QUEUE [MESSAGE]`: why the messages of a queue wait, or why one message is not delivered."""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.connection import add_connection_arguments, connect, queue_path
from batonq.cli.message import message_path, print_message
from batonq.cli.output import duration, print_fields, print_json, print_table, printable, rate, style


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help="id of a message (default: the whole queue)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    found: dict[str, Any] = {"queue": server.get(queue_path(arguments.queue) + ":explain")}
    if arguments.message:
        found["message"] = server.get(message_path(arguments.queue, arguments.message))
    if arguments.json:
        print_json(found)
        return 0
    if arguments.message:
        print_message(found["message"])
        if found["message"]["state"] == "VISIBLE":
            print(style("the queue", "bold"))
            print(printable(found["queue"]["text"]))
        return 0
    _print_queue(found["queue"])
    return 0


def _print_queue(found: dict[str, Any]) -> None:
    print(style(found["queue"], "bold"))
    for finding in found["findings"]:
        print(f"{style(finding['cause'], 'bold')}: {printable(finding['text'])}")
        print(f"  {printable(finding['action'])}")
    print(style("figures", "bold"))
    now, before = found["now"], found.get("before")
    rows = [
        ("visible", f"{found['visible']:,}"),
        ("in flight", f"{found['inFlight']:,}"),
        ("delayed", f"{found['delayed']:,}"),
        ("oldest message", _age(found["oldestAgeSeconds"])),
        ("oldest visible message", _age(found["oldestVisibleAgeSeconds"])),
        ("consumers", f"{found['consumers']:,} ({found['waitingReceives']:,} waiting receives)"),
        ("per second", _flow(now)),
        ("per second before", _flow(before) if before else ""),
    ]
    print_fields([(name, text) for name, text in rows if text])
    if found["groups"]:
        print(style("busiest groups", "bold"))
        print_table(
            ("GROUP", "SHARE OF SENDS", "WAITING"),
            [
                (printable(group["messageGroupId"]), f"{group['share']:.0%}", f"{group['waiting']:,}")
                for group in found["groups"]
            ],
            right=("SHARE OF SENDS", "WAITING"),
        )


def _age(seconds: float) -> str:
    return duration(seconds) if seconds else "-"


def _flow(flow: dict[str, Any]) -> str:
    names = (("sent", "sent"), ("received", "received"), ("acked", "acknowledged"), ("retried", "returned"))
    text = ", ".join(f"{rate(flow[f'{field}PerSecond'])} {word}" for field, word in names)
    if flow.get("handlingP50Ms") is not None:
        text += f"; {duration(flow['handlingP50Ms'] / 1000)} per message"
    return text

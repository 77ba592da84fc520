"""`baton alarms list|ack|test`."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.connection import Server, add_connection_arguments, connect
from batonq.cli.exit_codes import DONE, FAILED
from batonq.cli.output import moment, note, print_json, print_table, printable

HEAD = ("ALARM", "SEVERITY", "SINCE", "COUNT", "STATE", "TEXT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list active alarms")
    listing.add_argument("--history", action="store_true", help="include alarms that have ended")
    ack = add_action(actions, "ack", "acknowledge an alarm: it stays active, and is marked as being worked on")
    ack.add_argument("alarm", metavar="ALARM", help="id of the alarm")
    ack.add_argument("--note", metavar="TEXT", help="a note for others")
    test = add_action(actions, "test", "send a test event to the webhooks")
    for action in (listing, ack, test):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    if arguments.action == "ack":
        body = {"note": arguments.note} if arguments.note else {}
        answer = server.post(f"/v1/alarms/{quote(arguments.alarm, safe='')}:acknowledge", body)
        _report(arguments, answer, f"Alarm {arguments.alarm} is acknowledged.")
        return 0
    if arguments.action == "test":
        return _test(server, arguments)
    found = server.get("/v1/alarms", history=True if arguments.history else None)
    if arguments.json:
        print_json(found)
        return 0
    alarms = [*found["alarms"], *found.get("history", [])]
    if not alarms:
        note("There are no active alarms." if not arguments.history else "There are no alarms.")
        return 0
    print_table(HEAD, [_row(alarm) for alarm in alarms], right=("COUNT",))
    return 0


def _report(arguments: argparse.Namespace, answer: Any, text: str) -> None:
    if arguments.json:
        print_json(answer)
    else:
        print(text)


def _test(server: Server, arguments: argparse.Namespace) -> int:
    answer = server.post("/v1/alarms:test")
    failed = [result for result in answer["results"] if not result["delivered"]]
    if arguments.json:
        print_json(answer)
    else:
        for result in answer["results"]:
            problem = printable(result.get("problem", "no reason is known"))
            print(f"{result['webhook']}  {'delivered' if result['delivered'] else f'failed: {problem}'}")
    return FAILED if failed else DONE


def _row(alarm: dict[str, Any]) -> tuple[str, ...]:
    remedy = f" {alarm['remedy']}" if alarm.get("remedy") else ""
    return (
        alarm["alarm"],
        alarm["severity"],
        moment(alarm["raisedAtMs"]),
        str(alarm.get("count", 1)),
        _state(alarm),
        alarm["text"] + remedy,
    )


def _state(alarm: dict[str, Any]) -> str:
    if alarm.get("endedAtMs"):
        return "ended"
    if alarm.get("acknowledgedAtMs"):
        return f"acknowledged by {alarm['acknowledgedBy']}" if alarm.get("acknowledgedBy") else "acknowledged"
    return "active"

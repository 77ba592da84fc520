"""`baton dlq list|show|delete`: dead letters, grouped by their error."""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.jobs import report, report_watched, watch
from batonq.cli.output import cut, moment, note, print_json, print_table, printable, style
from batonq.cli.peek import start_of_body
from batonq.cli.queue import age_of, list_queues
from batonq.cli.redrive import add_selection_arguments, selection
from batonq.quantities import plural

REASON_WIDTH = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list the queues with dead letters, or the groups of one queue")
    listing.add_argument("queue", metavar="QUEUE", nargs="?", help="list the groups of this queue, as `dlq show` does")
    show = add_action(actions, "show", "show the dead letters of a queue, grouped by error, with examples")
    delete = add_action(actions, "delete", "delete dead letters")
    delete.add_argument("--all", action="store_true", help="delete all messages of the queue")
    for action in (show, delete):
        action.add_argument("queue", metavar="QUEUE", help="name of the dead-letter queue")
    add_selection_arguments(delete)
    add_yes_argument(delete)
    for action in (listing, show, delete):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    return {"list": _list, "show": _show, "delete": _delete}[arguments.action](server, arguments)


def _list(server: Server, arguments: argparse.Namespace) -> int:
    if arguments.queue:
        return _show(server, arguments)
    found = list_queues(server)
    queues = [queue for queue in found["queues"] if _dead(queue)]
    if arguments.json:
        print_json({**found, "total": len(queues), "queues": queues})
        return 0
    if not queues:
        note("There are no dead letters.")
        return 0
    rows = [(queue["name"], str(_dead(queue)), age_of(queue), ", ".join(queue["sources"])) for queue in queues]
    print_table(("QUEUE", "DEAD LETTERS", "OLDEST", "FROM"), rows, right=("DEAD LETTERS", "OLDEST"))
    return 0


def _dead(queue: dict[str, Any]) -> int:
    """Everything in a dead-letter queue, and in any other queue the messages that are dead there."""
    own = int(queue["dead"])
    return own + queue["visible"] + queue["inFlight"] + queue["delayed"] if queue["isDeadLetterQueue"] else own


def _show(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(queue_path(arguments.queue, "dead-letters"))
    if arguments.json:
        print_json(found)
        return 0
    if not found["groups"]:
        note(f"Queue {arguments.queue} has no dead letters.")
        return 0
    sources = f" from {', '.join(found['sources'])}" if found.get("sources") else ""
    print(style(f"{plural(found['total'], 'dead letter')} in {arguments.queue}{sources}", "bold"))
    if not found["complete"]:
        print(f"Only the first {found['examined']:,} were examined.")
    for group in found["groups"]:
        _print_group(group)
    if found.get("groupsOmitted"):
        print(f"{plural(found['groupsOmitted'], 'smaller group')} are not shown.")
    print()
    print(f"Redrive a group:  baton redrive {arguments.queue} --group GROUP --dry-run")
    print(f"Delete a group:   baton dlq delete {arguments.queue} --group GROUP")
    return 0


def _print_group(group: dict[str, Any]) -> None:
    error = (
        printable(": ".join(filter(None, (group.get("errorClass"), group.get("reason"))))) or "no error was recorded"
    )
    print()
    print(style(f"{group['count']:,} × {cut(error, REASON_WIDTH)}", "bold"))
    print(f"  group {group['group']}  source {group.get('sourceQueue') or 'unknown'}  ", end="")
    print(f"first {moment(group['firstAtMs'])}  last {moment(group['lastAtMs'])}")
    for message in group.get("examples", []):
        print(f"  {message['messageId']}  {start_of_body(message, REASON_WIDTH)}")


def _delete(server: Server, arguments: argparse.Namespace) -> int:
    wanted = selection(arguments)
    if bool(wanted or arguments.max) == arguments.all:
        raise WrongUsage(
            f"Say which messages of {arguments.queue} to delete, for example --group GROUP from `baton dlq show "
            f"{arguments.queue}`, or --all."
        )
    body: dict[str, Any] = {"filter": wanted} if wanted else {}
    if arguments.max:
        body["maxMessages"] = arguments.max
    path = queue_path(arguments.queue) + ":delete-messages"
    tried = server.post(path, {**body, "dryRun": True})
    if arguments.dry_run:
        return report(arguments, tried)
    confirm(f"This deletes {plural(tried['matched'], 'message')} of queue {arguments.queue}.", yes=arguments.yes)
    return report_watched(arguments, watch(server, server.post(path, body)))

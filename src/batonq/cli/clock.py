"""`baton clock advance 30s`: move a development server's clock forward, so that tests do not have to sleep."""

from __future__ import annotations

import argparse

from batonq.cli.actions import add_action
from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.output import print_json
from batonq.cli.quantities import parse_duration_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    advance = add_action(actions, "advance", "move the clock forward and run all work that is due by then")
    advance.add_argument("duration", type=parse_duration_s, help="duration: 30s, 5m, 2h, 1d, 250ms")
    advance.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(advance)


def run(arguments: argparse.Namespace) -> int:
    answer = connect(arguments).post("/_baton/clock/advance", {"seconds": arguments.duration})
    if arguments.json:
        print_json({"nowMs": answer["now_ms"]})
    else:
        print(f"The server's clock is now {answer['now']}.")
    return 0

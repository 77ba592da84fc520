"""`baton clock advance 30s`: move a development server's clock forward, so that tests do not have to sleep."""

from __future__ import annotations

import argparse

from batonq.cli.actions import add_action
from batonq.cli.admin import call
from batonq.cli.quantities import parse_duration_s

DEFAULT_URL = "http://127.0.0.1:9324"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    advance = add_action(actions, "advance", "move the clock forward and run all work that is due by then")
    advance.add_argument("duration", type=parse_duration_s, help="duration: 30s, 5m, 2h, 1d, 250ms")
    advance.add_argument("--url", default=DEFAULT_URL, help=f"URL of the server (default {DEFAULT_URL})")


def run(arguments: argparse.Namespace) -> int:
    answer = call(arguments.url, "/_baton/clock/advance", {"seconds": arguments.duration})
    print(f"The server's clock is now {answer['now']}.")
    return 0

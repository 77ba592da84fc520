"""`baton whoami`: who the server takes this command for, and where the credentials come from."""

from __future__ import annotations

import argparse

from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.output import print_fields, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    caller = server.get("/v1/caller")
    if arguments.json:
        print_json(caller)
        return 0
    rows = [
        ("server", f"{server.url} ({server.target.origin})"),
        ("account", caller["account"]),
        ("key", caller["key"]),
        ("name", caller["name"]),
        ("role", caller["role"]),
        ("may change queues and messages", _yes(caller["role"] != "read")),
        ("may see the whole server", _yes(caller["operator"])),
        ("may change the server itself", _yes(caller["operator"] and caller["role"] == "admin")),
    ]
    print_fields([(name, value) for name, value in rows if value])
    return 0


def _yes(true: bool) -> str:
    return "yes" if true else "no"

"""`baton export`: write the definitions of queues, reader groups, topics and schedules as JSON, for `baton import`."""

from __future__ import annotations

import argparse
import os

from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import json_text, note, print_json
from batonq.quantities import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="file to write (default: standard output)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print JSON on one line; without it, one field per line")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file
    if path and os.path.exists(path) and not arguments.force:
        raise WrongUsage(f"The file {path} already exists. Choose another name, or use --force to replace it.")
    found = connect(arguments).get("/v1/definitions")
    text = json_text(found, indent=2)
    if not path:
        if arguments.json:
            print_json(found)
        else:
            print(text)
        return 0
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as problem:
        raise WrongUsage(f"{path} cannot be written: {problem.strerror}.") from None
    counts = [plural(len(found["queues"]), "queue")]
    for name, one in (("readers", "reader group"), ("topics", "topic"), ("schedules", "schedule")):
        if found.get(name):
            counts.append(plural(len(found[name]), one))
    listed = " and ".join([", ".join(counts[:-1]), counts[-1]] if len(counts) > 1 else counts)
    note(f"The definitions of {listed} were written to {path}.")
    return 0

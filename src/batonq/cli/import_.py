"""`baton import FILE`: create and change queues and topics as a file of definitions says. Nothing is deleted."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.exit_codes import DONE, PROBLEMS_FOUND, WrongUsage
from batonq.cli.output import note, print_json
from batonq.quantities import plural

FILE_BYTES_MAX = 64 << 20
PARTS = (
    ("readers", "reader group"),
    ("topics", "topic"),
    ("subscriptions", "subscription"),
    ("schedules", "schedule"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file of definitions from `baton export`; - is standard input")
    parser.add_argument("--dry-run", action="store_true", help="only report what would change")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    definitions = _read(arguments.file)
    server = connect(arguments)
    query = {"dryRun": True} if arguments.dry_run else {}
    answer = server.call("PUT", "/v1/definitions", definitions, query=query)
    if arguments.json:
        print_json(answer)
    else:
        _print(answer, dry_run=arguments.dry_run)
    return PROBLEMS_FOUND if answer["problems"] else DONE


def _read(path: str) -> Any:
    try:
        if path == "-":
            return json.loads(sys.stdin.read(FILE_BYTES_MAX))
        with open(path, encoding="utf-8") as file:
            return json.loads(file.read(FILE_BYTES_MAX))
    except OSError as problem:
        raise WrongUsage(f"{path} cannot be read: {problem.strerror}.") from None
    except ValueError as problem:
        raise WrongUsage(f"{path} is not a file of definitions: it is not JSON ({problem}).") from None


def _print(answer: dict[str, Any], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for name in answer["created"]:
        print(f"{name}  {would}created")
    for change in answer["changed"]:
        print(f"{change['name']}  {would}changed: {', '.join(change['fields'])}")
    for kind, what in PARTS:
        for name in answer.get(f"{kind}Created", []):
            print(f"{what} {name}  {would}created")
        for change in answer.get(f"{kind}Changed", []):
            if isinstance(change, str):
                print(f"{what} {change}  {would}changed")
            else:
                print(f"{what} {change['name']}  {would}changed: {', '.join(change['fields'])}")
    for problem in answer["problems"]:
        note(f"baton: {problem if isinstance(problem, str) else json.dumps(problem, ensure_ascii=False)}")
    if answer["problems"] and not dry_run:
        note("baton: nothing was changed. Correct the file, and import it again.")
        return
    print(
        f"{plural(len(answer['created']), 'queue')} {would}created, {len(answer['changed']):,} {would}changed, "
        f"{answer.get('unchanged', 0):,} unchanged."
    )

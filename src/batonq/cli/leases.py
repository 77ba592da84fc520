"""What `baton ack`, `baton nack` and `baton extend` have in common: receipts, and one result per receipt."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, queue_path
from batonq.cli.exit_codes import FAILED, WrongUsage
from batonq.cli.output import note, print_json
from batonq.quantities import plural

RECEIPTS_MAX = 1_000
RECEIPT_SHOWN = 24


def add_receipt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument(
        "receipts",
        metavar="RECEIPT",
        nargs="+",
        help=f"receipts from `baton receive`, at most {RECEIPTS_MAX:,}; -: one per line of standard input",
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def receipts_of(arguments: argparse.Namespace) -> list[str]:
    given = list(arguments.receipts)
    if given == ["-"]:
        given = [line.strip() for line in sys.stdin if line.strip()]
    if not 1 <= len(given) <= RECEIPTS_MAX:
        raise WrongUsage(f"Give 1 to {RECEIPTS_MAX:,} receipts, not {len(given):,}.")
    return given


def apply(server: Server, arguments: argparse.Namespace, verb: str, body: dict[str, Any], done: str) -> int:
    """Send a batch for `arguments.receipts` and report what happened to each. `done` follows "2 messages"."""
    receipts: list[str] = arguments.receipts
    results = server.post(queue_path(arguments.queue, f"messages:{verb}"), body)["results"]
    failed = [(receipt, each["error"]) for receipt, each in zip(receipts, results, strict=True) if "error" in each]
    good = len(receipts) - len(failed)
    if arguments.json:
        print_json({"queue": arguments.queue, "done": good, "failed": len(failed), "results": results})
    elif good:
        print(f"{plural(good, 'message')} {done}.")
    for receipt, error in failed:
        note(f"baton: receipt {receipt[:RECEIPT_SHOWN]}…: {error['detail']}")
    return FAILED if failed else 0

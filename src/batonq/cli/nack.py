"""`baton nack QUEUE RECEIPT…`: return received messages to their queue as failed."""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.connection import connect
from batonq.cli.leases import add_output_arguments, add_receipt_arguments, apply, receipts_of
from batonq.cli.quantities import parse_duration_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_receipt_arguments(parser)
    parser.add_argument(
        "--delay", type=parse_duration_s, metavar="TIME", help="delay before the next delivery (default: retry policy)"
    )
    parser.add_argument("--reason", help="why the message failed; shown by `baton peek` and kept with a dead letter")
    parser.add_argument("--error-class", metavar="NAME", help="class of the error, by which dead letters are grouped")
    parser.add_argument("--dead-letter", action="store_true", help="move the message to the dead-letter queue at once")
    parser.add_argument(
        "--untried", action="store_true", help="do not count this receive; the message was not processed"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    arguments.receipts = receipts_of(arguments)
    fields = {
        "delaySeconds": arguments.delay,
        "reason": arguments.reason,
        "errorClass": arguments.error_class,
        "deadLetter": arguments.dead_letter or None,
        "untried": arguments.untried or None,
    }
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    entries = [{"receiptHandle": receipt, **given} for receipt in arguments.receipts]
    done = "returned as failed" if not arguments.dead_letter else "dead-lettered"
    return apply(connect(arguments), arguments, "nack", {"messages": entries}, done)

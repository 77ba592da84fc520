"""`baton extend QUEUE RECEIPT… --by 60s`: extend the leases of received messages, or end them with --by 0s."""

from __future__ import annotations

import argparse

from batonq.cli.connection import connect
from batonq.cli.leases import add_output_arguments, add_receipt_arguments, apply, receipts_of
from batonq.cli.output import duration
from batonq.cli.quantities import parse_duration_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_receipt_arguments(parser)
    parser.add_argument(
        "--by",
        type=parse_duration_s,
        required=True,
        metavar="TIME",
        help="time from now until the lease ends; 0s makes the message visible at once",
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    arguments.receipts = receipts_of(arguments)
    entries = [{"receiptHandle": receipt, "visibilityTimeoutSeconds": arguments.by} for receipt in arguments.receipts]
    done = f"leased for {duration(arguments.by)} from now" if arguments.by else "made visible"
    return apply(connect(arguments), arguments, "change-visibility", {"messages": entries}, done)

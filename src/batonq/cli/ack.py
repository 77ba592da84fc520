"""`baton ack QUEUE RECEIPT…`: acknowledge received messages, which deletes them."""

from __future__ import annotations

import argparse

from batonq.cli.connection import connect
from batonq.cli.leases import add_output_arguments, add_receipt_arguments, apply, receipts_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_receipt_arguments(parser)
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    arguments.receipts = receipts_of(arguments)
    return apply(connect(arguments), arguments, "ack", {"receiptHandles": arguments.receipts}, "acknowledged")

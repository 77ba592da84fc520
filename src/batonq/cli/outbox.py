"""`baton outbox init`, `relay`, `status`, `retry`, `prune`: the outbox of an application's database."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

from batonq.cli.actions import add_action
from batonq.cli.quantities import parse_duration_s
from batonq.errors import InvalidInput
from batonq.outbox.schema import INBOX, OUTBOX
from batonq.outbox.source import Lag, Source

if TYPE_CHECKING:
    from batonq.outbox.relay import Relay

DEFAULT_URL = "http://127.0.0.1:9324"
METRICS = (
    ("baton_outbox_waiting_rows", "waiting", "Rows that are committed and not published."),
    ("baton_outbox_oldest_waiting_seconds", "oldest_s", "Age of the oldest row that is not published."),
    ("baton_outbox_in_doubt_rows", "in_doubt", "Waiting rows in a batch that was begun."),
    ("baton_outbox_refused_rows", "refused", "Rows that a queue refused for good."),
    ("baton_outbox_published_rows", "published", "Rows that were published and not pruned."),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    init = add_action(actions, "init", "make the tables of outbox and inbox where they are missing")
    init.add_argument("--inbox", default=INBOX, help=f"the inbox's table (default {INBOX})")
    relay = add_action(actions, "relay", "publish what is committed in the outbox, until it is stopped")
    relay.add_argument("--url", default=None, help=f"the Baton to publish to (default BATON_URL, or {DEFAULT_URL})")
    relay.add_argument(
        "--sqs",
        metavar="ENDPOINT",
        nargs="?",
        const="",
        help="publish by the SQS protocol instead, with boto3's settings",
    )
    relay.add_argument("--cdc", action="store_true", help="read PostgreSQL's write-ahead log instead of the table")
    relay.add_argument(
        "--batch", type=int, default=500, metavar="N", help="rows published at a time (default 500, at most 1000)"
    )
    relay.add_argument(
        "--poll", type=parse_duration_s, default=1.0, metavar="TIME", help="look at least this often (default 1s)"
    )
    relay.add_argument(
        "--prune-after", type=parse_duration_s, metavar="TIME", help="delete rows so long after they were published"
    )
    relay.add_argument(
        "--once", action="store_true", help="end when no more can be published; exit code 1 if rows are left"
    )
    status = add_action(actions, "status", "show how far behind publishing is")
    status.add_argument("--format", choices=("text", "json", "prometheus"), default="text", help="default text")
    retry = add_action(actions, "retry", "try rows again that a queue has refused")
    retry.add_argument("ids", nargs="*", type=int, help="their ids (default: all of them)")
    prune = add_action(actions, "prune", "delete published rows; never those that are not published")
    prune.add_argument(
        "--older-than", type=parse_duration_s, required=True, metavar="TIME", help="published so long ago: 7d, 12h"
    )
    for action in (init, relay, status, retry, prune):
        database = action.add_mutually_exclusive_group(required=True)
        database.add_argument("--dsn", help="the PostgreSQL database: postgresql://… or host=… dbname=…")
        database.add_argument("--sqlite", metavar="FILE", help="the SQLite database")
        action.add_argument("--table", default=OUTBOX, help=f"the outbox's table (default {OUTBOX})")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "init":
        return _init(arguments)
    source = _source(arguments)
    try:
        if arguments.action == "relay":
            return _relay(arguments, source)
        if arguments.action == "status":
            print(_shown(source.lag(), arguments.format))
        elif arguments.action == "retry":
            print(f"{source.retry(arguments.ids)} rows will be tried again.")
        else:
            total = 0
            while pruned := source.prune(arguments.older_than):
                total += pruned
            print(f"{total} rows were deleted.")
    finally:
        source.close()
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from batonq.outbox.writing import create_tables

    connection: Any
    if arguments.sqlite:
        connection = sqlite3.connect(arguments.sqlite)
    else:
        from batonq.databases import load_psycopg

        psycopg = load_psycopg()
        try:
            connection = psycopg.connect(arguments.dsn)
        except psycopg.Error as problem:
            raise InvalidInput(f"The database cannot be reached: {problem}") from None
    try:
        create_tables(connection, table=arguments.table, inbox=arguments.inbox)
        connection.commit()
    finally:
        connection.close()
    print(f"The tables of {arguments.table} and {arguments.inbox} are there.")
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.sqlite:
        if getattr(arguments, "cdc", False):
            raise InvalidInput("--cdc reads PostgreSQL's log; SQLite has none to read.")
        from batonq.outbox.sqlite import SqliteSource

        return SqliteSource(arguments.sqlite, table=arguments.table)
    if getattr(arguments, "cdc", False):
        from batonq.outbox.cdc import StreamSource

        return StreamSource(arguments.dsn, table=arguments.table)
    from batonq.outbox.postgres import PostgresSource

    return PostgresSource(arguments.dsn, table=arguments.table)


def _relay(arguments: argparse.Namespace, source: Source) -> int:
    from batonq.outbox.publishers import BatonPublisher, Publisher, SqsPublisher
    from batonq.outbox.relay import Relay

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    publisher: Publisher
    if arguments.sqs is not None:
        publisher = SqsPublisher(endpoint_url=arguments.sqs or None)
    else:
        publisher = BatonPublisher(
            arguments.url or os.environ.get("BATON_URL") or DEFAULT_URL,
            access_key=os.environ.get("BATON_ACCESS_KEY_ID"),
            secret_key=os.environ.get("BATON_SECRET_ACCESS_KEY"),
        )
    relay = Relay(source, publisher, batch=arguments.batch, poll=arguments.poll, prune_after=arguments.prune_after)
    try:
        if arguments.once:
            return _relay_once(relay, source)
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: relay.stop())
        print(f"Publishing from {arguments.table}.", flush=True)
        relay.run()
        counts = relay.counts
        print(f"Stopped: {counts.published} rows published, {counts.refused} refused, {counts.pruned} pruned.")
    finally:
        publisher.close()
    return 0


def _relay_once(relay: Relay, source: Source) -> int:
    """Exit code 1 when rows are left, or were refused: whoever runs this now and then wants to hear of it."""
    relay.run_until_empty()
    counts, left = relay.counts, source.lag().waiting
    print(f"{counts.published} rows published, {counts.refused} refused, {left} left.")
    return 1 if left or counts.refused else 0


def _shown(lag: Lag, form: str) -> str:
    if form == "json":
        return json.dumps(lag._asdict())
    if form == "prometheus":
        lines = []
        for name, field, text in METRICS:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {getattr(lag, field)}"]
        return "\n".join(lines)
    oldest = f", the oldest for {lag.oldest_s:.1f} s" if lag.waiting else ""
    return (
        f"waiting    {lag.waiting}{oldest}\n"
        f"in doubt   {lag.in_doubt}\n"
        f"refused    {lag.refused}\n"
        f"published  {lag.published}"
    )

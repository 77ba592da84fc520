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
from batonq.cli.connection import (
    DEFAULT_URL,
    KEY_VARIABLE,
    SECRET_VARIABLE,
    URL_VARIABLE,
    add_client_arguments,
    use_for_client,
)
from batonq.cli.quantities import parse_duration_s
from batonq.errors import InvalidInput
from batonq.outbox.schema import INBOX, OUTBOX
from batonq.outbox.source import Lag, Source

if TYPE_CHECKING:
    from batonq.outbox.relay import Relay

METRICS = (
    ("baton_outbox_waiting_rows", "waiting", "Number of committed rows that are not published yet."),
    ("baton_outbox_oldest_waiting_seconds", "oldest_s", "Age of the oldest unpublished row."),
    ("baton_outbox_in_doubt_rows", "in_doubt", "Number of unpublished rows in a batch that was started."),
    ("baton_outbox_refused_rows", "refused", "Number of rows that a queue refused permanently."),
    ("baton_outbox_published_rows", "published", "Number of published rows that are not pruned yet."),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    init = add_action(actions, "init", "create the tables of the outbox and the inbox if they do not exist")
    init.add_argument("--inbox", default=INBOX, help=f"name of the inbox table (default {INBOX})")
    relay = add_action(actions, "relay", "publish committed rows continuously until stopped")
    add_client_arguments(relay)
    relay.add_argument(
        "--sqs",
        metavar="ENDPOINT",
        nargs="?",
        const="",
        help="publish with the SQS protocol, configured as boto3",
    )
    relay.add_argument(
        "--cdc", action="store_true", help="read PostgreSQL's write-ahead log instead of polling the table"
    )
    relay.add_argument(
        "--batch",
        type=int,
        default=500,
        metavar="N",
        help="maximum number of rows per batch (default 500, at most 1000)",
    )
    relay.add_argument(
        "--poll", type=parse_duration_s, default=1.0, metavar="TIME", help="maximum polling interval (default 1s)"
    )
    relay.add_argument(
        "--prune-after", type=parse_duration_s, metavar="TIME", help="delete rows this long after they were published"
    )
    relay.add_argument(
        "--once", action="store_true", help="exit when no more rows can be published; exit code 1 if rows are left"
    )
    status = add_action(actions, "status", "show how many rows wait to be published")
    status.add_argument(
        "--format", choices=("text", "json", "prometheus"), default="text", help="output format (default text)"
    )
    retry = add_action(actions, "retry", "retry rows that a queue refused")
    retry.add_argument("ids", nargs="*", type=int, help="ids of the rows (default: all)")
    prune = add_action(actions, "prune", "delete published rows; unpublished rows are never deleted")
    prune.add_argument(
        "--older-than", type=parse_duration_s, required=True, metavar="TIME", help="minimum age of the rows: 7d, 12h"
    )
    for action in (init, relay, status, retry, prune):
        database = action.add_mutually_exclusive_group(required=True)
        database.add_argument("--dsn", help="PostgreSQL database: postgresql://… or host=… dbname=…")
        database.add_argument("--sqlite", metavar="FILE", help="SQLite database file")
        action.add_argument("--table", default=OUTBOX, help=f"name of the outbox table (default {OUTBOX})")


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
            print(f"{source.retry(arguments.ids)} rows will be retried.")
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
    print(f"The tables {arguments.table} and {arguments.inbox} exist.")
    return 0


def _source(arguments: argparse.Namespace) -> Source:
    if arguments.sqlite:
        if getattr(arguments, "cdc", False):
            raise InvalidInput(
                "--cdc works only with PostgreSQL: SQLite has no write-ahead log that can be read this way."
            )
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
        use_for_client(arguments)
        publisher = BatonPublisher(
            os.environ.get(URL_VARIABLE) or DEFAULT_URL,
            access_key=os.environ.get(KEY_VARIABLE),
            secret_key=os.environ.get(SECRET_VARIABLE),
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
    """Publish once. Exit code 1 if rows are left or were refused, so that a scheduler notices."""
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

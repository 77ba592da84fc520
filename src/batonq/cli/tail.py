"""`baton tail QUEUE`: print new messages as they arrive. It peeks, so it takes nothing away from consumers.

A message that is received and acknowledged between two looks is not seen.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import moment, note
from batonq.cli.peek import LIMIT_MAX, look, start_of_body
from batonq.cli.quantities import parse_duration_s

INTERVAL_S = 1.0
INTERVAL_MIN_S = 0.1
SEQUENCE_MAX = (1 << 53) - 1
BODY_WIDTH = 120
PAGES_PER_LOOK = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    parser.add_argument("--from-start", action="store_true", help="begin with the messages that are already there")
    parser.add_argument(
        "--interval",
        type=parse_duration_s,
        default=INTERVAL_S,
        metavar="TIME",
        help="time between two looks, at least 100ms (default 1s)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="exit after this many messages")
    parser.add_argument("--for", dest="duration", type=parse_duration_s, metavar="TIME", help="exit after this time")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.interval < INTERVAL_MIN_S:
        raise WrongUsage(f"--interval must be at least {INTERVAL_MIN_S:g}s.")
    if arguments.count is not None and arguments.count < 1:
        raise WrongUsage("--count must be at least 1.")
    server = connect(arguments)
    queue: str = arguments.queue
    after = 0 if arguments.from_start else newest_sequence(server, queue)
    note(f"Watching {queue} at {server.url}. Ctrl-C stops.")
    end = None if arguments.duration is None else time.monotonic() + arguments.duration
    left = arguments.count
    while True:
        for message in _new(server, queue, after, left):
            after = message["sequence"]
            _print(message, as_json=arguments.json)
            left = None if left is None else left - 1
        if left == 0:
            return 0
        pause = arguments.interval if end is None else min(arguments.interval, end - time.monotonic())
        if pause <= 0:
            return 0
        time.sleep(pause)


def newest_sequence(server: Server, queue: str) -> int:
    """The sequence number of the last message; 0 if there is none. Found by bisection, in at most 53 small requests."""
    if not look(server, queue, limit=1)["messages"]:
        return 0
    low, high = 0, SEQUENCE_MAX  # something is after `low`, nothing is after `high`
    while high - low > 1:
        middle = (low + high) // 2
        found = look(server, queue, after=middle, limit=1)["messages"]
        if found:
            low = max(middle, found[0]["sequence"] - 1)
        else:
            high = middle
    return high


def _new(server: Server, queue: str, after: int, most: int | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(PAGES_PER_LOOK):
        if most is not None and len(found) >= most:
            break
        page = look(server, queue, after=after, limit=LIMIT_MAX)
        found += page["messages"]
        if "nextAfter" not in page:
            break
        after = page["nextAfter"]
    return found if most is None else found[:most]


def _print(message: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(message, ensure_ascii=False), flush=True)
        return
    line = f"{moment(message['sentAtMs'])}  {message['sequence']}  {message['state']:<9}  {message['messageId']}"
    print(f"{line}  {start_of_body(message, BODY_WIDTH)}", flush=True)

"""`baton tail QUEUE`: print new messages as they arrive. It peeks, so it takes nothing away from consumers.

A message that is received and acknowledged between two looks is not seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import json_text, moment, note
from batonq.cli.peek import LIMIT_MAX, look, start_of_body
from batonq.cli.quantities import parse_duration_s
from batonq.core.spread import NUMBER_BITS

INTERVAL_S = 1.0
INTERVAL_MIN_S = 0.1
SHARDS_MAX = 1_000
BODY_WIDTH = 120
PAGES_PER_LOOK = 1_000


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
    follower = Follower(server, arguments.queue)
    if not arguments.from_start:
        follower.skip()
    note(f"Watching {arguments.queue} at {server.url}. Ctrl-C stops.")
    end = None if arguments.duration is None else time.monotonic() + arguments.duration
    left = arguments.count
    while True:
        for message in follower.read(left):
            _print(message, as_json=arguments.json)
            left = None if left is None else left - 1
        if left == 0:
            return 0
        pause = arguments.interval if end is None else min(arguments.interval, end - time.monotonic())
        if pause <= 0:
            return 0
        time.sleep(pause)


class Follower:
    """Reads the new messages of a queue. A queue on several shards has a range of sequence numbers per shard, and new
    messages arrive at the end of each range.
    """

    def __init__(self, server: Server, queue: str) -> None:
        self._server = server
        self._queue = queue
        self._seen: dict[int, int] = {}  # shard → sequence number of its last message that was read

    def skip(self) -> None:
        """Skip what is already there."""
        after = 0
        for _ in range(SHARDS_MAX):
            found = look(self._server, self._queue, after=after, limit=1)["messages"]
            if not found:
                return
            shard = found[0]["sequence"] >> NUMBER_BITS
            after = self._newest(found[0]["sequence"], (shard + 1) << NUMBER_BITS)
            self._seen[shard] = after

    def _newest(self, low: int, end: int) -> int:
        """The last sequence number of a range, by bisection. A message with the number `low` exists."""
        high = end
        while high - low > 1:
            middle = (low + high) // 2
            found = look(self._server, self._queue, after=middle - 1, limit=1)["messages"]
            if found and found[0]["sequence"] < end:
                low = found[0]["sequence"]
            else:
                high = middle
        return low

    def read(self, most: int | None) -> Iterator[dict[str, Any]]:
        """At most so many new messages, as many as there are if it is None."""
        after, limit, count = 0, 1, 0
        for _ in range(PAGES_PER_LOOK):
            page = look(self._server, self._queue, after=after, limit=limit)
            limit = LIMIT_MAX
            for message in page["messages"]:
                if count == most:
                    return
                sequence = message["sequence"]
                shard = sequence >> NUMBER_BITS
                after = max(sequence, self._seen.get(shard, 0))
                if sequence < after:
                    break  # old: go on after the last one of this shard
                if sequence > self._seen.get(shard, 0):
                    self._seen[shard] = sequence
                    count += 1
                    yield message
            else:
                if "nextAfter" not in page:
                    return
                after = max(after, page["nextAfter"])


def _print(message: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json_text(message), flush=True)
        return
    line = f"{moment(message['sentAtMs'])}  {message['sequence']}  {message['state']:<9}  {message['messageId']}"
    print(f"{line}  {start_of_body(message, BODY_WIDTH)}", flush=True)

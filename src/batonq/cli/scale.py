"""`baton scale`: print the number of workers that a queue needs, for a program that starts and stops workers.

`--once` keeps no state: it prints what the policy asks for, within the limits. `--watch` also limits the pace (up at
once, down slowly), and assumes that its output is followed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from batonq.cli.connection import add_client_arguments, use_for_client
from batonq.cli.quantities import parse_duration_s
from batonq.errors import BatonError, InvalidInput
from batonq.scaling.autoscale import Autoscale, parse_lane
from batonq.scaling.readings import Reading
from batonq.scaling.scaler import Decision, Scaler
from batonq.scaling.sources import Readings, group_readings, sqs_readings, stats_readings

INTERVAL_S = 15.0
RETRIES = 2
NO_LIMIT = 1_000_000  # workers: more than any report will ask for
_POLICY_FLAGS = {
    "per-worker": "messages per worker (default 100, if no other policy is given)",
    "steps": "number of workers from a depth on: 0:5/500:20/2000:50",
    "drain": "seconds in which the backlog must be drained",
    "sla": "maximum acceptable waiting time of a message, in seconds",
    "lag": "lag of a reader group, in messages per worker; needs --group",
    "rate": "messages per second that one worker completes (default: measured by --watch)",
    "up": "seconds between two increases (default 10)",
    "window": "seconds without a higher demand before the number is decreased (default 300)",
    "down": "seconds between two decreases (default 60)",
    "tolerance": "tolerated deviation of the number, as a share (default 0.1)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="name of the queue, or with --sqs its URL")
    parser.add_argument("--min", type=int, default=1, metavar="N", help="minimum number of workers (default 1)")
    parser.add_argument("--max", type=int, metavar="N", help="maximum number of workers; --watch requires it")
    parser.add_argument(
        "--lane",
        action="append",
        default=[],
        metavar="QUEUE=MIN:MAX,…",
        help="a queue with its own policy, for example paid=5:50,per-worker=10; can be repeated",
    )
    for name, text in _POLICY_FLAGS.items():
        unit = "STEPS" if name == "steps" else "SECONDS" if text.startswith("seconds") else "N"
        parser.add_argument(f"--{name}", metavar=unit, help=text)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="print one decision, without state (the default)")
    when.add_argument(
        "--watch", action="store_true", help="print a line whenever the number changes, until interrupted"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of workers at the start (default: the minimum)"
    )
    parser.add_argument(
        "--interval",
        type=parse_duration_s,
        default=INTERVAL_S,
        metavar="TIME",
        help="polling interval of --watch (default 15s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--group", metavar="NAME", help="scale the members of this reader group of the queue")
    parser.add_argument(
        "--sqs",
        metavar="ENDPOINT",
        help="read the queue with GetQueueAttributes from this SQS endpoint, with boto3's credentials",
    )
    add_client_arguments(parser)


@dataclass(slots=True)
class Lane:
    name: str
    scaler: Scaler
    readings: Readings
    workers: int
    failing: bool = False


def run(arguments: argparse.Namespace) -> int:
    lanes = _lanes(arguments)
    try:
        return asyncio.run(_run(arguments, lanes))
    except KeyboardInterrupt:
        return 0


def _lanes(arguments: argparse.Namespace) -> dict[str, Autoscale]:
    found: dict[str, Autoscale] = {}
    for name, spec in map(parse_lane, arguments.lane):
        if name in found or name == arguments.queue:
            raise InvalidInput(f"{name} is given twice; use it once, as QUEUE or with --lane")
        found[name] = spec
    if arguments.queue is not None:
        if arguments.max is None and arguments.watch:
            raise InvalidInput("--watch needs --max, the maximum number of workers, for example --max 50")
        maximum = max(arguments.min, NO_LIMIT) if arguments.max is None else arguments.max
        given = {name: getattr(arguments, name.replace("-", "_")) for name in _POLICY_FLAGS}
        options = "".join(f",{name}={value}" for name, value in given.items() if value is not None)
        found[arguments.queue] = Autoscale.parse(f"{arguments.min}:{maximum}{options}")
    if not found:
        raise InvalidInput("no queue is given; use `baton scale emails --max 50`, or --lane emails=2:50")
    return found


async def _run(arguments: argparse.Namespace, specs: dict[str, Autoscale]) -> int:
    if arguments.group and arguments.sqs is not None:
        raise InvalidInput("Reader groups are read from Baton; use --group without --sqs.")
    if arguments.sqs is not None:
        client = _sqs_client(arguments.sqs)
        return await _look(arguments, {name: (spec, sqs_readings(client, [name])) for name, spec in specs.items()})
    from batonq.client import connect  # not needed for --sqs

    use_for_client(arguments)
    # No long retries: the next poll comes soon, and retries would only hide that there is no reading.
    async with connect(arguments.url, retries=RETRIES) as baton:

        def readings(name: str) -> Readings:
            group = arguments.group
            return group_readings(baton, [name], group) if group else stats_readings(baton, [name])

        return await _look(arguments, {name: (spec, readings(name)) for name, spec in specs.items()})


def _sqs_client(endpoint: str) -> Any:
    try:
        import boto3
    except ImportError:
        raise InvalidInput("--sqs needs boto3: pip install boto3") from None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return boto3.client("sqs", endpoint_url=endpoint, region_name=region)


async def _look(arguments: argparse.Namespace, specs: dict[str, tuple[Autoscale, Readings]]) -> int:
    lanes = [
        Lane(name, spec.scaler(), readings, spec.minimum if arguments.workers is None else arguments.workers)
        for name, (spec, readings) in specs.items()
    ]
    if not arguments.watch:
        for lane in lanes:
            reading = await lane.readings()
            _print(arguments, lane, reading, _without_memory(lane, reading))
        return 0
    first = True
    while True:
        for lane in lanes:
            await _step(arguments, lane, first)
        first = False
        await asyncio.sleep(arguments.interval)


def _without_memory(lane: Lane, reading: Reading) -> Decision:
    """The number that the policy asks for now, within the limits; a pace needs state."""
    scaler = lane.scaler
    wish = scaler.policy.wish(reading, scaler.rates)
    if wish is None:
        return Decision(lane.workers, lane.workers, None, "the rate is unknown: use --rate, or --watch")
    workers = min(max(wish.workers, scaler.minimum), scaler.maximum)
    return Decision(workers, lane.workers, wish.workers, wish.why)


async def _step(arguments: argparse.Namespace, lane: Lane, first: bool) -> None:
    try:
        reading = await lane.readings()
    except BatonError as problem:
        if not problem.retryable:
            raise
        if not lane.failing:
            _print_problem(arguments, lane, problem)
        lane.failing = True
        return
    lane.failing = False
    decision = lane.scaler.decide(reading, time.monotonic(), lane.workers)
    lane.workers = decision.workers
    if first or decision.changes:
        _print(arguments, lane, reading, decision)


def _print(arguments: argparse.Namespace, lane: Lane, reading: Reading, decision: Decision) -> None:
    if arguments.json:
        fields = {
            "queue": lane.name,
            "workers": decision.workers,
            "before": decision.before,
            "wanted": decision.wanted,
            "why": decision.why,
            "visible": reading.visible,
            "inFlight": reading.in_flight,
            "oldestAgeSeconds": reading.oldest_age_s,
        }
        print(json.dumps(fields, ensure_ascii=False), flush=True)
    else:
        print(f"{lane.name} {decision.workers} ({decision.why})", flush=True)


def _print_problem(arguments: argparse.Namespace, lane: Lane, problem: BatonError) -> None:
    text = f"no reading, the number does not change: {problem.message}"
    if arguments.json:
        fields = {"queue": lane.name, "workers": lane.workers, "problem": text}
        print(json.dumps(fields, ensure_ascii=False), flush=True)
    else:
        print(f"{lane.name} {lane.workers} ({text})", flush=True)

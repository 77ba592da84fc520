"""`baton worker run module:app`: run a worker application, in one process or in a pool of processes. `baton worker
list` lists the workers that a server sees.

`baton worker module:app` is short for `baton worker run module:app`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from batonq.cli.actions import add_action
from batonq.cli.connection import (
    URL_VARIABLE,
    add_client_arguments,
    add_connection_arguments,
    connect,
    use_for_client,
)
from batonq.cli.output import moment, note, print_json, print_table, rate
from batonq.cli.quantities import parse_duration_s
from batonq.errors import InvalidInput

if TYPE_CHECKING:
    from batonq.scaling import Autoscale
    from batonq.worker import Worker
    from batonq.worker.pool import Pool

LEVELS = ("debug", "info", "warning", "error")


ACTIONS = ("run", "list")


def expand(words: list[str]) -> list[str]:
    """`baton worker jobs:app` means `baton worker run jobs:app`."""
    return words if not words or words[0] in (*ACTIONS, "-h", "--help") else ["run", *words]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "`baton worker MODULE:APP` is short for `baton worker run MODULE:APP`."
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    _add_run_arguments(add_action(actions, "run", "run a worker application"))
    listing = add_action(actions, "list", "list the workers and other consumers that a server sees")
    listing.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(listing)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="MODULE:APP", help="module and variable of the worker, for example jobs:app")
    parser.add_argument("--queues", metavar="NAMES", help="serve only these of the app's queues, separated by commas")
    parser.add_argument(
        "--group", metavar="NAME", help="read the retained history of the app's queues as a member of this reader group"
    )
    parser.add_argument(
        "--concurrency", type=_count, metavar="N", help="number of slots per task, instead of the app's setting"
    )
    parser.add_argument(
        "--processes", type=_count, metavar="N", help="run this many worker processes, and restart those that exit"
    )
    parser.add_argument(
        "--autoscale",
        action="append",
        metavar="MIN:MAX",
        help=(
            "run MIN to MAX worker processes, depending on depth and age: 2:50, or with a policy: "
            "2:50,per-worker=20. QUEUE=MIN:MAX, once per lane, gives each lane its own processes"
        ),
    )
    parser.add_argument(
        "--drain-seconds",
        type=parse_duration_s,
        default=30.0,
        metavar="N",
        help=(
            "time for handlers to finish after the first signal; then their messages are returned to the queue "
            "(default 30)"
        ),
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics at /metrics; 0: a free port"
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="address for /metrics (default 127.0.0.1)"
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, default="info", help="minimum level of the events to print (default info)"
    )
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return _list(arguments) if arguments.action == "list" else _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )
    if arguments.processes is not None and arguments.autoscale:
        raise InvalidInput("Use either --processes or --autoscale, not both.")
    use_for_client(arguments)
    if arguments.context and not arguments.url:
        arguments.url = os.environ[URL_VARIABLE]  # a flag comes before the URL of the app
    app = load(arguments.app)
    if arguments.processes is None and not arguments.autoscale:
        if arguments.url:
            app.connect_to(arguments.url)
        if arguments.group:
            app.read_group(arguments.group)
        return app.run(
            queues=_names(arguments),
            concurrency=arguments.concurrency,
            drain_seconds=arguments.drain_seconds,
            metrics_port=arguments.metrics_port,
            metrics_host=arguments.metrics_host,
        )
    if arguments.metrics_port:
        raise InvalidInput(
            "Several processes cannot share --metrics-port. Leave it out, or use 0 to give each process a free port."
        )
    return asyncio.run(_run_pool(arguments, app))


def load(name: str) -> Worker:
    """Import the worker `module:app`; the current directory is searched first."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidInput(f"{name!r} is not a worker. Use a module and its variable, for example jobs:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name != module_name and not module_name.startswith(f"{problem.name}."):
            raise  # an import inside the module failed
        raise InvalidInput(
            f"Module {module_name!r} was not found in the current directory or on the Python path."
        ) from None
    found = getattr(module, attribute, None)
    from batonq.worker import Worker

    if not isinstance(found, Worker):
        what = "has no variable" if found is None else "has another kind of object as"
        raise InvalidInput(f"Module {module_name!r} {what} {attribute!r}: it must be a Worker, such as app = Worker().")
    return found


# --- the workers of a server --------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    found = server.get("/v1/workers")
    if arguments.json:
        print_json(found)
        return 0
    if not found["workers"]:
        note(f"No worker receives from {server.url}. Start one with `baton worker run MODULE:APP`.")
        return 0
    head = ("WORKER", "STATE", "QUEUES", "HELD", "RECV/MIN", "ACK/MIN", "FAILED/MIN", "LAST SEEN", "ADDRESS", "PROGRAM")
    rows = [
        (
            worker["name"],
            worker["state"],
            ",".join(worker["queues"]),
            str(worker["inFlight"]),
            rate(worker.get("receivedPerMinute")),
            rate(worker.get("ackedPerMinute")),
            rate(worker.get("failedPerMinute")),
            moment(worker["lastSeenAtMs"]),
            worker.get("address", ""),
            worker.get("agent", ""),
        )
        for worker in found["workers"]
    ]
    print_table(head, rows, right=("HELD", "RECV/MIN", "ACK/MIN", "FAILED/MIN"))
    return 0


# --- arguments ----------------------------------------------------------------------------------


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _names(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in (arguments.queues or "").split(",") if name.strip()]


# --- a pool of processes ----------------------------------------------------------------------


async def _run_pool(arguments: argparse.Namespace, app: Worker) -> int:
    pools = _pools(arguments, app)
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            for lane in pools:
                lane.pool.release()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    async with AsyncExitStack() as stack:
        for lane in pools:
            await stack.enter_async_context(lane.pool)
        if arguments.autoscale:
            await _autoscale(arguments, app, pools, stop)
        await stop.wait()
        # All at once: each pool waits for the messages that its processes hold.
        await asyncio.gather(*(lane.pool.close() for lane in pools))
    return 0


class _Pooled(NamedTuple):
    """A pool of processes, the queues that they serve, and its scaling policy, if any."""

    pool: Pool
    queues: list[str]
    scale: Autoscale | None


def _pools(arguments: argparse.Namespace, app: Worker) -> list[_Pooled]:
    from batonq.scaling import Autoscale, parse_lane

    texts: list[str] = arguments.autoscale or []
    if not texts:
        return [_Pooled(_pool(arguments, arguments.queues), [], None)]
    if len(texts) == 1 and not _names_a_lane(texts[0]):
        scale = Autoscale.parse(texts[0])
        return [_Pooled(_pool(arguments, arguments.queues), _queues(app, _names(arguments)), scale)]
    if arguments.queues:
        raise InvalidInput("Name the queues either in --autoscale QUEUE=MIN:MAX or in --queues, not in both.")
    lanes = [parse_lane(text) for text in texts]
    if len({name for name, _ in lanes}) < len(lanes):
        raise InvalidInput("--autoscale names a queue twice.")
    _queues(app, [name for name, _ in lanes])
    return [_Pooled(_pool(arguments, name), [name], scale) for name, scale in lanes]


def _names_a_lane(text: str) -> bool:
    return "=" in text.split(":")[0]


def _queues(app: Worker, served: list[str]) -> list[str]:
    """The queues whose depth counts: those that are served, or all of the app's."""
    queues = [lane.queue for task in app.serving(served) for lane in task.lanes]
    patterns = [queue for queue in queues if "*" in queue or "?" in queue]
    if patterns:
        raise InvalidInput(f"--autoscale cannot use a pattern such as {patterns[0]}. Name the queues.")
    return queues


def _pool(arguments: argparse.Namespace, queues: str | None) -> Pool:
    from batonq.worker.pool import Pool, worker_command

    options = ["--drain-seconds", str(arguments.drain_seconds), "--log-level", arguments.log_level]
    if queues is not None:
        options += ["--queues", queues]
    for flag in ("url", "group", "concurrency", "metrics_port", "metrics_host"):
        value = getattr(arguments, flag)
        if value is not None:
            options += [f"--{flag.replace('_', '-')}", str(value)]
    command = worker_command(arguments.app, *options)
    return Pool(command, arguments.processes or 0, drain_seconds=arguments.drain_seconds)


async def _autoscale(arguments: argparse.Namespace, app: Worker, pools: list[_Pooled], stop: asyncio.Event) -> None:
    from batonq.client.aio.baton import connect as connect_client
    from batonq.scaling import group_readings, run_autoscaled, stats_readings

    async with connect_client(arguments.url or app.url) as baton:
        running = [
            run_autoscaled(
                lane.pool,
                group_readings(baton, lane.queues, arguments.group)
                if arguments.group
                else stats_readings(baton, lane.queues),
                lane.scale.scaler(),
                interval=lane.scale.interval_s,
                stop=stop,
            )
            for lane in pools
            if lane.scale is not None
        ]
        await asyncio.gather(*running)

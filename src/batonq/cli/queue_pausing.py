"""`baton queue pause|resume|drain|pace`: settings of a queue that hold messages back, under names that say so."""

from __future__ import annotations

import argparse
import time
from typing import Any

from batonq.cli.actions import add_action
from batonq.cli.connection import Server, queue_path
from batonq.cli.exit_codes import FAILED
from batonq.cli.output import note, print_json
from batonq.cli.quantities import parse_duration_s
from batonq.quantities import plural

LOOK_S = 1.0
WAIT_S = 3_600.0
OFF = "off"


def add_pausing_actions(actions: Any) -> list[argparse.ArgumentParser]:
    """Add the four actions; the caller adds what all actions of a queue have."""
    pause = add_action(actions, "pause", "stop the delivery of a queue's messages, or sends to it, until it is resumed")
    what = pause.add_mutually_exclusive_group()
    what.add_argument("--sends", action="store_true", help="refuse new messages instead; deliveries go on")
    what.add_argument("--both", action="store_true", help="stop deliveries and sends")
    resume = add_action(
        actions, "resume", "deliver and accept all messages of a queue again; a cap on deliveries per second stays"
    )
    drain = add_action(actions, "drain", "refuse new messages while deliveries go on, and show what is left")
    drain.add_argument("--wait", action="store_true", help="wait until the queue is empty, and show the progress")
    drain.add_argument(
        "--timeout",
        type=parse_duration_s,
        default=WAIT_S,
        metavar="TIME",
        help="how long --wait waits (default 1h)",
    )
    pace = add_action(actions, "pace", "limit how many messages of a queue are delivered per second")
    for action in (pause, resume, drain, pace):
        action.add_argument("queue", metavar="QUEUE", help="name of the queue")
    pace.add_argument("rate", metavar="RATE", type=_rate, help="messages per second, or off")
    return [pause, resume, drain, pace]


def _rate(text: str) -> int:
    if text == OFF:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of messages per second, such as 20, or off")
    return int(text)


def pause(server: Server, arguments: argparse.Namespace) -> int:
    what = "both" if arguments.both else "sends" if arguments.sends else "delivery"
    told = {
        "delivery": "Delivery of queue {queue} is paused: receives get nothing and long polls wait.",
        "sends": "Sends to queue {queue} are paused: new messages are refused.",
        "both": "Delivery of queue {queue} and sends to it are paused.",
    }
    return _changed(server, arguments, {"paused": what}, told[what].format(queue=arguments.queue))


def resume(server: Server, arguments: argparse.Namespace) -> int:
    changes = {"paused": None, "onlyGroup": None, "minimumPriority": None}
    return _changed(server, arguments, changes, f"Queue {arguments.queue} delivers and accepts all messages.")


def pace(server: Server, arguments: argparse.Namespace) -> int:
    text = f"Queue {arguments.queue} delivers at most {plural(arguments.rate, 'message')} per second."
    if not arguments.rate:
        text = f"Queue {arguments.queue} has no cap on its deliveries."
    return _changed(server, arguments, {"deliveriesPerSecond": arguments.rate or None}, text)


def _changed(server: Server, arguments: argparse.Namespace, changes: dict[str, Any], text: str) -> int:
    queue = server.call("PATCH", queue_path(arguments.queue), changes)
    if arguments.json:
        print_json(queue)
    else:
        print(text)
    return 0


def drain(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.queue
    server.call("PATCH", queue_path(name), {"paused": "sends"})
    left = _left(server, name)
    end_s = time.monotonic() + (arguments.timeout if arguments.wait else 0.0)
    while left["left"] and time.monotonic() < end_s:
        note(_text(name, left))
        time.sleep(LOOK_S)
        left = _left(server, name)
    if arguments.json:
        print_json(left)
    else:
        print(_text(name, left))
    return FAILED if arguments.wait and left["left"] else 0


def _left(server: Server, name: str) -> dict[str, Any]:
    stats = server.get(queue_path(name, "stats"))
    counts = {field: int(stats[field]) for field in ("visible", "inFlight", "delayed")}
    return {"queue": name, "left": sum(counts.values()), **counts}


def _text(name: str, left: dict[str, Any]) -> str:
    if not left["left"]:
        return f"Queue {name} takes no new messages, and is empty."
    return (
        f"Queue {name} takes no new messages; {plural(left['left'], 'message')} left: {left['visible']:,} visible, "
        f"{left['inFlight']:,} in flight, {left['delayed']:,} delayed."
    )

"""The `baton` command: finds the subcommand, and imports only that one.

A subcommand is a module with `add_arguments(parser)` and `run(arguments) -> exit code`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from batonq import __version__
from batonq.cli.actions import add_action
from batonq.errors import BatonError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("batonq.cli.serve", "start a server"),
    "cluster": ("batonq.cli.cluster", "try, look at and operate a cluster of several nodes"),
    "worker": ("batonq.cli.worker", "run the worker that a module declares"),
    "peek": ("batonq.cli.peek", "look at a queue's messages without receiving them"),
    "keys": ("batonq.cli.keys", "make, list and disable access keys"),
    "clock": ("batonq.cli.clock", "move the clock of a development server forward"),
    "scale": ("batonq.cli.scale", "say how many workers a queue needs, once or all the time"),
    "plan": ("batonq.cli.plan", "size workers and a queue's settings, from numbers or from its past"),
    "outbox": ("batonq.cli.outbox", "publish the outbox of an application's database"),
    "log": ("batonq.cli.log", "inspect, verify and repair logs"),
    "pipeline": ("batonq.cli.pipeline", "history as tables, answers and actions, on Spark"),
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or (quicker) only what one subcommand needs."""
    parser = argparse.ArgumentParser(prog="baton", description="A self-hosted message queue that speaks SQS.")
    parser.add_argument("--version", action="version", version=f"baton {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (module_name, text) in COMMANDS.items():
        subparser = add_action(subparsers, name, text)
        if only is None or only == name:
            module = importlib.import_module(module_name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    only = words[0] if words and words[0] in COMMANDS else ""
    arguments = build_parser(only).parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except BatonError as problem:
        print(f"baton: {problem.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())

"""The `baton` command. It imports only the subcommand that is used.

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
    "cluster": ("batonq.cli.cluster", "run a local cluster, or operate a cluster"),
    "worker": ("batonq.cli.worker", "run a worker application"),
    "peek": ("batonq.cli.peek", "show a queue's messages without receiving them"),
    "demo": ("batonq.cli.demo", "fill a server with a living scenario: queues, producers, workers that fail"),
    "keys": ("batonq.cli.keys", "create, list, disable and enable access keys"),
    "clock": ("batonq.cli.clock", "move the clock of a development server forward"),
    "scale": ("batonq.cli.scale", "report how many workers a queue needs, once or continuously"),
    "plan": (
        "batonq.cli.plan",
        ("calculate the number of workers and queue settings, from given numbers or from a queue's history"),
    ),
    "outbox": ("batonq.cli.outbox", "publish the messages in the outbox of an application's database"),
    "log": ("batonq.cli.log", "inspect, verify and repair logs"),
    "pipeline": ("batonq.cli.pipeline", "load history into tables, query it, and act on it, with Spark"),
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser for all subcommands, or only for one, which is faster."""
    parser = argparse.ArgumentParser(
        prog="baton", description="A self-hosted message queue with an SQS-compatible API."
    )
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
    except BrokenPipeError:  # the reader of the output has closed it, as `| head` does
        sys.stderr.close()
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())

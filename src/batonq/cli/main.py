"""The `baton` command. It imports only the subcommand that is used.

A subcommand is a module with `add_arguments(parser)` and `run(arguments) -> exit code`. A module may also have
`expand(words)`, which rewrites a short form of its arguments. `arguments.resources` is closed when the command ends.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from batonq import __version__
from batonq.cli.actions import add_action
from batonq.cli.exit_codes import FAILED, INTERRUPTED, exit_code_of
from batonq.cli.parser import Parser
from batonq.errors import BatonError

SERVER_PACKAGES = ("google_crc32c", "jinja2", "markupsafe", "uvloop")  # of the extra `server`
# The commands by subject, in the order of the help.
SUBJECTS: dict[str, dict[str, tuple[str, str]]] = {
    "the server": {
        "serve": ("batonq.cli.serve", "start a server"),
        "demo": ("batonq.cli.demo", "fill a server with a living scenario: queues, producers, workers that fail"),
        "status": ("batonq.cli.status", "report in a sentence whether the server is well, with its main figures"),
        "top": ("batonq.cli.top", "watch all queues live"),
        "alarms": ("batonq.cli.alarms", "list and acknowledge alarms"),
        "doctor": ("batonq.cli.doctor", "check a server and its queues for settings that will hurt"),
        "config": ("batonq.cli.config", "show the settings of a server and where each value comes from"),
        "backup": ("batonq.cli.backup", "copy what a running server has committed into a directory or a file"),
        "restore": ("batonq.cli.restore", "check a backup, and write it into a new data directory"),
        "keys": ("batonq.cli.keys", "create, list, disable and enable access keys"),
        "cluster": ("batonq.cli.cluster", "run a local cluster, or operate a cluster"),
        "clock": ("batonq.cli.clock", "move the clock of a development server forward"),
    },
    "queues": {
        "queue": ("batonq.cli.queue", "list, show, create, change, pause, delete and purge queues"),
        "topic": ("batonq.cli.topic", "manage topics and subscriptions, and publish messages to many queues"),
        "explain": ("batonq.cli.explain", "explain why a queue's messages wait, or why a message is not delivered"),
        "export": ("batonq.cli.export", "write the definitions of all queues and topics to a file"),
        "import": ("batonq.cli.import_", "create and change queues and topics as a file of definitions says"),
    },
    "messages": {
        "send": ("batonq.cli.send", "send messages: an argument, standard input, files or JSON lines"),
        "receive": ("batonq.cli.receive", "receive messages"),
        "ack": ("batonq.cli.ack", "acknowledge received messages, which deletes them"),
        "nack": ("batonq.cli.nack", "return received messages to their queue as failed"),
        "extend": ("batonq.cli.extend", "extend or end the leases of received messages"),
        "peek": ("batonq.cli.peek", "show a queue's messages without receiving them"),
        "tail": ("batonq.cli.tail", "print new messages of a queue as they arrive, without receiving them"),
        "message": ("batonq.cli.message", "show, delete, retry and edit one message"),
        "dlq": ("batonq.cli.dlq", "list, show and delete dead letters, grouped by error"),
        "redrive": ("batonq.cli.redrive", "move dead letters back to their source queue"),
        "replay": ("batonq.cli.replay", "send messages of a queue's retained history again"),
        "reader": ("batonq.cli.reader", "list, show, create, delete and seek reader groups, and read retained history"),
        "schedule": ("batonq.cli.schedule", "send messages at recurring times: cron expressions and intervals"),
        "jobs": ("batonq.cli.jobs", "list, show, pause, resume and cancel jobs"),
    },
    "workers and applications": {
        "worker": ("batonq.cli.worker", "run a worker application, or list the workers of a server"),
        "scale": ("batonq.cli.scale", "report how many workers a queue needs, once or continuously"),
        "plan": (
            "batonq.cli.plan",
            "calculate the number of workers and queue settings, from given numbers or from a queue's history",
        ),
        "outbox": ("batonq.cli.outbox", "publish the messages in the outbox of an application's database"),
        "bench": ("batonq.cli.bench", "measure the messages per second and the latency of a server"),
    },
    "history": {
        "log": ("batonq.cli.log", "inspect, verify and repair logs"),
        "pipeline": ("batonq.cli.pipeline", "load history into tables, query it, and act on it, with Spark"),
    },
    "this command line": {
        "context": ("batonq.cli.context", "name servers and their credentials, and choose one"),
        "whoami": ("batonq.cli.whoami", "show which account, key and role a server takes you for"),
        "completion": ("batonq.cli.completion", "print a script that completes commands in your shell"),
    },
}
COMMANDS: dict[str, tuple[str, str]] = {
    name: command for commands in SUBJECTS.values() for name, command in commands.items()
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser for all subcommands, or only for one, which is faster."""
    parser = Parser(
        prog="baton",
        description="A self-hosted message queue with an SQS-compatible API.",
        epilog=_commands_by_subject(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="baton COMMAND …",
    )
    parser.add_argument("--version", action="version", version=f"baton {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog="baton", help=argparse.SUPPRESS
    )
    for name, (module_name, text) in COMMANDS.items():
        subparser = add_action(subparsers, name, text)
        if only is None or only == name:
            module = importlib.import_module(module_name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _commands_by_subject() -> str:
    lines = []
    for subject, commands in SUBJECTS.items():
        lines.append(f"{subject}:")
        lines += [f"  {name:<11} {text}" for name, (_, text) in commands.items()]
        lines.append("")
    lines.append("`baton COMMAND --help` explains a command. BATON_URL, or `baton context`, names the server.")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    only = words[0] if words and words[0] in COMMANDS else ""
    try:
        if only:
            expand = getattr(importlib.import_module(COMMANDS[only][0]), "expand", None)
            if expand is not None:
                words = [only, *expand(words[1:])]
        arguments = build_parser(only).parse_args(words)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in SERVER_PACKAGES:
            raise
        print(
            f"baton: `baton {only}` needs the package {package}, which is installed with the server: pip install "
            "'batonq[server]'",
            file=sys.stderr,
        )
        return FAILED
    try:
        with ExitStack() as arguments.resources:
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BatonError as problem:
        print(f"baton: {problem.message}", file=sys.stderr)
        return exit_code_of(problem)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it, as `| head` does
        _discard_output()
        return 0
    return code


def _discard_output() -> None:
    """What is still buffered cannot be written; without this Python would report that at its exit."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

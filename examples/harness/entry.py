"""The command line of an example: how much to run, and the exit code."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from examples.harness.servers import NotStarted
from examples.harness.story import Story

Run = Callable[[int, Path, Story], Coroutine[Any, Any, None]]


def main(run: Run, name: str, what: str, usual: int, title: str) -> int:
    """Run it in a temporary directory. Exit code 0: the books balance; 1: they do not; 2: it could not be started."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=title.format("N") + ".")
    parser.add_argument(f"--{what}", type=int, default=usual, metavar="N", help=f"how many (default {usual})")
    count: int = getattr(parser.parse_args(), what)
    if count < 1:
        parser.error(f"--{what} must be 1 or more")
    logging.getLogger("batonq").setLevel(logging.ERROR)  # the examples have failing handlers on purpose
    before = signal.signal(signal.SIGTERM, _exit)
    story = Story(title.format(count))
    with tempfile.TemporaryDirectory(prefix=f"baton-{name}-") as directory:
        try:
            asyncio.run(run(count, Path(directory), story))
        except NotStarted as problem:
            print(problem, file=sys.stderr)
            return 2
        finally:
            signal.signal(signal.SIGTERM, before)
    return story.end("The books balance.", "The books do not balance.")


def _exit(*_: object) -> None:
    """Ends the program like Ctrl-C, so that all servers are stopped."""
    sys.exit(128 + signal.SIGTERM)

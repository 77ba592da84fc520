"""The command line of an example: its size and its exit code."""

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
    """Run the example in a temporary directory. Returns 0: all checks pass, 1: a check failed, 2: it did not start."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=title.format("N") + ".")
    parser.add_argument(f"--{what}", type=int, default=usual, metavar="N", help=f"how many (default {usual})")
    count: int = getattr(parser.parse_args(), what)
    if count < 1:
        parser.error(f"--{what} is 1 or more")
    logging.getLogger("batonq").setLevel(logging.ERROR)  # failing handlers are part of the examples
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
    return story.end("All checks passed.", "A check failed.")


def _exit(*_: object) -> None:
    """Exit as on Ctrl-C, so that everything that was started is stopped."""
    sys.exit(128 + signal.SIGTERM)

"""`python -m examples.webhooks [--events N]`: the dispatcher and its receivers; exit code 0 if the books balance."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from examples.harness.servers import NotStarted
from examples.harness.story import Story
from examples.webhooks.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.webhooks", description=__doc__)
    parser.add_argument("--events", type=int, default=50, metavar="N", help="how many are published (default 50)")
    events = parser.parse_args().events
    if events < 1:
        parser.error("--events is 1 or more")
    logging.getLogger("batonq.worker").setLevel(logging.ERROR)  # that deliveries fail is what this is about
    story = Story(f"Delivering {events} events to three receivers")
    with tempfile.TemporaryDirectory(prefix="baton-webhooks-") as directory:
        try:
            asyncio.run(run(events, Path(directory), story))
        except NotStarted as problem:
            print(problem, file=sys.stderr)
            return 2
    return story.end("The books balance.", "The books do not balance.")


if __name__ == "__main__":
    sys.exit(main())

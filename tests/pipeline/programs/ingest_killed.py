"""`baton pipeline ingest`, which is killed: ingest_killed.py STEP WORDS…

STEP counts what the driver does to the lake: before and after each commit of a note, and after a batch, when only the
checkpoint does not know of it. "batch": the end of the first batch is the last. "never": it is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from batonq.cli.main import main
from batonq.pipeline.jobs.ingest import Ingest
from batonq.pipeline.lake.files import TableFiles

STEP = sys.argv[1]
_done = 0


def step(name: str) -> None:
    global _done
    if name == STEP or str(_done) == STEP:
        print(f"killed at {name}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    _done += 1


def around(kind: Any, name: str, *, before: bool = False) -> None:
    plain = getattr(kind, name)

    def with_steps(self: Any, *given: Any) -> Any:
        if before:
            step(f"before {name}")
        result = plain(self, *given)
        step("batch" if name == "take" else f"after {name}")
        return result

    setattr(kind, name, with_steps)


around(TableFiles, "commit", before=True)
around(TableFiles, "put_schema")
around(Ingest, "take")
sys.exit(main(["pipeline", "ingest", *sys.argv[2:]]))

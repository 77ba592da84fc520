"""`baton pipeline ingest`, which is killed: ingest_killed.py STEP WORDS…

STEP counts what the driver does to the lake: before and after each commit, and after the files of a batch are written.
"batch": the first batch of events is the last. "never": it is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from batonq.cli.main import main
from batonq.pipeline.jobs.ingest import Ingest
from batonq.pipeline.lake.delta import DeltaLog
from batonq.pipeline.lake.tables import Lake

STEP = sys.argv[1]
_done = 0


def step(name: str) -> None:
    global _done
    if name == STEP or str(_done) == STEP:
        print(f"killed at {name}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    _done += 1


def around(kind: Any, name: str, *, after: str = "") -> None:
    plain = getattr(kind, name)

    def with_steps(self: Any, *given: Any) -> Any:
        step(f"before {name}")
        result = plain(self, *given)
        step(after or f"after {name}")
        return result

    setattr(kind, name, with_steps)


around(DeltaLog, "create")
around(DeltaLog, "_commit")
around(Ingest, "written")
around(Lake, "add", after="batch")
sys.exit(main(["pipeline", "ingest", *sys.argv[2:]]))

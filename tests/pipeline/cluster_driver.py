"""Jobs of the pipeline, one after another in one session: what a driver process does.

python -m tests.pipeline.cluster_driver MASTER JOBS, where JOBS is a JSON list of the words after `baton pipeline`. All
executors are killed in the middle of an audit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from batonq.cli.main import build_parser
from batonq.cli.pipeline import JOBS
from batonq.pipeline.jobs.context import Context
from batonq.pipeline.spark.session import start
from tests.support.spark import JAVA_OPTIONS, NO_CODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    **NO_CODE,
}


def run_jobs(spark: SparkSession, jobs: list[list[str]]) -> list[dict[str, Any]]:
    """Each job's exit code and summary."""
    outcomes = []
    for words in jobs:
        options = build_parser("pipeline").parse_args(["pipeline", *words, "--quiet", "--json"])
        outcome = import_module(JOBS[words[0]]).run(Context(options, spark=spark))
        outcomes.append({"code": outcome.code, "summary": outcome.summary})
        print(*words, outcome.summary, file=sys.stderr)  # for the log of a run that fails
    return outcomes


def executors(application: str) -> list[int]:
    """The processes of an application's executors."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue  # it has ended
        if application.encode() in words and any(word.endswith(b"CoarseGrainedExecutorBackend") for word in words):
            found.append(int(entry.name))
    return found


@contextmanager
def losing_executors(spark: SparkSession) -> Iterator[list[int]]:
    """Kills every executor once, when the audit has cached what several rules use. Yields their processes."""
    from batonq.pipeline.audit import messages

    killed: list[int] = []
    whole = messages.violations

    def violations(*given: Any) -> Any:
        if not killed:
            killed.extend(executors(spark.sparkContext.applicationId))
            for process in killed:
                os.kill(process, signal.SIGKILL)
        return whole(*given)

    with patch.object(messages, "violations", violations):
        yield killed


def main() -> None:
    spark = start("cluster", master=sys.argv[1], settings=SETTINGS)
    try:
        with losing_executors(spark) as killed:
            outcomes = run_jobs(spark, json.loads(sys.argv[2]))
    finally:
        spark.stop()
    print(json.dumps({"outcomes": outcomes, "killed": killed}, default=str))


if __name__ == "__main__":
    main()

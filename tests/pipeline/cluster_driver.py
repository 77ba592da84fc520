"""Jobs of the pipeline, one after another in one session: what a driver process does.

python -m tests.pipeline.cluster_driver MASTER JOBS, where JOBS is a JSON list of the words after `baton pipeline`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def main() -> None:
    spark = start("cluster", master=sys.argv[1], settings=SETTINGS)
    try:
        outcomes = run_jobs(spark, json.loads(sys.argv[2]))
    finally:
        spark.stop()
    print(json.dumps(outcomes, default=str))


if __name__ == "__main__":
    main()

"""`baton pipeline run`: several jobs one after another, in one Spark session."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "ingest, then create all tables, then audit, in one Spark session"
JOBS = ("ingest", "lifecycle", "metrics", "usage", "dead-letters", "report", "audit", "compact")
DEFAULT = ("ingest", "lifecycle", "metrics", "usage", "dead-letters", "audit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help=f"jobs to run, in their own order, out of {', '.join(JOBS)} (default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--cluster", default="", metavar="NAME", help="as in `ingest --cluster`")
    parser.add_argument("--bodies", action="store_true", help="as in `ingest --bodies`")
    parser.add_argument("--rebuild", action="store_true", help="as in `lifecycle --rebuild`")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="as in `report --out`")


def run(context: Context) -> Outcome:
    """Each job with its own defaults and the options given here. The first one that fails is the last one."""
    unknown = sorted(set(context.options.jobs) - set(JOBS))
    if unknown:
        raise InvalidInput(f"run does not know the job {unknown[0]!r}; the jobs are {', '.join(JOBS)}.")
    chosen = [job for job in JOBS if job in (context.options.jobs or DEFAULT)]
    summaries: dict[str, Any] = {}
    code, lines = 0, []
    for at, job in enumerate(chosen):
        context.progress(f"{job} ({at + 1} of {len(chosen)})")
        module = importlib.import_module(f"batonq.pipeline.jobs.{job.replace('-', '_')}")
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        options = argparse.Namespace(**{**vars(parser.parse_args([])), **vars(context.options)})
        outcome: Outcome = module.run(Context(options, spark=context.spark))
        context.spark.catalog.clearCache()
        summaries[job] = outcome.summary
        lines.append(f"{job}: {outcome.text}")
        code = max(code, outcome.code)
    context.progress("")
    return Outcome(code, {"jobs": summaries}, "\n".join(lines))

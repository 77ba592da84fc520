"""`baton pipeline JOB`: load history into tables, query it, and act on it, with Spark. Each job is a module in
pipeline/jobs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import traceback

from batonq.cli.actions import add_action
from batonq.cli.connection import DEFAULT_URL, URL_VARIABLE
from batonq.errors import BatonError

DEFAULT_LAKE = "baton-lake"
DEFAULT_MASTER = "local[*]"
# name: module. A job's module imports Spark only when it runs, so that importing it is fast.
JOBS: dict[str, str] = {
    "run": "batonq.pipeline.jobs.run",
    "ingest": "batonq.pipeline.jobs.ingest",
    "lifecycle": "batonq.pipeline.jobs.lifecycle",
    "metrics": "batonq.pipeline.jobs.metrics",
    "usage": "batonq.pipeline.jobs.usage",
    "report": "batonq.pipeline.jobs.report",
    "dead-letters": "batonq.pipeline.jobs.dead_letters",
    "redrive": "batonq.pipeline.jobs.redrive",
    "archive": "batonq.pipeline.jobs.archive",
    "audit": "batonq.pipeline.jobs.audit",
    "reconcile": "batonq.pipeline.jobs.reconcile",
    "replay": "batonq.pipeline.jobs.replay",
    "backfill": "batonq.pipeline.jobs.backfill",
    "compact": "batonq.pipeline.jobs.compact",
    "files": "batonq.pipeline.jobs.files",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    jobs = parser.add_subparsers(dest="job", metavar="job", required=True)
    for name, module_name in JOBS.items():
        module = importlib.import_module(module_name)
        job = add_action(jobs, name, module.HELP)
        module.add_arguments(job)
        _add_common(job, history=not hasattr(module, "OWN_HISTORY"))


def _add_common(job: argparse.ArgumentParser, *, history: bool) -> None:
    common = job.add_argument_group("options of every job")
    common.add_argument(
        "--lake",
        default=DEFAULT_LAKE,
        metavar="DIR",
        help=f"directory, or s3://bucket/prefix, of the lake (default {DEFAULT_LAKE})",
    )
    if history:
        common.add_argument(
            "--history",
            default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
            metavar="URL",
            help=(
                "source of the history: a node (http://…), a data directory, or an archive (file://…, s3://…); "
                f"default: {URL_VARIABLE}, or {DEFAULT_URL}"
            ),
        )
    common.add_argument(
        "--access-key", metavar="ID", help="access key id for a secured node (default BATON_ACCESS_KEY_ID)"
    )
    common.add_argument("--secret-key", metavar="SECRET", help="secret access key (default BATON_SECRET_ACCESS_KEY)")
    common.add_argument("--master", default=DEFAULT_MASTER, help=f"Spark master (default {DEFAULT_MASTER})")
    common.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting; can be repeated"
    )
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--quiet", action="store_true", help="do not show progress on the terminal")
    common.add_argument("--debug", action="store_true", help="show Spark's log and full tracebacks")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 on success, 1 if the job found problems, 2 if it failed."""
    from batonq.pipeline.jobs.context import Context
    from batonq.pipeline.jobs.problems import is_spark, sentence

    job = importlib.import_module(JOBS[arguments.job])
    context = Context(arguments)
    if not arguments.debug:
        # Spark's Python side logs Java's output, from which the error message below is taken
        logging.disable(logging.CRITICAL)
    try:
        outcome = job.run(context)
    except Exception as problem:
        if isinstance(problem, ImportError):
            message = f"This needs the package {problem.name}: pip install 'batonq[spark]'."
        elif isinstance(problem, BatonError) or is_spark(problem):
            message = sentence(problem)
        else:
            raise
        if arguments.debug:
            traceback.print_exc()
        context.progress("")
        print(f"baton: {message}", file=sys.stderr)
        return 2
    finally:
        context.close()
        logging.disable(logging.NOTSET)
    print(json.dumps(outcome.summary, default=str) if arguments.json else outcome.text)
    return int(outcome.code)

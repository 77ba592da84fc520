"""`baton jobs list|show|pause|resume|cancel`: redrives, replays and other long work on messages."""

from __future__ import annotations

import argparse
import time
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import DONE, FAILED
from batonq.cli.output import (
    body_text,
    cut,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
    printable,
    rate,
)
from batonq.cli.progress import Progress
from batonq.errors import JobNotFound
from batonq.quantities import plural

ENDED = ("COMPLETED", "CANCELLED", "FAILED")
LOOK_EVERY_S = 0.5
BODY_WIDTH = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list jobs, newest first")
    listing.add_argument("--queue", metavar="QUEUE", help="only jobs of this queue")
    listing.add_argument("--all", action="store_true", help="include the jobs that have ended")
    show = add_action(actions, "show", "show the progress of a job")
    show.add_argument("--watch", action="store_true", help="wait until the job has ended, with a progress bar")
    pause = add_action(actions, "pause", "pause a job")
    resume = add_action(actions, "resume", "resume a paused job")
    cancel = add_action(actions, "cancel", "cancel a job; what it has done stays done")
    for action in (show, pause, resume, cancel):
        action.add_argument("job", metavar="JOB", help="id of the job")
    for action in (listing, show, pause, resume, cancel):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    if arguments.action == "list":
        return _list(server, arguments)
    path = job_path(arguments.job)
    try:
        job = server.get(path) if arguments.action == "show" else server.post(f"{path}:{arguments.action}")
    except JobNotFound as problem:
        raise JobNotFound(f"Job {arguments.job!r}: {problem.message} `baton jobs list --all` lists jobs.") from None
    if arguments.action == "show" and arguments.watch:
        return report_watched(arguments, watch(server, job))
    return report(arguments, job)


def report(arguments: argparse.Namespace, job: dict[str, Any]) -> int:
    """Print a job as it is now. The exit code is FAILED if the job has failed."""
    if arguments.json:
        print_json(job)
    else:
        show_job(job)
    return FAILED if job["state"] == "FAILED" else DONE


def report_watched(arguments: argparse.Namespace, job: dict[str, Any]) -> int:
    """Print a job that `watch` has returned. The exit code is FAILED unless the job has done all its work."""
    report(arguments, job)
    if job["state"] == "COMPLETED":
        return DONE
    why = f": {printable(job['why'])}" if job.get("why") else "."
    note(f"Job {job['jobId']} is {job['state'].lower()}{why}")
    if job["state"] == "PAUSED":
        note(f"Resume it with `baton jobs resume {job['jobId']}`, or end it with `baton jobs cancel {job['jobId']}`.")
    return FAILED


def job_path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


def _list(server: Server, arguments: argparse.Namespace) -> int:
    if arguments.queue:
        found = server.get(queue_path(arguments.queue, "jobs"))
        if not arguments.all:
            found["jobs"] = [job for job in found["jobs"] if job["state"] not in ENDED]
    else:
        found = server.get("/v1/jobs", state="all" if arguments.all else "active")
    if arguments.json:
        print_json(found)
        return 0
    if not found["jobs"]:
        note("There are no jobs." if arguments.all else "No job is active; --all lists the jobs that have ended too.")
        return 0
    head = ("JOB", "KIND", "QUEUE", "STATE", "DONE", "LEFT", "RATE/S", "STARTED", "WHY")
    print_table(head, [_row(job) for job in found["jobs"]], right=("DONE", "LEFT", "RATE/S"))
    return 0


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    return (
        job["jobId"],
        job["kind"],
        job["sourceQueue"],
        job["state"],
        str(job["moved"]),
        str(job["remaining"]),
        rate(job["currentRate"]),
        moment(job["startedAtMs"]),
        job.get("why", ""),
    )


# --- one job ----------------------------------------------------------------------------------


def show_job(job: dict[str, Any]) -> None:
    target = job.get("targetQueue", "each message's source queue")
    verb = {"delete": "deleted", "replay": "sent again"}.get(job["kind"], "moved")
    moved = f"would be {verb}" if job["dryRun"] else verb
    rows = [
        ("job", job["jobId"]),
        ("kind", job["kind"] + (" (dry run)" if job["dryRun"] else "")),
        ("from", job["sourceQueue"]),
        ("to", target if job["kind"] != "delete" else ""),
        ("state", job["state"]),
        ("why", printable(job.get("why", ""))),
        ("examined", f"{job['examined']:,}"),
        ("matched", f"{job['matched']:,}"),
        (moved, f"{job['matched'] if job['dryRun'] else job['moved']:,}"),
        ("left", f"{job['remaining']:,}" if not job["dryRun"] else ""),
        ("dead-lettered again", f"{job['diedAgain']:,}" if job.get("diedAgain") else ""),
        ("not found", f"{job['notFound']:,}" if job.get("notFound") else ""),
        ("rate", f"{rate(job['currentRate'])} per second, at most {job['maxMessagesPerSecond']:,}"),
        ("started", moment(job["startedAtMs"])),
        ("ended", moment(job.get("endedAtMs"))),
    ]
    print_fields([(name, value) for name, value in rows if value])
    sample = job.get("sample", [])
    if sample:
        print(f"Examples ({len(sample)} of {plural(job['matched'], 'message')}):")
        head = ("SEQUENCE", "MESSAGE ID", "ERROR", "BODY")
        print_table(head, [_sample_row(message) for message in sample], right=("SEQUENCE",))


def _sample_row(message: dict[str, Any]) -> tuple[str, ...]:
    error = ": ".join(filter(None, (message.get("errorClass"), message.get("reason"))))
    body = cut(printable(body_text(message)), BODY_WIDTH)
    return str(message["sequence"]), message["messageId"], cut(printable(error), BODY_WIDTH), body


def watch(server: Server, job: dict[str, Any]) -> dict[str, Any]:
    """Wait until a job has ended or is paused, with a progress bar. Ctrl-C leaves the job running and says so."""
    label = {"delete": "Deleting", "replay": "Replaying"}.get(job["kind"], "Moving")
    with Progress(f"{label} from {job['sourceQueue']}", 0) as bar:
        try:
            while job["state"] not in (*ENDED, "PAUSED"):
                bar.total = job["moved"] + job["remaining"]
                bar.update(job["moved"], job.get("why", ""))
                time.sleep(LOOK_EVERY_S)
                job = server.get(job_path(job["jobId"]))
        except KeyboardInterrupt:
            note(f"\nThe job continues. `baton jobs show {job['jobId']} --watch` watches it, `jobs cancel` stops it.")
            raise
    return job

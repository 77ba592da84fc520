"""Jobs: redrives, replays and deletions in progress, with pause, resume and cancel."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, Redirect, View

ACTIVE = ("RUNNING", "PAUSED", "CANCELLING")
_VERBS = {"delete": "deleted", "replay": "sent again"}
_DONE_WORDS = {
    "pause": "The job is paused.",
    "resume": "The job runs again.",
    "cancel": "The job is cancelled. What it has done stays done.",
}


async def show_jobs(view: View) -> Page:
    state = view.choice("state", ("all", "active"))
    found = await view.backend.get(path_of("jobs"), state=state)
    sentence, level = jobs_sentence(found["jobs"])
    values = {"jobs": [row(job) for job in found["jobs"]], "state": state, "complete": found.get("complete", True)}
    return Page("Jobs", "jobs.html", sentence, level, values)


async def show_job(view: View) -> Page:
    job = await view.backend.get(path_of("jobs", view.names["job"]))
    needs = job["state"] in ("PAUSED", "FAILED") or job.get("diedAgain")
    level: Level = "warning" if needs else "ok" if job["state"] == "COMPLETED" else "plain"
    return Page(
        f"{job['kind'].capitalize()} of {job['sourceQueue']}", "job.html", sentence_of(job), level, {"job": row(job)}
    )


async def act(view: View) -> Redirect:
    verb = view.form.get("verb", "")
    if verb not in _DONE_WORDS:
        verb = "pause"
    job_id = view.names["job"]
    await view.backend.change("POST", path_of("jobs", job_id) + f":{verb}")
    return Redirect(address(job_id), _DONE_WORDS[verb])


def address(job_id: str) -> str:
    return f"/ui/jobs/{segment(job_id)}"


def row(job: dict[str, Any]) -> dict[str, Any]:
    """A job with what a page shows in addition: how much is done, and how long the rest takes."""
    total = job["matched"] if job["state"] == "COMPLETED" else job["moved"] + job["remaining"]
    rate = job.get("currentRate") or 0
    left_s = job["remaining"] / rate if rate and job["state"] == "RUNNING" else None
    return {
        **job,
        "total": total,
        "left_s": left_s,
        "active": job["state"] in ACTIVE,
        "address": address(job["jobId"]),
        "verb": _VERBS.get(job["kind"], "moved"),
        "level": {"FAILED": "critical", "PAUSED": "warning", "COMPLETED": "ok"}.get(job["state"], ""),
    }


def jobs_sentence(jobs: list[dict[str, Any]]) -> tuple[str, Level]:
    running = [job for job in jobs if job["state"] == "RUNNING"]
    paused = [job for job in jobs if job["state"] == "PAUSED"]
    if paused:
        first = paused[0]
        more = f", and {formats.plural(len(paused) - 1, 'other job')}" if len(paused) > 1 else ""
        return (
            f"The {first['kind']} of {first['sourceQueue']} is paused{more}: {first['why'] or 'by an operator'}",
            "warning",
        )
    if running:
        left = sum(job["remaining"] for job in running)
        return f"{formats.plural(len(running), 'job')} running, {formats.plural(left, 'message')} to go.", "plain"
    return "No job is running.", "ok"


def sentence_of(job: dict[str, Any]) -> str:
    shown = row(job)
    done = f"{formats.number(job['moved'])} of {formats.plural(shown['total'], 'message')} {shown['verb']}"
    target = f" to {job['targetQueue']}" if job.get("targetQueue") else ""
    why = f" {job['why']}" if job.get("why") else ""
    again = f" {formats.number(job['diedAgain'])} of them dead-lettered again." if job.get("diedAgain") else ""
    match job["state"]:
        case "RUNNING":
            left = f", about {formats.duration(shown['left_s'])} left" if shown["left_s"] is not None else ""
            return f"Running: {done}{target}{left}."
        case "PAUSED":
            return f"Paused: {done}{target}.{why}"
        case "COMPLETED":
            return f"Done: {formats.plural(job['moved'], 'message')} {shown['verb']}{target}.{again}"
        case "CANCELLING" | "CANCELLED":
            return f"Cancelled: {done}{target}."
    return f"Failed: {done}{target}.{why}"


ROUTES = (
    Route("/ui/jobs", show_jobs, tab="jobs"),
    Route("/ui/jobs/{job}", show_job, act, tab="jobs"),
)

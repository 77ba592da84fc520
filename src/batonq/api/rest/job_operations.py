"""Rows of the table of operations: jobs."""

from __future__ import annotations

from batonq.api.rest import job_shapes, jobs
from batonq.api.rest.operation import JOB, QUEUE, Operation

JOB_OPERATIONS = (
    Operation(
        name="redrive",
        method="POST",
        path=QUEUE + ":redrive",
        summary="Start a redrive job. The status is 202 with the job, or 200 with the result of a dry run.",
        run=jobs.redrive,
        takes=job_shapes.RedriveSpec,
        body_needed=False,
        answers={202: job_shapes.Job, 200: job_shapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="listJobs",
        method="GET",
        path=QUEUE + "/jobs",
        summary="List the jobs of a queue, newest first.",
        run=jobs.list_jobs,
        answers={200: job_shapes.Jobs},
        errors=(404,),
    ),
    Operation(
        name="getJob",
        method="GET",
        path=JOB,
        summary="Get a job's progress.",
        run=jobs.get_job,
        answers={200: job_shapes.Job},
        errors=(404,),
    ),
    Operation(
        name="cancelJob",
        method="POST",
        path=JOB + ":cancel",
        summary="Cancel a job. Messages that it has moved stay moved.",
        run=jobs.cancel_job,
        answers={200: job_shapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="pauseJob",
        method="POST",
        path=JOB + ":pause",
        summary="Pause a job.",
        run=jobs.pause_job,
        answers={200: job_shapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="resumeJob",
        method="POST",
        path=JOB + ":resume",
        summary="Resume a paused job.",
        run=jobs.resume_job,
        answers={200: job_shapes.Job},
        errors=(404, 409),
    ),
)

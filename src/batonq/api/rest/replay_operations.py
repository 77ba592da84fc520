"""Operations on a queue's exact counters, and replays of its retained history."""

from __future__ import annotations

from batonq.api.rest import counter_shapes, counters, job_shapes, replay_shapes, replays
from batonq.api.rest.operation import QUEUE, Operation

REPLAY_OPERATIONS = (
    Operation(
        name="queueCounters",
        method="GET",
        path=QUEUE + "/counters",
        summary="Get a queue's exact counters, with the log position of each shard that they describe.",
        run=counters.queue_counters,
        answers={200: counter_shapes.QueueCounters},
        errors=(404,),
    ),
    Operation(
        name="replay",
        method="POST",
        path=QUEUE + ":replay",
        summary="Start a job that sends retained messages again. The status is 202 with the job, or 200 with the "
        "result of a dry run.",
        run=replays.replay,
        takes=replay_shapes.ReplaySpec,
        body_needed=False,
        answers={202: job_shapes.Job, 200: job_shapes.Job},
        errors=(404, 409),
    ),
)

"""Rows of the table of operations: schedules."""

from __future__ import annotations

from batonq.api.rest import schedule_shapes as shapes
from batonq.api.rest import schedules
from batonq.api.rest.operation import Operation
from batonq.api.rest.queue_shapes import QueueName

SCHEDULES = "/v1/schedules"
SCHEDULE = "/v1/schedules/{schedule}"

SCHEDULE_OPERATIONS = (
    Operation(
        name="createSchedule",
        method="POST",
        path=SCHEDULES,
        summary="Create a schedule, which sends a message at recurring times. Repeating the request changes nothing.",
        run=schedules.create_schedule,
        takes=shapes.ScheduleSpec,
        answers={201: shapes.ScheduleShown, 200: shapes.ScheduleShown},
        errors=(409,),
    ),
    Operation(
        name="listSchedules",
        method="GET",
        path=SCHEDULES,
        summary="List the schedules of all queues, or of one queue, without their messages.",
        run=schedules.list_schedules,
        answers={200: shapes.Schedules},
        errors=(404,),
        parameters=(("queue", QueueName, "Only the schedules of this queue."),),
    ),
    Operation(
        name="previewSchedule",
        method="POST",
        path=SCHEDULES + ":preview",
        summary="Show the next times of a cron expression or a rate, without creating a schedule.",
        run=schedules.preview_schedule,
        only_reads=True,
        takes=shapes.SchedulePreview,
        answers={200: shapes.ScheduleTimes},
    ),
    Operation(
        name="getSchedule",
        method="GET",
        path=SCHEDULE,
        summary="Get a schedule by its id, NAME@QUEUE: its times, its message, and what it has done.",
        run=schedules.get_schedule,
        answers={200: shapes.ScheduleShown},
        errors=(404,),
    ),
    Operation(
        name="updateSchedule",
        method="PATCH",
        path=SCHEDULE,
        summary="Change a schedule, or pause and resume it with `enabled`.",
        run=schedules.change_schedule,
        takes=shapes.ScheduleChanges,
        answers={200: shapes.ScheduleShown},
        errors=(404, 409),
    ),
    Operation(
        name="deleteSchedule",
        method="DELETE",
        path=SCHEDULE,
        summary="Delete a schedule. Messages that it has sent stay.",
        run=schedules.delete_schedule,
        answers={204: None},
        errors=(404,),
    ),
    Operation(
        name="fireSchedule",
        method="POST",
        path=SCHEDULE + ":fire",
        summary="Send the message of a schedule now, in addition to its own times.",
        run=schedules.fire_schedule,
        answers={202: shapes.FiredNow},
        errors=(404, 409),
    ),
)

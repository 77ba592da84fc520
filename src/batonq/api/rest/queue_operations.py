"""Rows of the table of operations: queues, their consumers and their figures over time."""

from __future__ import annotations

from typing import Literal

from batonq.api.rest import consumer_shapes, consumers, queue_shapes, queues, series, series_shapes
from batonq.api.rest.operation import QUEUE, QUEUES, Operation

QUEUE_OPERATIONS = (
    Operation(
        name="createQueue",
        method="POST",
        path=QUEUES,
        summary="Create a queue. Repeating the request returns the existing queue.",
        run=queues.create_queue,
        takes=queue_shapes.QueueSpec,
        answers={201: queue_shapes.QueueCreated, 200: queue_shapes.QueueCreated},
        errors=(409,),
    ),
    Operation(
        name="listQueues",
        method="GET",
        path=QUEUES,
        summary="List queues by name.",
        run=queues.list_queues,
        answers={200: queue_shapes.Queues},
        parameters=(
            ("prefix", str, "Only queues whose name starts with this."),
            ("limit", queue_shapes.PageSize, "Maximum number of queues; default 100."),
            ("cursor", str, "`nextCursor` of the previous page."),
        ),
    ),
    Operation(
        name="getQueue",
        method="GET",
        path=QUEUE,
        summary="Get a queue's settings.",
        run=queues.get_queue,
        answers={200: queue_shapes.Queue},
        errors=(404,),
    ),
    Operation(
        name="updateQueue",
        method="PATCH",
        path=QUEUE,
        summary="Change some of a queue's settings.",
        run=queues.update_queue,
        takes=queue_shapes.QueueChanges,
        body_needed=False,
        answers={200: queue_shapes.Queue},
        errors=(404, 409),
    ),
    Operation(
        name="deleteQueue",
        method="DELETE",
        path=QUEUE,
        summary="Delete a queue with all its messages.",
        run=queues.delete_queue,
        answers={204: None},
        errors=(404,),
    ),
    Operation(
        name="purgeQueue",
        method="POST",
        path=QUEUE + ":purge",
        summary="Purge a queue: delete all its current messages.",
        run=queues.purge_queue,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="queueStats",
        method="GET",
        path=QUEUE + "/stats",
        summary="Get a queue's statistics.",
        run=queues.queue_stats,
        answers={200: queue_shapes.Stats},
        errors=(404,),
    ),
    Operation(
        name="queueStatsByVerb",
        method="GET",
        path=QUEUE + ":stats",
        summary="Get a queue's statistics (same as above).",
        run=queues.queue_stats,
        answers={200: queue_shapes.Stats},
        errors=(404,),
    ),
)

CONSUMER_OPERATIONS = (
    Operation(
        name="listConsumers",
        method="GET",
        path=QUEUE + "/consumers",
        summary="List the consumers of a queue: who polls it, and who holds its messages.",
        run=consumers.list_consumers,
        answers={200: consumer_shapes.Consumers},
        errors=(404,),
    ),
    Operation(
        name="listWorkers",
        method="GET",
        path="/v1/workers",
        summary="List the consumers of all queues. Requires a key of the server's own account, or the admin token.",
        run=consumers.list_workers,
        answers={200: consumer_shapes.Workers},
    ),
)

_RANGE = (
    "range",
    Literal["15m", "1h", "6h", "24h", "72h"],
    "How far back: 15m in steps of 5 s, 1h of 15 s, 6h of 1 min, 24h of 5 min, 72h of 15 min. Default: 15m.",
)

SERIES_OPERATIONS = (
    Operation(
        name="listQueueStats",
        method="GET",
        path="/v1/queues:stats",
        summary="List queues with their figures: searched, sorted, and in pages.",
        run=series.list_queue_stats,
        answers={200: series_shapes.QueueStats},
        parameters=(
            ("search", str, "Only queues whose name contains this text."),
            (
                "sort",
                series_shapes.Sort,
                "What to sort by. sent, received, acked: by the rate, then the total. dead: dead letters count too.",
            ),
            ("order", Literal["asc", "desc"], "The order. By default names are ascending, figures descending."),
            ("offset", int, "Number of queues to skip."),
            ("limit", int, "Maximum number of queues: 1 to 1,000 (default 100)."),
        ),
    ),
    Operation(
        name="queueSeries",
        method="GET",
        path="/v1/queues/{queue}/series",
        summary="Get a queue's rates, depths, ages and latencies over time.",
        run=series.queue_series,
        answers={200: series_shapes.Series},
        errors=(404,),
        parameters=(_RANGE,),
    ),
    Operation(
        name="serverSeries",
        method="GET",
        path="/v1/series",
        summary="Get the rates, depths, ages and latencies of all queues together over time. For the whole server.",
        run=series.server_series,
        answers={200: series_shapes.Series},
        parameters=(_RANGE,),
    ),
)

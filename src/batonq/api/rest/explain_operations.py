"""Rows of the table of operations: explaining a backlog."""

from __future__ import annotations

from batonq.api.rest import explain_shapes, explaining
from batonq.api.rest.operation import QUEUE, Operation

EXPLAIN_OPERATIONS = (
    Operation(
        name="explainQueue",
        method="GET",
        path=QUEUE + ":explain",
        summary="Explain why a queue's messages wait, with figures and what to do. It changes nothing.",
        run=explaining.explain_queue,
        answers={200: explain_shapes.QueueExplained},
        errors=(404,),
    ),
)

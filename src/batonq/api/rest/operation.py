"""One row of the table of operations, and the paths that several rows share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from batonq.api.rest import shapes
from batonq.api.rest.service import Answer, Call, Finish

Run = Callable[[Call], Awaitable[Answer]]
Start = Callable[[Call, Finish], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Operation:
    name: str  # operationId, and the label in metrics
    method: str
    path: str
    summary: str
    run: Run | None = None
    start: Start | None = None  # for operations on messages, which answer once their records are committed
    takes: Any = None  # the type of the body
    body_needed: bool = True
    answers: dict[int, Any] = field(default_factory=dict)  # status → the type of the body, None for no body
    errors: tuple[int, ...] = ()  # in addition to those that every operation has
    parameters: tuple[tuple[str, Any, str], ...] = ()  # of the query string: name, type, meaning
    headers: tuple[tuple[str, Any, str], ...] = ()
    content: str = ""  # the answer's content type, when it is neither JSON nor MessagePack
    answer_headers: tuple[tuple[str, str], ...] = ()  # of that answer: name, meaning
    only_reads: bool = False  # a POST because it takes a body, although it changes nothing

    @property
    def changes(self) -> bool:
        """Whether the operation changes anything: a key with the role `read` cannot use it then. A GET never does."""
        return self.method != "GET" and not self.only_reads


QUEUES = "/v1/queues"
QUEUE = "/v1/queues/{queue}"
MESSAGES = "/v1/queues/{queue}/messages"
MESSAGE = "/v1/queues/{queue}/messages/{message}"
JOB = "/v1/jobs/{job}"

IDEMPOTENCY_KEY = (
    "Idempotency-Key",
    shapes.IdempotencyKey,
    "If the same request is repeated with this key within 24 hours, the first response is returned again.",
)

"""The reference of workers, from signatures, docstrings and the table of metrics."""

from __future__ import annotations

from batonq import worker
from batonq.worker.metrics import DOCS, DURATIONS, DURATIONS_DOC
from batonq.worker.pool import Pool
from tools.client_docs import block, doc, members

WORKER = ("task", "use", "run", "serve", "stop", "abandon")
SETTINGS = (worker.Lane, worker.Retry, worker.Rate, worker.Router, worker.Rules)
RAISED = (worker.Poison, worker.RetryLater)
TOLD = (worker.DeadlineExceeded, worker.HandlerCrashed)
MIDDLEWARE = (worker.Logging, worker.Tracing, worker.TimeLimit)
SOURCES = (worker.BatonSource, worker.SqsSource)


def worker_part() -> str:
    parts = [f"### Worker\n\n{block(worker.Worker, 'Worker')}\n{doc(worker.Worker)}\n"]
    for name in WORKER:
        member = getattr(worker.Worker, name)
        parts.append(f"#### worker.{name}\n\n{block(member, f'worker.{name}')}\n{doc(member)}\n")
    parts += [
        "### Task settings\n",
        *map(_called, SETTINGS),
        "### Exceptions that a handler can raise\n",
        *map(_called, RAISED),
    ]
    parts.append("These are reported to the broker by name; handlers do not raise them:\n")
    parts += [f"#### {kind.__name__}\n\n{doc(kind)}\n" for kind in TOLD]
    parts.append(f"### Middleware\n\n{doc(worker.Middleware)}\n")
    for name, member in members(worker.Middleware):
        assert not isinstance(member, property)
        parts.append(f"#### middleware.{name}\n\n{block(member, f'middleware.{name}')}\n{doc(member)}\n")
    parts += [
        *map(_called, MIDDLEWARE),
        "### Sources\n",
        *map(_called, SOURCES),
        "### A pool of processes\n",
        _called(Pool),
    ]
    return "\n".join(parts)


def worker_metrics_part() -> str:
    rows = [f"| `baton_worker_{name}_total` | counter | {text} |" for name, text in DOCS.items()]
    head = ["| metric | kind | meaning |", "| --- | --- | --- |"]
    gauge = "| `baton_worker_running` | gauge | Number of busy slots. |"
    return "\n".join([*head, *rows, gauge, f"| `{DURATIONS}` | histogram | {DURATIONS_DOC} |"])


def _called(thing: type) -> str:
    return f"#### {thing.__name__}\n\n{block(thing, thing.__name__)}\n{doc(thing)}\n"

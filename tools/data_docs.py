"""The reference of idempotency and outbox, from signatures, docstrings and field comments."""

from __future__ import annotations

import inspect
from typing import Any

from batonq import idempotency, outbox
from batonq.idempotency import conditional
from batonq.outbox.cdc import StreamSource
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.source import Lag
from batonq.outbox.sqlite import SqliteSource
from tools.client_docs import block, doc, fields, members

GUARDS = (idempotency.idempotent, idempotency.OrderedGuard)
STORES = (idempotency.MemoryStore, idempotency.SqliteStore, idempotency.PostgresStore, idempotency.RedisStore)
TRANSACTIONS = (
    idempotency.once,
    idempotency.once_async,
    idempotency.idempotent_in_transaction,
    idempotency.next_in_order,
)
WRITES = (conditional.insert_if_absent, conditional.update_if_version, conditional.advance_status)
RAISED = (idempotency.Busy, idempotency.OutOfOrder, idempotency.ClaimLost)
WRITING = (outbox.create_tables, outbox.put, outbox.put_async, outbox.seen, outbox.seen_async, outbox.prune_inbox)
SOURCES = (PostgresSource, StreamSource, SqliteSource)
PUBLISHERS = (outbox.BatonPublisher, outbox.SqsPublisher)


def idempotency_part() -> str:
    parts = ["### Around a handler\n", *map(_called, GUARDS)]
    parts += ["### Stores\n", *map(_called, STORES)]
    parts.append("Every store has these methods:\n")
    for name, member in members(idempotency.Store):
        if not isinstance(member, property) and name != "call":
            parts.append(f"#### store.{name}\n\n{block(member, f'store.{name}')}\n{doc(member)}\n")
    parts += ["### In a transaction\n", *map(_called, TRANSACTIONS)]
    parts += ["### Conditional writes\n", *map(_called, WRITES)]
    parts += ["### Raised\n", *(f"#### {kind.__name__}\n\n{doc(kind)}\n" for kind in RAISED)]
    return "\n".join(parts)


def outbox_part() -> str:
    parts = ["### Writing\n", *map(_called, WRITING), "### The relay\n", _called(outbox.Relay)]
    for name, member in members(outbox.Relay):
        if not isinstance(member, property):
            parts.append(f"#### relay.{name}\n\n{block(member, f'relay.{name}')}\n{doc(member)}\n")
    parts += ["### Sources\n", *map(_called, SOURCES), "### Publishers\n", *map(_called, PUBLISHERS)]
    parts.append(f"### Lag\n\n{doc(Lag)}\n\n{fields(Lag)}")
    return "\n".join(parts)


def _called(thing: Any) -> str:
    name = thing.__name__
    call = f"await {name}" if inspect.iscoroutinefunction(thing) else name
    return f"#### {name}\n\n{block(thing, call)}\n{doc(thing)}\n"

"""The application's side: put a message into the outbox, or a message's id into the inbox, in its own transaction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from batonq import databases
from batonq.client.models import AttributeValue, Priority
from batonq.databases import Dialect, quoted
from batonq.errors import InvalidInput
from batonq.outbox import rows, schema


def create_tables(connection: Any, *, table: str = schema.OUTBOX, inbox: str = schema.INBOX) -> None:
    """Create the tables of outbox and inbox if they do not exist; in the connection's transaction."""
    dialect = databases.kind_of(connection).dialect
    for statement in _creation(dialect, table, inbox):
        databases.execute(connection, statement, {})


async def create_tables_async(connection: Any, *, table: str = schema.OUTBOX, inbox: str = schema.INBOX) -> None:
    dialect = databases.kind_of(connection).dialect
    for statement in _creation(dialect, table, inbox):
        await databases.execute_async(connection, statement, {})


def put(
    connection: Any,
    queue: str | None = None,
    body: Any = ...,
    *,
    topic: str | None = None,
    key: str | None = None,
    delay: float | None = None,
    ttl: float | None = None,
    priority: Priority | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    max_receives: int | None = None,
    dedup_key: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
    table: str = schema.OUTBOX,
) -> int:
    """Write a message that is published if, and only if, the connection's transaction commits. Returns the row's id.

    The message is for a queue, or for a topic: `put(connection, topic="orders", body=...)`. Messages with the same
    `key` are published in the order in which they were put; it is also the message group. The body is any JSON value,
    or bytes. A delay starts when the message is published.
    """
    databases.require_transaction(connection, "put()")
    options = rows.encode_options(
        delay=delay,
        ttl=ttl,
        priority=priority,
        attributes=attributes,
        max_receives=max_receives,
        dedup_key=dedup_key,
        traceparent=traceparent,
        tracestate=tracestate,
    )
    statement = _insertion(databases.kind_of(connection).dialect, table)
    return int(databases.execute(connection, statement, _values(queue, topic, body, key, options)).first[0])


async def put_async(
    connection: Any,
    queue: str | None = None,
    body: Any = ...,
    *,
    topic: str | None = None,
    key: str | None = None,
    delay: float | None = None,
    ttl: float | None = None,
    priority: Priority | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    max_receives: int | None = None,
    dedup_key: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
    table: str = schema.OUTBOX,
) -> int:
    """`put` for psycopg's async connections."""
    databases.require_transaction(connection, "put_async()")
    options = rows.encode_options(
        delay=delay,
        ttl=ttl,
        priority=priority,
        attributes=attributes,
        max_receives=max_receives,
        dedup_key=dedup_key,
        traceparent=traceparent,
        tracestate=tracestate,
    )
    statement = _insertion(databases.kind_of(connection).dialect, table)
    values = _values(queue, topic, body, key, options)
    return int((await databases.execute_async(connection, statement, values)).first[0])


def seen(connection: Any, message_id: str, *, consumer: str = "", table: str = schema.INBOX) -> bool:
    """Whether a message's effect is already committed. If not, its id is recorded, to commit with the effect.

    Call it first in the transaction of the effect. A second delivery in the meantime waits for the end of this one.
    `consumer` separates consumers that share a database.
    """
    databases.require_transaction(connection, "seen()")
    noted = databases.execute(connection, _note(table), _noted(message_id, consumer))
    return noted.changed == 0


async def seen_async(connection: Any, message_id: str, *, consumer: str = "", table: str = schema.INBOX) -> bool:
    """`seen` for psycopg's async connections."""
    databases.require_transaction(connection, "seen_async()")
    noted = await databases.execute_async(connection, _note(table), _noted(message_id, consumer))
    return noted.changed == 0


def prune_inbox(connection: Any, older_than: float, *, table: str = schema.INBOX) -> int:
    """Delete ids that were recorded more than this many seconds ago. Returns their number."""
    postgres = databases.kind_of(connection).dialect == "postgresql"
    end = "clock_timestamp() - make_interval(secs => :age)" if postgres else f"{schema.SQLITE_NOW} - :age"
    sql = f"DELETE FROM {quoted(table)} WHERE seen_at < {end}"
    return databases.execute(connection, sql, {"age": float(older_than)}).changed


def _creation(dialect: Dialect, table: str, inbox: str) -> list[str]:
    return schema.outbox_statements(dialect, schema.Names(table)) + schema.inbox_statements(dialect, inbox)


@lru_cache(64)
def _insertion(dialect: Dialect, table: str) -> str:
    body, options = (
        ("CAST(:body AS json)", "CAST(:options AS json)") if dialect == "postgresql" else (":body", ":options")
    )
    return (
        f"INSERT INTO {schema.Names(table).outbox} (queue, key, body, data, options)"
        f" VALUES (:queue, :key, {body}, :data, {options}) RETURNING id"
    )


def _values(queue: str | None, topic: str | None, body: Any, key: str | None, options: str | None) -> dict[str, Any]:
    if body is ...:
        raise TypeError("put() needs a body")
    text, data = rows.encode_body(body)
    return {"queue": rows.destination(queue, topic, key), "key": key, "body": text, "data": data, "options": options}


@lru_cache(64)
def _note(table: str) -> str:
    return f"INSERT INTO {quoted(table)} (consumer, message_id) VALUES (:consumer, :message) ON CONFLICT DO NOTHING"


def _noted(message_id: object, consumer: str) -> dict[str, str]:
    id = getattr(message_id, "id", message_id)
    if not isinstance(id, str) or not id:
        raise InvalidInput(f"seen() needs a message or its id, not {message_id!r}.")
    return {"message": id, "consumer": consumer}

"""Outbox and inbox: a business row commits together with its message, and a message's effect together with its id.

The application calls `put` and `seen` with its own connection (sqlite3, psycopg, SQLAlchemy); a `Relay`, or `baton
outbox relay`, publishes the committed rows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batonq.outbox.publishers import BatonPublisher as BatonPublisher
    from batonq.outbox.publishers import Publisher as Publisher
    from batonq.outbox.publishers import SqsPublisher as SqsPublisher
    from batonq.outbox.relay import Relay as Relay
    from batonq.outbox.writing import create_tables as create_tables
    from batonq.outbox.writing import create_tables_async as create_tables_async
    from batonq.outbox.writing import prune_inbox as prune_inbox
    from batonq.outbox.writing import put as put
    from batonq.outbox.writing import put_async as put_async
    from batonq.outbox.writing import seen as seen
    from batonq.outbox.writing import seen_async as seen_async

_WHERE = {
    "BatonPublisher": "publishers",
    "Publisher": "publishers",
    "Relay": "relay",
    "SqsPublisher": "publishers",
    "create_tables": "writing",
    "create_tables_async": "writing",
    "prune_inbox": "writing",
    "put": "writing",
    "put_async": "writing",
    "seen": "writing",
    "seen_async": "writing",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

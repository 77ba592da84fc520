"""Processing a message once: claims with a lease, effects in one transaction, conditional writes, and ordering.

A message can be delivered more than once; its effect should happen once. `docs/explanation/idempotency.md` describes
the four layers and when to use which. Libraries (psycopg, redis, SQLAlchemy) are imported where they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batonq.idempotency.decorator import idempotent as idempotent
    from batonq.idempotency.failures import Busy as Busy
    from batonq.idempotency.failures import ClaimLost as ClaimLost
    from batonq.idempotency.failures import OutOfOrder as OutOfOrder
    from batonq.idempotency.memory import MemoryStore as MemoryStore
    from batonq.idempotency.ordered import OrderedGuard as OrderedGuard
    from batonq.idempotency.postgres import PostgresStore as PostgresStore
    from batonq.idempotency.redis import RedisStore as RedisStore
    from batonq.idempotency.sqlite import SqliteStore as SqliteStore
    from batonq.idempotency.store import Claim as Claim
    from batonq.idempotency.store import ClaimState as ClaimState
    from batonq.idempotency.store import Place as Place
    from batonq.idempotency.store import Store as Store
    from batonq.idempotency.transaction import idempotent_in_transaction as idempotent_in_transaction
    from batonq.idempotency.transaction import next_in_order as next_in_order
    from batonq.idempotency.transaction import once as once
    from batonq.idempotency.transaction import once_async as once_async

_WHERE = {
    "Busy": "failures",
    "Claim": "store",
    "ClaimLost": "failures",
    "ClaimState": "store",
    "MemoryStore": "memory",
    "OrderedGuard": "ordered",
    "OutOfOrder": "failures",
    "Place": "store",
    "PostgresStore": "postgres",
    "RedisStore": "redis",
    "SqliteStore": "sqlite",
    "Store": "store",
    "idempotent": "decorator",
    "idempotent_in_transaction": "transaction",
    "next_in_order": "transaction",
    "once": "transaction",
    "once_async": "transaction",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)

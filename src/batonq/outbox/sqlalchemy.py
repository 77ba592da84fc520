"""The outbox through SQLAlchemy: the same functions, with a Connection or a Session (async ones: `run_sync`)."""

from __future__ import annotations

from batonq.outbox.writing import create_tables as create_tables
from batonq.outbox.writing import put as put
from batonq.outbox.writing import seen as seen

__all__ = ["create_tables", "put", "seen"]

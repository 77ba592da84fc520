"""Which store keeps the logs: by the address that `--log` gives."""

from __future__ import annotations

from batonq.errors import InvalidInput
from batonq.log.backend import LogStore


async def open_store(url: str) -> LogStore:
    """Connect and check. Raises InvalidInput, Unsafe, Unavailable, each saying what to do."""
    scheme = url.partition("://")[0]
    if scheme not in ("postgres", "postgresql"):
        raise InvalidInput(f"The log's address must begin with postgres://, not {url.partition('@')[2] or url!r}.")
    try:
        from batonq.log.postgres import address
        from batonq.log.postgres.store import PostgresStore
    except ImportError:
        raise InvalidInput("A log in PostgreSQL needs psycopg: pip install 'batonq[server,postgres]'.") from None
    return await PostgresStore.open(address.parse(url))

"""Chooses the store of the logs by the URL in `--log-url`."""

from __future__ import annotations

from batonq.errors import InvalidInput
from batonq.log.backend import LogStore


async def open_store(url: str) -> LogStore:
    """Connect and check. Raises InvalidInput, Unsafe, Unavailable, each saying what to do."""
    scheme = url.partition("://")[0]
    if scheme in ("nats", "tls"):
        return await _nats(url)
    if scheme in ("postgres", "postgresql"):
        return await _postgres(url)
    raise InvalidInput(
        f"--log-url must be a URL that begins with nats:// or postgres://, not {url.partition('@')[2] or url!r}."
    )


async def _nats(url: str) -> LogStore:
    try:
        from batonq.log.jetstream import address
        from batonq.log.jetstream.store import JetStreamStore
    except ImportError:
        raise InvalidInput("A log in NATS JetStream needs nats-py: pip install 'batonq[server,cluster]'.") from None
    return await JetStreamStore.open(address.parse(url))


async def _postgres(url: str) -> LogStore:
    try:
        from batonq.log.postgres import address
        from batonq.log.postgres.store import PostgresStore
    except ImportError:
        raise InvalidInput("A log in PostgreSQL needs psycopg: pip install 'batonq[server,postgres]'.") from None
    return await PostgresStore.open(address.parse(url))

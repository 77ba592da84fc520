"""Plants violations in events, so that an audit has something to find."""

from __future__ import annotations

# The changes, and the number of events of each; the audit knows which rules they violate.
_PLANTED = {
    "lease_epoch = lease_epoch + 1": ("event = 'deleted' AND reason = 'ack'", 20),
    "receive_count = receive_count + 1": ("event = 'leased'", 20),
    "visible_at = time + INTERVAL 1 HOUR": ("event = 'sent'", 20),
    "time = time - INTERVAL 2 MINUTE": ("event = 'leased'", 10),
    "queue = queue + 1": ("event = 'extended'", 5),
    "dedup_key = 'planted'": ("event = 'sent' AND dedup_key IS NOT NULL", 10),
}
_DROPPED = {"event = 'sent'": 10, "event = 'returned'": 20, "event = 'deleted' AND queue_name LIKE '%fifo'": 10}


def plant(events: list[str], target: str) -> None:
    """A copy of the events with violations, at places that depend only on the events."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        connection.execute(f"CREATE TABLE events AS SELECT * FROM read_parquet({events!r})")
        some = "SELECT shard, logical_time FROM events WHERE {} ORDER BY hash(shard, logical_time, '{}') LIMIT {}"
        for change, (where, count) in _PLANTED.items():
            chosen = some.format(where, change.split()[0], count)
            connection.execute(f"UPDATE events SET {change} WHERE (shard, logical_time) IN ({chosen})")
        for where, count in _DROPPED.items():
            chosen = some.format(where, "dropped", count)
            connection.execute(f"DELETE FROM events WHERE (shard, logical_time) IN ({chosen})")
        connection.execute(f"COPY events TO '{target}' (FORMAT parquet, COMPRESSION zstd)")

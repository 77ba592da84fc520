"""message_lifecycle in DuckDB.

It creates the same rows as batonq.pipeline.tables.lifecycle, which the section checks, for histories without purges and
dropped fronts: those parts are left out, in favour of the comparison.
"""

from __future__ import annotations

_CODES = """CASE event
    WHEN 'sent' THEN 1 WHEN 'arrived' THEN 1 WHEN 'leased' THEN 2 WHEN 'extended' THEN 2 WHEN 'owed' THEN 3
    WHEN 'returned' THEN CASE WHEN visible_at IS NULL THEN 4 ELSE 1 END
    WHEN 'settled' THEN CASE WHEN reason = 'accepted' THEN 5 WHEN visible_at IS NULL THEN 4 ELSE 1 END
    WHEN 'deleted' THEN CASE reason WHEN 'ack' THEN 6 WHEN 'late_ack' THEN 7 WHEN 'retention' THEN 8
        WHEN 'purged' THEN 9 ELSE 0 END
    ELSE 0 END"""
OUTCOMES = {
    6: "acked",
    7: "late_acked",
    8: "expired",
    9: "purged",
    2: "in_flight",
    3: "owed",
    4: "dead",
}

_SQL = f"""
WITH RECURSIVE coded AS (
    SELECT *, {_CODES} AS code FROM read_parquet($events) WHERE sequence IS NOT NULL
), found AS (
    SELECT source, shard, sequence,
        any_value(message_id) AS message_id, max(queue) AS queue, max(priority) AS priority,
        max(sent_at) AS sent_at, max(expires_at) AS expires_at, max(lease_epoch) AS lease_epoch,
        arg_max_null(receive_count - CASE WHEN event = 'returned' AND flags & 16 != 0 AND receive_count > 0 THEN 1
            ELSE 0 END, logical_time) FILTER (receive_count IS NOT NULL) AS receives,
        arg_max_null(body_bytes, logical_time) FILTER (body_bytes IS NOT NULL) AS body_bytes,
        arg_max_null(attributes_bytes, logical_time) FILTER (body_bytes IS NOT NULL) AS attributes_bytes,
        arg_max_null("group", logical_time) FILTER (body_bytes IS NOT NULL) AS "group",
        arg_max_null(lineage, logical_time) FILTER (body_bytes IS NOT NULL) AS lineage,
        arg_max_null(code, logical_time) AS code, max(logical_time) AS last_at,
        arg_max_null(coalesce(deadline, visible_at), logical_time) AS until,
        arg_min_null(CASE WHEN event = 'arrived' THEN time ELSE visible_at END, logical_time)
            FILTER (event IN ('sent', 'arrived', 'carried', 'edited')) AS visible_at,
        max(logical_time) FILTER (event IN ('sent', 'arrived')) AS born,
        arg_max_null(error_class, logical_time) FILTER (event = 'returned' AND reason IN ('nack', 'expired')
            AND (error_class IS NOT NULL OR error_text IS NOT NULL)) AS last_error_class,
        arg_max_null(error_text, logical_time) FILTER (event = 'returned' AND reason IN ('nack', 'expired')
            AND (error_class IS NOT NULL OR error_text IS NOT NULL)) AS last_error_text,
        arg_max_null(reason, logical_time) FILTER (event = 'owed') AS bound,
        max(time) FILTER (event = 'arrived') AS arrived_at,
        min(time) FILTER (event = 'leased' AND lease_epoch = 1) AS first_receive_at,
        max(time) FILTER (event = 'leased') AS last_receive_at,
        max(time) FILTER (code >= 5) AS ended_at, min(time) AS first_at,
        count(*) FILTER (event = 'returned' AND reason = 'nack') AS nacks,
        count(*) FILTER (event = 'returned' AND reason = 'expired') AS expiries,
        count(*) FILTER (event = 'returned' AND reason = 'released') AS releases,
        count(*) FILTER (event = 'returned' AND flags & 16 != 0) AS untried,
        count(*) FILTER (event = 'extended') AS extensions
    FROM coded GROUP BY source, shard, sequence
), shards AS (
    SELECT source, shard, max(time) AS as_of FROM read_parquet($events) GROUP BY source, shard
), graces AS (
    SELECT source, shard, logical_time, grace_ms FROM read_parquet($events) WHERE event = 'epoch' AND grace_ms > 0
), given AS (
    SELECT found.source, found.shard, sequence, sum(grace_ms) AS grace_ms
    FROM found JOIN graces ON found.source = graces.source AND found.shard = graces.shard AND logical_time > last_at
    WHERE code = 2 GROUP BY ALL
), names AS (
    SELECT source, queue, max(name) AS queue_name, max(tenant) AS tenant
    FROM read_parquet($queues) WHERE name IS NOT NULL GROUP BY source, queue
), moves AS (
    SELECT owed.source, owed.shard AS from_shard, owed.sequence AS from_sequence, owed.reason,
        came.shard AS to_shard, came.sequence AS to_sequence
    FROM (SELECT *, CASE WHEN shard = other_shard THEN logical_time + 1 ELSE channel_number END AS entry
          FROM read_parquet($events) WHERE event = 'owed') AS owed
    JOIN (SELECT *, CASE WHEN flags & 64 != 0 THEN logical_time ELSE channel_number END AS entry
          FROM read_parquet($events) WHERE event = 'arrived' AND sequence IS NOT NULL) AS came
    ON owed.source = came.source AND owed.shard = came.other_shard AND owed.other_shard = came.shard
        AND owed.entry = came.entry
), line AS (
    SELECT DISTINCT source, from_shard AS root_shard, from_sequence AS root_sequence, 0 AS depth,
        from_shard AS shard, from_sequence AS sequence, CAST(NULL AS VARCHAR) AS reason
    FROM moves ANTI JOIN (SELECT source, to_shard AS from_shard, to_sequence AS from_sequence FROM moves) AS later
        USING (source, from_shard, from_sequence)
    UNION ALL
    SELECT line.source, root_shard, root_sequence, depth + 1, to_shard, to_sequence, moves.reason
    FROM line JOIN moves ON line.source = moves.source AND shard = from_shard AND sequence = from_sequence
), members AS (
    SELECT line.*, found.message_id, found.body_bytes, found.attributes_bytes, found."group",
        found.lineage ->> 'first_id' AS told
    FROM line JOIN found USING (source, shard, sequence)
), told AS (
    SELECT source, shard, sequence,
        coalesce(first_value(told) OVER path, first_value(message_id) OVER path) AS first_id,
        lag(message_id) OVER path AS previous_id, lead(message_id) OVER path AS next_id,
        count(*) FILTER (reason IN ('dead_letter', 'expiry_dead_letter')) OVER whole AS line_deaths,
        count(*) FILTER (reason = 'redrive') OVER whole AS line_redrives,
        last_value(body_bytes IGNORE NULLS) OVER path AS body_bytes,
        last_value(attributes_bytes IGNORE NULLS) OVER path AS attributes_bytes,
        last_value("group" IGNORE NULLS) OVER path AS "group"
    FROM members
    WINDOW path AS (PARTITION BY source, root_shard, root_sequence ORDER BY depth),
        whole AS (PARTITION BY source, root_shard, root_sequence)
)
SELECT found.source, found.shard, found.sequence, message_id,
    coalesce(told.first_id, found.lineage ->> 'first_id', message_id) AS first_id, previous_id, next_id,
    found.queue, queue_name, tenant, coalesce(found."group", told."group") AS "group", priority,
    coalesce(found.body_bytes, told.body_bytes) AS body_bytes, sent_at, visible_at, arrived_at, first_receive_at,
    last_receive_at, ended_at, coalesce(receives, 0) AS receives, coalesce(lease_epoch, 0) AS leases, nacks, expiries,
    extensions, epoch_ms(first_receive_at) - epoch_ms(visible_at) AS dwell_ms,
    CASE WHEN code IN (6, 7) THEN epoch_ms(ended_at) - epoch_ms(last_receive_at) END AS handling_ms,
    CASE WHEN code IN (6, 7) THEN epoch_ms(ended_at) - epoch_ms(sent_at) END AS end_to_end_ms,
    CASE code {" ".join(f"WHEN {code} THEN '{outcome}'" for code, outcome in OUTCOMES.items())}
        WHEN 5 THEN CASE WHEN bound IN ('dead_letter', 'expiry_dead_letter') THEN 'dead_lettered'
            WHEN bound = 'redrive' THEN 'redriven' ELSE 'moved' END
        WHEN 1 THEN CASE WHEN until > as_of THEN 'delayed' ELSE 'waiting' END ELSE 'unknown' END AS outcome,
    last_error_class, last_error_text, coalesce(line_deaths, 0) AS line_deaths,
    coalesce(line_redrives, 0) AS line_redrives, born IS NULL AS opened, releases, untried,
    coalesce(found.attributes_bytes, told.attributes_bytes) AS attributes_bytes, expires_at,
    CASE WHEN code = 2 THEN until + to_milliseconds(coalesce(given.grace_ms, 0)) END AS deadline, as_of,
    CAST(coalesce(sent_at, first_at) AS DATE) AS date
FROM found JOIN shards USING (source, shard) LEFT JOIN names USING (source, queue)
LEFT JOIN told USING (source, shard, sequence) LEFT JOIN given USING (source, shard, sequence)
"""


def make(events: list[str], queues: list[str], target: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        copy = f"COPY ({_SQL}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
        connection.execute(copy, {"events": events, "queues": queues})

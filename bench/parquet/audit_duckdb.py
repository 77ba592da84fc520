"""The audit in DuckDB: a second implementation of the rules of batonq.pipeline.audit.

It is for histories without purges, dropped fronts, moved FIFO messages and keys that live as long as their message:
those parts are left out, in favour of the comparison, as are reasons that do not fit and maximums of receives that a
message has of its own. A row is a violation: its kind, shard and sequence (none for
those of a shard's log). The section checks that all implementations agree.
"""

from __future__ import annotations

from batonq.core.records import ArrivedFlag, DeletedFlag, ReturnedFlag
from bench.parquet.rules import ALLOWED, DEAD, DELAYED, DELETED, HELD, OWED, VISIBLE

_STATE = f"""CASE event
    WHEN 'sent' THEN CASE WHEN visible_at > time THEN {DELAYED} ELSE {VISIBLE} END
    WHEN 'arrived' THEN {VISIBLE} WHEN 'leased' THEN {HELD} WHEN 'extended' THEN {HELD} WHEN 'deleted' THEN {DELETED}
    WHEN 'owed' THEN {OWED} WHEN 'settled' THEN CASE WHEN reason = 'accepted' THEN {DELETED} ELSE {DELAYED} END
    WHEN 'returned' THEN CASE WHEN visible_at IS NULL THEN {DEAD} WHEN visible_at <= time THEN {VISIBLE}
        ELSE {DELAYED} END END"""
_HOLDERS = """(event = 'extended' OR event = 'deleted' AND reason = 'ack'
    OR event = 'returned' AND reason IN ('nack', 'released'))"""
_MESSAGES = f"""
SELECT unnest(list_filter([k1, k2, k3, k4, k5, k6, k7, k8, k9, k10], lambda one: one IS NOT NULL)) AS kind, shard,
    sequence
FROM (
    SELECT shard, sequence,
        CASE WHEN p_lt IS NULL THEN CASE WHEN event NOT IN ('sent', 'arrived') THEN 'never_sent' END
            WHEN event IN ('sent', 'arrived') THEN 'sent_twice' WHEN p_state = {DELETED} THEN 'after_end'
            WHEN event = 'leased' THEN CASE was WHEN {VISIBLE} THEN NULL WHEN {HELD} THEN 'two_holders'
                WHEN {DELAYED} THEN 'early' ELSE 'not_ready' END
            WHEN ({_HOLDERS} OR event = 'deleted' AND (reason = 'late_ack' OR flags & {DeletedFlag.LATE:d} <> 0)
                OR event = 'owed' AND reason = 'dead_letter') AND p_epoch = 0 THEN 'never_leased'
            WHEN {_HOLDERS} AND (was <> {HELD} OR time >= p_until)
                THEN CASE WHEN p_state <> {HELD} OR time >= ends THEN 'not_held' END
            WHEN event = 'owed' AND p_state = {HELD} AND reason <> 'expiry_dead_letter' THEN 'moved_while_held'
            WHEN (was, event, state) NOT IN ({", ".join(map(repr, ALLOWED))}) THEN 'transition' END AS k1,
        CASE WHEN event = 'leased' AND epoch <> p_epoch + 1 AND p_state <> {DELETED} THEN 'lease_epoch' END AS k2,
        CASE WHEN p_state <> {DELETED} AND count <> p_count + CASE WHEN event = 'leased' THEN 1 ELSE 0 END
            THEN 'receive_count' END AS k3,
        CASE WHEN event <> 'leased' AND epoch <> p_epoch AND p_state <> {DELETED} THEN 'stale_epoch' END AS k4,
        CASE WHEN event = 'leased' AND time >= p_expires THEN 'lease_after_expiry' END AS k5,
        CASE WHEN event = 'deleted' AND (reason = 'late_ack' OR flags & {DeletedFlag.LATE:d} <> 0) AND (
            reason <> 'late_ack' OR flags & {DeletedFlag.LATE:d} = 0 OR coalesce(fifo, false)
            OR p_state = {HELD} AND time < ends)
            THEN 'late_delete' END AS k6,
        CASE WHEN event = 'returned' AND reason = 'expired' AND p_state = {HELD} AND time < ends
            THEN 'lease_cut_short' END AS k7,
        CASE WHEN (event = 'deleted' AND reason = 'retention' OR event = 'owed' AND reason = 'expiry_dead_letter')
            AND time < p_expires THEN 'expired_early' END AS k8,
        CASE WHEN queue <> p_queue THEN 'wrong_queue' END AS k9,
        CASE WHEN event = 'leased' AND p_state <> {DELETED} AND max_receives > 0
            AND p_count - first_count >= max_receives THEN 'received_too_often' END AS k10
    FROM (
        SELECT pairs.*, fifo, max_receives,
            CASE WHEN p_state = {DELAYED} AND p_until <= time THEN {VISIBLE} ELSE p_state END AS was,
            p_until + to_milliseconds(coalesce(grace_ms, 0)) AS ends
        FROM (
            SELECT *, lag(lt) OVER life AS p_lt, lag(state) OVER life AS p_state, lag(queue) OVER life AS p_queue,
                lag(until) OVER life AS p_until, lag(owner) OVER life AS p_owner,
                last_value(epoch IGNORE NULLS) OVER past AS p_epoch,
                last_value(after IGNORE NULLS) OVER past AS p_count,
                last_value(expires IGNORE NULLS) OVER past AS p_expires,
                first_value(count IGNORE NULLS) OVER past AS first_count
            FROM (
                SELECT shard, sequence, logical_time AS lt, event, flags, reason, {_STATE} AS state, queue, time,
                    coalesce(deadline, visible_at) AS until, expires_at AS expires, owner_epoch AS owner,
                    CASE WHEN event IN ('sent', 'arrived') THEN 0 ELSE lease_epoch END AS epoch,
                    CASE WHEN event = 'sent' THEN 0 ELSE receive_count END AS count,
                    CASE WHEN event = 'returned' AND flags & {ReturnedFlag.UNCHARGED:d} <> 0 THEN greatest(count - 1, 0)
                        ELSE count END AS after
                FROM events WHERE sequence IS NOT NULL
            )
            WINDOW life AS (PARTITION BY shard, sequence ORDER BY lt),
                past AS (PARTITION BY shard, sequence ORDER BY lt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        ) AS pairs LEFT JOIN policies USING (shard, queue)
        LEFT JOIN graces ON graces.shard = pairs.shard AND p_owner = before AND owner = since
    )
) WHERE coalesce(k1, k2, k3, k4, k5, k6, k7, k8, k9, k10) IS NOT NULL"""
_OPENED = "event IN ('sent', 'arrived') AND sequence IS NOT NULL"
_SHARDS = f"""
SELECT kind, shard, NULL AS sequence FROM (
    SELECT *, unnest(list_filter([
        CASE WHEN (p_frame IS NULL OR frame <> p_frame) AND (first_row <> 0 OR rows_in <> last_in + 1
            OR frame <> p_frame + 1) THEN 'frame_gap' END,
        CASE WHEN time < p_time OR frame = p_frame AND first_row <= p_row AND time <> p_time THEN 'time_back' END,
        CASE WHEN owner < p_owner OR owner > p_owner AND named IS DISTINCT FROM owner OR named <> owner
            OR named <= p_owner THEN 'owner_epoch' END,
        CASE WHEN opened > 0 AND (highest - lowest + 1 <> opened OR 2 * total <> opened * (lowest + highest)
            OR first_sequence <> coalesce(p_sequence, 0) + 1) THEN 'sequence_gap' END
    ], lambda one: one IS NOT NULL)) AS kind
    FROM (
        SELECT *, before.frame AS p_frame, before.last_row AS p_row, before.time AS p_time, before.owner AS p_owner
        FROM (
            SELECT *, max({{'frame': frame, 'last_row': last_row, 'time': time, 'owner': owner}}) OVER past AS before,
                last_value(last_sequence IGNORE NULLS) OVER past AS p_sequence,
                sum(rows) OVER whole AS rows_in, max(last_row) OVER whole AS last_in
            FROM (
                SELECT shard, frame, time, owner_epoch AS owner, min(row) AS first_row, max(row) AS last_row,
                    count(*) AS rows, count(*) FILTER ({_OPENED}) AS opened, min(sequence) FILTER ({_OPENED}) AS lowest,
                    max(sequence) FILTER ({_OPENED}) AS highest, sum(sequence) FILTER ({_OPENED}) AS total,
                    arg_min(sequence, row) FILTER ({_OPENED}) AS first_sequence,
                    arg_max(sequence, row) FILTER ({_OPENED}) AS last_sequence,
                    max(number) FILTER (event = 'epoch') AS named
                FROM events GROUP BY ALL
            )
            WINDOW whole AS (PARTITION BY shard, frame),
                past AS (PARTITION BY shard ORDER BY frame, first_row ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        )
    )
)"""
_CHANNELS = f"""
SELECT kind, CASE WHEN owed + settled > 0 THEN origin ELSE destination END AS shard, sequence FROM (
    SELECT *, unnest(list_filter([
        CASE WHEN owed > 1 OR arrived > 1 OR settled > 1 OR settled_number <> owed_number
            OR owed_number <> coalesce(p_owed, 0) + 1 OR owed_lt < p_owed_lt THEN 'channel_gap' END,
        CASE WHEN arrived > 0 AND (owed_to <> arrived_in OR owed_slot <> arrived_slot OR owed = 0)
            THEN 'never_owed' END,
        CASE WHEN settled > 0 AND arrived = 0 THEN 'never_arrived' END,
        CASE WHEN taken <> said THEN 'settled_otherwise' END
    ], lambda one: one IS NOT NULL)) AS kind
    FROM (
        SELECT *, last_value(owed_number IGNORE NULLS) OVER past AS p_owed,
            last_value(owed_lt IGNORE NULLS) OVER past AS p_owed_lt
        FROM (
            SELECT origin, destination, entry, count(*) FILTER (event = 'owed') AS owed,
                count(*) FILTER (event = 'arrived') AS arrived, count(*) FILTER (event = 'settled') AS settled,
                max(channel_number) FILTER (event = 'owed') AS owed_number,
                max(channel_number) FILTER (event = 'settled') AS settled_number,
                max(logical_time) FILTER (event = 'owed') AS owed_lt,
                max(other_queue) FILTER (event = 'owed') AS owed_to,
                max(queue) FILTER (event = 'arrived') AS arrived_in,
                max(slot) FILTER (event = 'owed') AS owed_slot, max(source_slot) AS arrived_slot,
                max(flags & {ArrivedFlag.REFUSED:d} = 0) FILTER (event = 'arrived') AS taken,
                max(reason = 'accepted') FILTER (event = 'settled') AS said,
                max(sequence) FILTER (event <> 'arrived') AS sequence
            FROM (
                SELECT *, CASE WHEN event = 'arrived' THEN other_shard ELSE shard END AS origin,
                    CASE WHEN event = 'arrived' THEN shard ELSE other_shard END AS destination,
                    CASE WHEN shard <> other_shard THEN channel_number ELSE logical_time
                        - CASE event WHEN 'owed' THEN 0 WHEN 'arrived' THEN 1 ELSE 2 END END AS entry
                FROM events WHERE event IN ('owed', 'arrived', 'settled')
            ) GROUP BY ALL
        ) WINDOW past AS (PARTITION BY origin, destination ORDER BY entry
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    )
)"""
_GROUPS = f"""
WITH facts AS (
    SELECT shard, queue, sequence, logical_time AS lt, event, {_STATE} AS state, time, deadline, "group"
    FROM events JOIN policies USING (shard, queue) WHERE fifo AND sequence IS NOT NULL
), ranked AS (
    SELECT *, row_number() OVER waits AS place, max(leaves) OVER ahead AS ahead
    FROM (
        SELECT shard, queue, sequence, coalesce(max("group"), '') AS line,
            coalesce(min(lt) FILTER (state IN ({DELETED}, {DEAD})), {2**63 - 1}) AS leaves
        FROM facts GROUP BY ALL HAVING count(*) FILTER (event = 'sent') > 0
    )
    WINDOW waits AS (PARTITION BY shard, queue, line ORDER BY sequence),
        ahead AS (PARTITION BY shard, queue, line ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), leases AS (
    SELECT *, lag(lt) OVER taken AS p_lt, lag(time) OVER taken AS p_time, lag(deadline) OVER taken AS p_deadline,
        lag(place) OVER taken AS p_place
    FROM (SELECT shard, queue, sequence, lt, time, deadline FROM facts WHERE event = 'leased')
    JOIN ranked USING (shard, queue, sequence) WINDOW taken AS (PARTITION BY shard, queue, line ORDER BY lt)
), suspects AS (
    SELECT *, coalesce(CASE WHEN p_lt = lt - 1 AND p_time = time AND p_deadline = deadline AND place > p_place
        THEN p_place END, 0) AS after
    FROM leases WHERE ahead > lt
), blocked AS (
    SELECT one.shard, one.sequence, one.lt, arg_max(other.sequence, (other.leaves, other.sequence)) AS blocker
    FROM suspects AS one JOIN ranked AS other ON other.shard = one.shard AND other.queue = one.queue
        AND other.line = one.line AND other.place > one.after AND other.place < one.place AND other.leaves > one.lt
    GROUP BY ALL
)
SELECT CASE WHEN arg_max(facts.state, facts.lt) = {HELD} THEN 'group_exclusion' ELSE 'group_order' END AS kind,
    blocked.shard, blocked.sequence
FROM blocked JOIN facts ON facts.shard = blocked.shard AND facts.sequence = blocker AND facts.lt < blocked.lt
GROUP BY blocked.shard, blocked.sequence, blocked.lt"""
_KEYS = """
SELECT 'duplicate' AS kind, shard, sequence FROM (
    SELECT shard, sequence, time, window_ms, lag(time) OVER same AS p_time
    FROM events JOIN policies USING (shard, queue) WHERE event = 'sent' AND dedup_key IS NOT NULL
    WINDOW same AS (PARTITION BY shard, queue, dedup_key ORDER BY logical_time)
) WHERE epoch_ms(time) // 1000 < (epoch_ms(p_time) + window_ms + 999) // 1000"""


def make(events: list[str], queues: list[str], target: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet({events!r})")
        connection.execute(f"""CREATE TABLE policies AS SELECT shard, queue, any_value(fifo) AS fifo,
            any_value(CAST(policy ->> 'dedup_window_ms' AS BIGINT)) AS window_ms,
            any_value(CAST(policy ->> 'max_receives' AS BIGINT)) AS max_receives
            FROM read_parquet({queues!r}) WHERE policy IS NOT NULL GROUP BY ALL""")
        connection.execute("""CREATE TABLE graces AS
            WITH given AS (SELECT shard, number AS epoch, grace_ms FROM events WHERE event = 'epoch')
            SELECT one.shard, one.epoch AS before, other.epoch AS since, sum(given.grace_ms) AS grace_ms
            FROM given AS one JOIN given AS other ON one.shard = other.shard AND one.epoch < other.epoch
            JOIN given ON given.shard = one.shard AND given.epoch > one.epoch AND given.epoch <= other.epoch
            GROUP BY ALL""")
        connection.execute("CREATE TABLE found (kind VARCHAR, shard INTEGER, sequence BIGINT)")
        for query in (_MESSAGES, _SHARDS, _CHANNELS, _GROUPS, _KEYS):
            connection.execute(f"INSERT INTO found {query}")
        connection.execute(f"COPY found TO '{target}' (FORMAT parquet, COMPRESSION zstd)")

"""message_lifecycle as DuckDB and Polars make it from the same Parquet: what Spark is measured against.

The same rows as batonq.pipeline.tables.lifecycle, which the section checks, of histories in which no queue is purged
and no front was dropped: those parts are left out here, in the peers' favour.
"""

from __future__ import annotations

from typing import Any

_CODES = """CASE event
    WHEN 'sent' THEN 1 WHEN 'arrived' THEN 1 WHEN 'leased' THEN 2 WHEN 'extended' THEN 2 WHEN 'owed' THEN 3
    WHEN 'returned' THEN CASE WHEN visible_at IS NULL THEN 4 ELSE 1 END
    WHEN 'settled' THEN CASE WHEN reason = 'accepted' THEN 5 WHEN visible_at IS NULL THEN 4 ELSE 1 END
    WHEN 'deleted' THEN CASE reason WHEN 'ack' THEN 6 WHEN 'late_ack' THEN 7 WHEN 'retention' THEN 8
        WHEN 'cancelled' THEN 9 WHEN 'purged' THEN 10 WHEN 'queue_gone' THEN 11 ELSE 0 END
    ELSE 0 END"""
_OUTCOMES = {
    6: "acked",
    7: "late_acked",
    8: "expired",
    9: "cancelled",
    10: "purged",
    11: "queue_deleted",
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
    CASE code {" ".join(f"WHEN {code} THEN '{outcome}'" for code, outcome in _OUTCOMES.items())}
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


def by_duckdb(events: list[str], queues: list[str], target: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        copy = f"COPY ({_SQL}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
        connection.execute(copy, {"events": events, "queues": queues})


def by_polars(events: list[str], queues: list[str], target: str) -> None:
    import polars as pl

    key = ["source", "shard", "sequence"]
    every = pl.scan_parquet(events, hive_partitioning=False)
    found = _grouped(pl, every).collect(engine="streaming")
    clocks = every.group_by("source", "shard").agg(as_of=pl.col("time").max())
    names = (
        pl.scan_parquet(queues, hive_partitioning=False)
        .filter(pl.col("name").is_not_null())
        .group_by("source", "queue")
        .agg(queue_name=pl.col("name").max(), tenant=pl.col("tenant").max())
    )
    graces = every.filter((pl.col("event") == "epoch") & (pl.col("grace_ms") > 0))
    graces = graces.select("source", "shard", pl.col("logical_time"), "grace_ms")
    held = found.lazy().filter(pl.col("code") == 2).select(*key, "last_at").join(graces, on=["source", "shard"])
    given = held.filter(pl.col("logical_time") > pl.col("last_at")).group_by(key).agg(grace=pl.col("grace_ms").sum())
    told = _told(pl, found, _moves(pl, every).collect())
    joined = (
        found.lazy()
        .join(clocks, on=["source", "shard"], how="left")
        .join(names, on=["source", "queue"], how="left")
        .join(told.lazy(), on=key, how="left")
        .join(given, on=key, how="left")
    )
    _finished(pl, joined).sink_parquet(target, compression="zstd")


def _grouped(pl: Any, every: Any) -> Any:
    event, reason, at, time = pl.col("event"), pl.col("reason"), pl.col("logical_time"), pl.col("time")
    there = pl.when(pl.col("visible_at").is_null()).then(4).otherwise(1)
    ends = {"ack": 6, "late_ack": 7, "retention": 8, "cancelled": 9, "purged": 10, "queue_gone": 11}
    code = (
        pl.when(event.is_in(["sent", "arrived"]))
        .then(1)
        .when(event.is_in(["leased", "extended"]))
        .then(2)
        .when(event == "owed")
        .then(3)
        .when(event == "returned")
        .then(there)
        .when(event == "settled")
        .then(pl.when(reason == "accepted").then(5).otherwise(there))
        .when(event == "deleted")
        .then(reason.replace_strict(ends, default=0, return_dtype=pl.Int32))
        .otherwise(0)
    )
    returned = event == "returned"
    untried = returned & (pl.col("flags") & 16 != 0)
    noted = pl.col("error_class").is_not_null() | pl.col("error_text").is_not_null()
    failed = returned & reason.is_in(["nack", "expired"]) & noted
    rows = every.filter(pl.col("sequence").is_not_null()).with_columns(
        code=code,
        until=pl.coalesce("deadline", "visible_at"),
        seen=pl.when(event == "arrived").then(time).otherwise(pl.col("visible_at")),
        charged=pl.col("receive_count") - (untried & (pl.col("receive_count") > 0)).cast(pl.Int64),
    )

    def last(name: str, where: Any) -> Any:
        chosen = pl.col(name).filter(where)
        return chosen.get(at.filter(where).arg_max(), null_on_oob=True)

    payload = pl.col("body_bytes").is_not_null()
    born = event.is_in(["sent", "arrived"])
    telling = event.is_in(["sent", "arrived", "carried", "edited"])
    return rows.group_by("source", "shard", "sequence").agg(
        pl.col("message_id").first(),
        pl.col("queue", "priority", "sent_at", "expires_at", "lease_epoch").max(),
        receives=last("charged", pl.col("receive_count").is_not_null()),
        body_bytes=last("body_bytes", payload),
        attributes_bytes=last("attributes_bytes", payload),
        group=last("group", payload),
        lineage=last("lineage", payload),
        code=pl.col("code").get(at.arg_max()),
        last_at=at.max(),
        until=pl.col("until").get(at.arg_max()),
        visible_at=pl.col("seen").filter(telling).get(at.filter(telling).arg_min(), null_on_oob=True),
        opened=born.not_().all(),
        last_error_class=last("error_class", failed),
        last_error_text=last("error_text", failed),
        bound=last("reason", event == "owed"),
        arrived_at=time.filter(event == "arrived").max(),
        first_receive_at=time.filter((event == "leased") & (pl.col("lease_epoch") == 1)).min(),
        last_receive_at=time.filter(event == "leased").max(),
        ended_at=time.filter(pl.col("code") >= 5).max(),
        first_at=time.min(),
        nacks=(returned & (reason == "nack")).sum(),
        expiries=(returned & (reason == "expired")).sum(),
        releases=(returned & (reason == "released")).sum(),
        untried=untried.sum(),
        extensions=(event == "extended").sum(),
    )


def _moves(pl: Any, every: Any) -> Any:
    within = pl.col("shard") == pl.col("other_shard")
    overlay = pl.col("flags") & 64 != 0
    at, number = pl.col("logical_time"), pl.col("channel_number")
    owed = every.filter(pl.col("event") == "owed").select(
        "source",
        "reason",
        pl.when(within).then(at + 1).otherwise(number).alias("entry"),
        from_shard="shard",
        to_shard="other_shard",
        from_sequence="sequence",
    )
    came = every.filter((pl.col("event") == "arrived") & pl.col("sequence").is_not_null()).select(
        "source",
        pl.when(overlay).then(at).otherwise(number).alias("entry"),
        from_shard="other_shard",
        to_shard="shard",
        to_sequence="sequence",
    )
    return owed.join(came, on=["source", "from_shard", "to_shard", "entry"])


def _told(pl: Any, found: Any, moves: Any) -> Any:
    """What the line of each moved message says, walked from its beginning."""
    later = moves.select("source", from_shard="to_shard", from_sequence="to_sequence")
    here = (
        moves.join(later, on=["source", "from_shard", "from_sequence"], how="anti")
        .select("source", shard="from_shard", sequence="from_sequence")
        .unique()
        .with_columns(
            root_shard="shard", root_sequence="sequence", depth=pl.lit(0), reason=pl.lit(None, dtype=pl.String)
        )
    )
    parts = []
    while len(here):
        parts.append(here)
        here = (
            here.drop("reason")
            .join(moves, left_on=["source", "shard", "sequence"], right_on=["source", "from_shard", "from_sequence"])
            .select("source", "root_shard", "root_sequence", pl.col("depth") + 1, "to_shard", "to_sequence", "reason")
            .rename({"to_shard": "shard", "to_sequence": "sequence"})
            .select(parts[0].columns)
        )
    line = pl.concat(parts) if parts else here
    wanted = found.select(
        "source", "shard", "sequence", "message_id", "body_bytes", "attributes_bytes", "group", "lineage"
    )
    root = ["source", "root_shard", "root_sequence"]
    told = pl.col("lineage").str.json_path_match("$.first_id")
    members = line.join(wanted, on=["source", "shard", "sequence"]).sort(*root, "depth")
    return members.select(
        "source",
        "shard",
        "sequence",
        first_id=pl.coalesce(told.first().over(root), pl.col("message_id").first().over(root)),
        previous_id=pl.col("message_id").shift(1).over(root),
        next_id=pl.col("message_id").shift(-1).over(root),
        line_deaths=pl.col("reason").is_in(["dead_letter", "expiry_dead_letter"]).sum().over(root),
        line_redrives=(pl.col("reason") == "redrive").sum().over(root),
        line_body_bytes=pl.col("body_bytes").forward_fill().over(root),
        line_attributes_bytes=pl.col("attributes_bytes").forward_fill().over(root),
        line_group=pl.col("group").forward_fill().over(root),
    )


def _finished(pl: Any, joined: Any) -> Any:
    code, bound = pl.col("code"), pl.col("bound")
    moved = pl.when(bound.is_in(["dead_letter", "expiry_dead_letter"])).then(pl.lit("dead_lettered"))
    moved = moved.when(bound == "redrive").then(pl.lit("redriven")).otherwise(pl.lit("moved"))
    delayed = (pl.col("until") > pl.col("as_of")).fill_null(False)
    there = pl.when(delayed).then(pl.lit("delayed")).otherwise(pl.lit("waiting"))
    ended = code.replace_strict(_OUTCOMES, default="unknown", return_dtype=pl.String)
    acked = code.is_in([6, 7])

    def ms(start: str, stop: str) -> Any:
        return pl.col(stop).dt.epoch("ms") - pl.col(start).dt.epoch("ms")

    return joined.select(
        "source",
        "shard",
        "sequence",
        "message_id",
        pl.coalesce("first_id", pl.col("lineage").str.json_path_match("$.first_id"), "message_id").alias("first_id"),
        "previous_id",
        "next_id",
        "queue",
        "queue_name",
        "tenant",
        pl.coalesce("group", "line_group").alias("group"),
        "priority",
        pl.coalesce("body_bytes", "line_body_bytes").alias("body_bytes"),
        "sent_at",
        "visible_at",
        "arrived_at",
        "first_receive_at",
        "last_receive_at",
        "ended_at",
        pl.col("receives").fill_null(0),
        pl.col("lease_epoch").fill_null(0).alias("leases"),
        "nacks",
        "expiries",
        "extensions",
        ms("visible_at", "first_receive_at").alias("dwell_ms"),
        pl.when(acked).then(ms("last_receive_at", "ended_at")).alias("handling_ms"),
        pl.when(acked).then(ms("sent_at", "ended_at")).alias("end_to_end_ms"),
        pl.when(code == 5).then(moved).when(code == 1).then(there).otherwise(ended).alias("outcome"),
        "last_error_class",
        "last_error_text",
        pl.col("line_deaths", "line_redrives").fill_null(0),
        "opened",
        "releases",
        "untried",
        pl.coalesce("attributes_bytes", "line_attributes_bytes").alias("attributes_bytes"),
        "expires_at",
        pl.when(code == 2)
        .then(pl.col("until") + pl.duration(milliseconds=pl.col("grace").fill_null(0)))
        .alias("deadline"),
        "as_of",
        pl.coalesce("sent_at", "first_at").dt.date().alias("date"),
    )

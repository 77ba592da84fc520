"""The rules of a shard's log: nothing missing, nothing duplicated, time and owners only forward.

Rows of one frame, time and owner are first aggregated, which leaves few rows. These are checked in order, each against
the previous one, in parts of PART_FRAMES frames that tasks check independently: each part also gets what is before it.

- Frames are numbered without gaps, and the rows of a frame from 0 without gaps.
- Time never goes back, row by row. The owner's epoch never decreases, and a higher one begins with its `epoch` event.
- Messages that are sent or arrive get the next sequence number, also without gaps.
- A history begins with frame 1, or has a `base` that allows its front to be dropped.
- A history reaches as far as something else says that it does: the position of the ingest, or a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import broadcast

from batonq.pipeline.audit import firings, publishes
from batonq.pipeline.audit.known import UNKNOWN
from batonq.pipeline.audit.words import place, query
from batonq.pipeline.spark.local import frame_of

_PIECES = f"""
SELECT shard, frame, time, owner_epoch AS owner, min(row) AS first_row, max(row) AS last_row, count(*) AS rows,
  count(opened) AS opened, min(opened) AS lowest, max(opened) AS highest,
  max(opened - row) - min(opened - row) AS behind, max(opened_row) - min(opened_row) + 1 - count(opened) AS between,
  min_by(opened, opened_row) AS first_sequence, max_by(opened, opened_row) AS last_sequence, max(named) AS named,
  count(CASE WHEN of_topic THEN 1 END) AS published, count(CASE WHEN of_schedule THEN 1 END) AS scheduled,
  min(CASE WHEN receives_max > 0 THEN receives_max END) AS least_receives
FROM (
  SELECT shard, frame, time, owner_epoch, row, receives_max, CASE WHEN event = 'epoch' THEN number END AS named, opened,
    CASE WHEN opened IS NOT NULL THEN row END AS opened_row,
    event = 'published' OR {publishes.COPY} AS of_topic, event = 'schedule_set' OR {firings.SCHEDULED} AS of_schedule
  FROM (
    SELECT *, CASE WHEN event IN ('sent', 'arrived') THEN sequence WHEN event = 'published' THEN number END AS opened
    FROM {{events}}
  )
) GROUP BY shard, frame, time, owner_epoch
"""
PART_FRAMES = 4_096
# What is before each part of a shard: its last row, and the last message that was sent or arrived.
_SEAMS = """
SELECT shard, part, max(last) OVER earlier AS before, last(last_sequence, true) OVER earlier AS p_sequence
FROM (
  SELECT shard, part, max(struct(frame, last_row, time, owner)) AS last,
    max_by(last_sequence, struct(frame, first_row)) FILTER (WHERE last_sequence IS NOT NULL) AS last_sequence
  FROM {pieces} GROUP BY shard, part
)
WINDOW earlier AS (PARTITION BY shard ORDER BY part ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
_PAIRS = """
SELECT *, frame * 65536 + first_row AS lt, before.frame AS p_frame, before.last_row AS p_row, before.time AS p_time,
  before.owner AS p_owner, before.frame * 65536 + before.last_row AS p_lt
FROM (
  SELECT pieces.*, coalesce(max(struct(frame, last_row, time, owner)) OVER past, seams.before) AS before,
    coalesce(last(last_sequence, true) OVER past, seams.p_sequence) AS p_sequence,
    sum(rows) OVER of_frame AS rows_in, max(last_row) OVER of_frame AS last_in
  FROM {pieces} AS pieces JOIN {seams} AS seams ON seams.shard = pieces.shard AND seams.part = pieces.part
  WINDOW past AS (PARTITION BY pieces.shard, seams.part ORDER BY frame, first_row
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
    of_frame AS (PARTITION BY pieces.shard, seams.part ORDER BY frame RANGE BETWEEN CURRENT ROW AND CURRENT ROW)
)
"""
_RULES = {
    "frame_gap": "(p_frame IS NULL OR frame <> p_frame) AND (first_row <> 0 OR rows_in <> last_in + 1 "
    "OR frame <> p_frame + 1)",
    "time_back": "time < p_time OR frame = p_frame AND first_row <= p_row AND time <> p_time",
    "owner_epoch": "owner < p_owner OR owner > p_owner AND NOT named <=> owner OR named IS NOT NULL AND named <> owner "
    "OR named <= p_owner",
    # In order, a sequence number falls behind its row by the rows of other events between the messages.
    "sequence_gap": "opened > 0 AND (highest - lowest + 1 <> opened OR behind <> between "
    "OR first_sequence <> CASE WHEN known_from = 0 THEN coalesce(p_sequence, 0) ELSE p_sequence END + 1)",
}
_DETAILS = {
    "frame_gap": f"concat({place('coalesce(p_lt, 0)')}, ' is followed by ', {place('lt')}, ', ', rows_in, "
    f"' rows up to ', {place('frame * 65536 + last_in')})",
    "time_back": "concat(p_time, ' is followed by ', time)",
    "owner_epoch": "concat('owner epoch ', coalesce(p_owner, 0), ' is followed by ', owner)",
    "sequence_gap": "concat('sequence ', coalesce(p_sequence, 0), ' is followed by ', opened, ' from ', lowest, "
    "' to ', highest)",
}
_VIOLATIONS = f"""
SELECT kind, shard, CAST(NULL AS BIGINT) AS queue, CAST(NULL AS BIGINT) AS sequence,
  array_compact(array(p_lt, lt)) AS logical_times,
  transform(array_compact(array(p_lt, lt)), one -> {place("one")}) AS events,
  CASE kind {" ".join(f"WHEN '{kind}' THEN {text}" for kind, text in _DETAILS.items())} END AS detail
FROM (
  SELECT *, explode(filter(array({", ".join(f"CASE WHEN {rule} THEN '{kind}' END" for kind, rule in _RULES.items())}),
    one -> one IS NOT NULL)) AS kind
  FROM (
    SELECT pairs.*, known_from FROM {{pairs}} AS pairs LEFT JOIN {{shards}} AS shards ON shards.shard = pairs.shard
  ) WHERE {" OR ".join(f"({rule})" for rule in _RULES.values())}
)
"""


def pieces(events: DataFrame) -> DataFrame:
    """One row per frame, time and owner: a summary of the log there."""
    return query(_PIECES, events=events)


class Summary(NamedTuple):
    """What a history has at all: rules about what it does not have are left out."""

    published: bool
    scheduled: bool
    least_receives: int | None  # the smallest maximum of receives that a message has of its own


def summary(pieces: DataFrame) -> Summary:
    row = pieces.selectExpr("max(published) > 0", "max(scheduled) > 0", "min(least_receives)").first()
    return Summary(bool(row and row[0]), bool(row and row[1]), row[2] if row else None)


def violations(pieces: DataFrame, shards: DataFrame) -> DataFrame:
    pieces = pieces.selectExpr("*", f"frame div {PART_FRAMES} AS part")
    pairs = query(_PAIRS, pieces=pieces, seams=broadcast(query(_SEAMS, pieces=pieces)))
    return query(_VIOLATIONS, pairs=pairs, shards=broadcast(shards))


_MISSING = pa.schema(
    [
        ("kind", pa.string()),
        ("shard", pa.int32()),
        ("queue", pa.int64()),
        ("sequence", pa.int64()),
        ("logical_times", pa.list_(pa.int64())),
        ("events", pa.list_(pa.string())),
        ("detail", pa.string()),
    ]
)


def missing(shards: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """Shards whose history begins too late, or ends too early. `ends`: the last frame that each shard has elsewhere."""
    known = {row["shard"]: row for row in shards.collect()}
    rows = [*_without_front(known.values()), *_without_end(known, ends)]
    return frame_of(shards.sparkSession, rows, _MISSING)


def _without_front(shards: Iterable[Row]) -> Iterable[tuple[object, ...]]:
    for row in shards:
        if row["known_from"] == UNKNOWN:
            first = row["first_frame"]
            detail = f"the history begins with frame {first:,}, and no base says that the frames before it were dropped"
            yield "front_missing", row["shard"], None, None, [first << 16], [f"{first}:0"], detail


def _without_end(known: Mapping[int, Row], ends: Mapping[int, int]) -> Iterable[tuple[object, ...]]:
    for shard, end in sorted(ends.items()):
        last = known[shard]["last_frame"] if shard in known else 0
        if last < end:
            detail = f"the history ends with frame {last:,}, but the shard has at least {end:,} frames"
            yield "end_missing", shard, None, None, [last << 16], [f"{last}:0"], detail

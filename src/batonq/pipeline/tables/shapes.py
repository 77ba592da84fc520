"""The shape of a body: its structure without its values, so that bodies of one kind look the same.

JSON becomes its sorted keys with the types of their values, an array the type of its elements. Other text loses its
numbers, ids and hexadecimal digits. Spark's own functions do all of it: no body passes through Python. The server has
the same shapes (core/body_shape.py).
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from batonq.core.body_shape import CUT, DEPTH_MAX, SHAPE_MAX, TEXT_MAX, TEXT_READ_MAX, VARYING

SHOWN_MAX = 300  # characters of a body that is shown as an example

# Spark's type names, and ours, where a type can occur.
_BEFORE, _AFTER = "(?<=^|: |<)", "(?=[,>]|$)"
_TYPES = (
    (_BEFORE + "OBJECT<", "object<"),
    (_BEFORE + "ARRAY<", "array<"),
    (_BEFORE + r"(?:BIGINT|DOUBLE|FLOAT|DECIMAL\(\d+,\s*\d+\))" + _AFTER, "number"),
    (_BEFORE + "STRING" + _AFTER, "string"),
    (_BEFORE + "BOOLEAN" + _AFTER, "boolean"),
    (_BEFORE + "VOID" + _AFTER, "null"),
    (_BEFORE + "VARIANT" + _AFTER, "any"),
)


def shape(body: Column, content: Column) -> Column:
    """The shape of a body (bytes) with its `content` (text, json, bytes). Null if the body is unknown."""
    text = body.cast("string")
    looks_json = (content == "json") | text.rlike(r"^\s*[\[{]")
    schema = f.when(looks_json, f.schema_of_variant(f.try_parse_json(text)))
    return (
        f.when(body.isNull(), f.lit(None))
        .when(content == "bytes", f.lit("bytes"))
        .when(f.octet_length(body) == 0, f.lit("empty"))
        .otherwise(f.coalesce(_json_shape(schema), _text_shape(text)))
    )


def shown(body: Column, content: Column) -> Column:
    """The beginning of a body, for display; bytes in base64."""
    start = f.base64(f.substring(body, 1, SHOWN_MAX * 3 // 4))
    return f.when(content == "bytes", start).otherwise(_shortened(body.cast("string"), SHOWN_MAX))


def _json_shape(schema: Column) -> Column:
    found = schema
    for theirs, ours in _TYPES:
        found = f.regexp_replace(found, theirs, ours)
    opened = f.length(found) - f.length(f.replace(found, f.lit("<"), f.lit("")))
    return _shortened(f.when(opened > DEPTH_MAX, _cut_deep(found)).otherwise(found), SHAPE_MAX)


def _cut_deep(found: Column) -> Column:
    """Replaces everything deeper than DEPTH_MAX with "…"."""

    def step(so_far: Column, part: Column) -> Column:
        depth = so_far["depth"]
        opens, closes = part == "<", part == ">"
        now = depth + f.when(opens, 1).when(closes, -1).otherwise(0)
        text = (
            f.when(opens & (depth == DEPTH_MAX), f.lit("<" + CUT))
            .when(f.least(depth, now) > DEPTH_MAX, f.lit(""))
            .when(~opens & ~closes & (depth > DEPTH_MAX), f.lit(""))
            .otherwise(part)
        )
        return f.struct(now.alias("depth"), f.concat(so_far["text"], text).alias("text"))

    nothing = f.struct(f.lit(0).alias("depth"), f.lit("").alias("text"))
    return f.aggregate(f.split(found, "(?=[<>])|(?<=[<>])"), nothing, step, lambda made: made["text"])


def _text_shape(text: Column) -> Column:
    found = f.substring(text, 1, TEXT_READ_MAX)
    for pattern, stands in VARYING:
        found = f.regexp_replace(found, pattern, stands)
    return _shortened(f.trim(found), TEXT_MAX)


def _shortened(text: Column, most: int) -> Column:
    return f.when(f.length(text) > most, f.concat(f.substring(text, 1, most), f.lit(CUT))).otherwise(text)

"""Events as data frames, and tables as plain rows, to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batonq.pipeline.events.schema import arrow_schema
from batonq.pipeline.tables.schema import Table, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def events_frame(spark: SparkSession, events: Iterable[Row]) -> DataFrame:
    """As the lake has them; `source` is empty where an event has none.

    They are laid down where the tasks are: rows that the driver has are sent along with each scan.
    """
    schema = arrow_schema(dictionaries=False).append(pa.field("source", pa.string()))
    rows = pa.Table.from_pylist([{"source": "", **event} for event in events], schema)
    return spark.createDataFrame(rows).localCheckpoint()


def rows_of(frame: DataFrame, table: Table) -> list[Row]:
    """A table as the folds give it: times are microseconds."""
    assert [(one.name, one.dataType) for one in frame.schema] == [
        (column.name, spark_type(column.kind)) for column in table.columns
    ]
    times = [column.name for column in table.columns if column.kind == "time"]
    rows: list[Row] = frame.toArrow().to_pylist()
    for row in rows:
        row |= {name: (row[name] - _EPOCH) // timedelta(microseconds=1) for name in times if row[name] is not None}
    return rows


def assert_rows(found: Sequence[Row], wanted: Sequence[Row], key: Sequence[str]) -> None:
    """The same rows, whatever their order; a difference names the row and the column."""

    def keyed(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
        result = {tuple(row[name] for name in key): row for row in rows}
        assert len(result) == len(rows), "two rows of one key"
        return result

    ours, theirs = keyed(found), keyed(wanted)
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys(), key=repr)[:5]
    for name, row in theirs.items():
        assert ours[name].keys() == row.keys(), sorted(ours[name].keys() ^ row.keys())
        different = {
            column: (ours[name][column], value) for column, value in row.items() if ours[name][column] != value
        }
        assert not different, (name, different, row)

"""Data frames from the driver's own rows. Spark reads Arrow directly; plain rows would go through a Python worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import Schema
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: Schema) -> DataFrame:
    import pyarrow as pa

    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(schema.types)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema))


def nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """An empty frame."""
    return spark.range(0).selectExpr(
        *(f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`" for field in schema)
    )

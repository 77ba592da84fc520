"""What DuckDB and Polars make of the lake's Parquet: what Spark is measured against, and checked by."""

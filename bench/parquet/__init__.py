"""The same tables by DuckDB and Polars from the lake's Parquet files: the comparison for Spark, and a check of it."""

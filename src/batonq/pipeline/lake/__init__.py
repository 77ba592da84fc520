"""The lake: Delta tables in a directory that driver and workers see, or in an S3 bucket.

storage.py        where a lake is: paths, URLs, and how Arrow and delta-rs open them
parquet_files.py  Parquet files with their statistics, written by Spark's tasks
delta.py          one table's Delta log: snapshots, commits, vacuum
schemas.py        how a table's schema grows (pure)
compaction.py     which files are rewritten together (pure)
tables.py         `Lake`: data frames in and out
"""

from batonq.pipeline.lake.tables import Lake

__all__ = ["Lake"]

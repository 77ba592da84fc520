"""The lake: tables of Parquet files in a directory that driver and workers see. What a note does not name is not there.

notes.py        what the notes of a table say together: which batches count, which files are waste (pure)
schemas.py      how a table's schema grows (pure)
compaction.py   which files are rewritten together (pure)
locks.py        one writer, and readers who keep what they read
files.py        the notes and files of one table on disk: a commit, the cleaning
tables.py       `Lake`: data frames in and out, by Spark
"""

from batonq.pipeline.lake.tables import Lake

__all__ = ["Lake"]

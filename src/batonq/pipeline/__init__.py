"""The data pipeline: loads the logs' history into tables, queries it, and acts on it, with Spark.

reading/   frames of history, from a node, a data directory or an archive; the archive itself
events/    the events table: its schema, and the conversion of frames to Arrow
spark/     the session, and format("baton"): history, messages, and the sink
lake/      the lake: tables of Parquet files, written one batch at a time
tables/    the tables derived from events, each a pure function of data frames
audit/     checks the invariants in the history
report/    an HTML page about the tables
jobs/      the jobs of `baton pipeline`
"""

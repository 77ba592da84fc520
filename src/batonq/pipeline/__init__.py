"""The data pipeline: the logs' history as tables, answers and actions, on Spark.

reading/   frames of history, from a node, a data directory or an archive; the archive itself
events/    frames as the events table: its schema, and frames to Arrow
spark/     a session, and format("baton"): history, messages, and the sink
lake/      the lake: tables of Parquet files, written once a batch
tables/    the tables on top of events, each a pure function of data frames
audit/     the invariants, judged from history
report/    one HTML page of what the tables say
jobs/      the runners behind `baton pipeline`
"""

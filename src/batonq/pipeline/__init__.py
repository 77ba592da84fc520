"""The data pipeline: a shard's log as tables. It reads frames (history.py) and turns them into Arrow (decode.py)."""

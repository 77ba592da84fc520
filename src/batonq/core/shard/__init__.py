"""A shard: the delivery state machine. machine.py puts it together; its docstring names the parts."""

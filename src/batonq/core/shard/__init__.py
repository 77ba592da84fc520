"""A shard: the delivery state machine. machine.py is the whole of it; its docstring names the parts."""

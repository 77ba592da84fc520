"""The `baton` command. A command is in the module of its name, such as queue.py, send.py and redrive.py.

What commands share: connection.py (which server, which credentials, requests), contexts.py (named servers), output.py
(tables, JSON, text made safe for terminals), progress.py, confirm.py, parser.py (suggestions), exit_codes.py, and
json_shapes.py (what --json prints).
"""

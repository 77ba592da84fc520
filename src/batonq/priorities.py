"""The priority of a message within its queue: a number from 0 to 255, of which five have names. Higher is delivered
first.
"""

from __future__ import annotations

PRIORITY_MAX = 255
PRIORITIES = {"lowest": 0, "low": 64, "normal": 128, "high": 192, "highest": PRIORITY_MAX}
NORMAL_PRIORITY = PRIORITIES["normal"]  # default priority of a message

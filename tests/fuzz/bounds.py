"""What a client without credentials can take of a server, as docs/explanation/guarantees.md states it.

Memory is the resident memory of the process, measured from outside.
"""

from __future__ import annotations

import os

KIB = 1024
MIB = 1024 * KIB

TURN_CPU_MS_MAX = 50.0  # of the event loop's thread, by one request
STALL_MS_MAX = 100.0  # of a turn that several requests make together, in CPU time of all threads
CROWD_MS_MAX = 200.0  # of a turn that 250 connections make together
BUSY_FACTOR = 2.0  # so much more CPU time the same work may take on cores whose caches and memory others use too
IDLE_BYTES_MAX = 16 * KIB  # per connection that has sent nothing, or has its answer
CONNECTION_BYTES_MAX = 128 * KIB  # per connection with an unfinished request and no credentials
TLS_BYTES_MAX = 320 * KIB  # per connection beside that, for TLS
ALLOCATED_PER_COUNTED = 1.25  # what requests take, beside what is counted of them
RUN_BYTES = 12 * MIB  # of a whole run beside requests: caches, the canary, the log


def busy_factor() -> float:
    """What times are to be multiplied with now. On a machine with idle cores they are judged as they are."""
    return BUSY_FACTOR if os.getloadavg()[0] > (os.cpu_count() or 1) + 1 else 1.0


def bytes_bound(counted: float) -> int:
    """The most that the process may grow by while requests of so many counted bytes are held."""
    return int(counted * ALLOCATED_PER_COUNTED) + RUN_BYTES

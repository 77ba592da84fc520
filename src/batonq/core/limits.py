"""The limits of one shard, in one place.

Only decisions read them, never replay: a log gives the same state whatever the limits are. Production uses the
defaults; the simulator and the model also run with tiny ones, so that every limit is reached and recovered from.
"""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS_KEPT = 16_384  # channel entries of each source whose verdict a shard keeps: a part of the state, no limit


@dataclass(slots=True, frozen=True, kw_only=True)
class ShardLimits:
    slots_max: int = 100_000_000  # messages in the shard
    dedup_entries_max: int = 50_000_000  # deduplication ids that are remembered
    requests_max: int = 2_000_000  # entries for Idempotency-Keys: two a request, and one a message if taken in part
    invocations_max: int = 2_000_000  # requests of SDKs that are remembered: the newest of the last two minutes
    producers_max: int = 1_000_000  # producers whose last number is remembered
    attempts_max: int = 100_000  # receive attempts that are remembered
    verdicts_max: int = VERDICTS_KEPT  # the newest channel entries of a source that are answered when asked for again
    timer_records_max: int = 2_000  # leases or messages that one step of the timers ends
    retries_max: int = 1_000  # refused transfers that one step tries again
    given_up_max: int = 1_000  # messages that one receive finds expired or used up
    purge_step_max: int = 5_000  # messages that one step of a purge removes
    job_scans_max: int = 2_000  # messages that one step of all jobs looks at
    job_moves_max: int = 100  # messages that one step of all jobs moves


DEFAULT_LIMITS = ShardLimits()

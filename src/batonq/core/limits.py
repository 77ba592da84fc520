"""The limits of one shard, in one place.

Only decisions read them, never replay: a log gives the same state whatever the limits are. Production uses the
defaults; the simulator and the model also run with tiny ones, so that every limit is reached and recovered from.
"""

from __future__ import annotations

from dataclasses import dataclass

from batonq.core.records import FRAME_ROWS_MAX, ROW_BYTES

VERDICTS_KEPT = 16_384  # channel entries of each source whose verdict a shard keeps: a part of the state, no limit

# The log's format has room for FRAME_ROWS_MAX records in a frame. A command, or requests that are executed together,
# write at most COMMAND_ROWS_MAX of them (`ShardLimits.command_rows`; the node's settings are checked against it), and
# none begins while more than ROLL_ROWS are in the open frame: the host refuses it before that, or begins another frame.
COMMAND_ROWS_MAX = 16_384
ROLL_ROWS = FRAME_ROWS_MAX - COMMAND_ROWS_MAX
STEP_BYTES_MAX = 384 * 1024  # of records, their variable parts included, after which a step of timers or jobs stops
REQUEST_MESSAGES_MAX = 1_000  # messages of one request, whichever interface it comes by
GROUP_MESSAGES_MAX = 2_500  # messages of all requests that are executed together
SEND_ROWS = 4  # records that one new message can need: Sent, Produced, and Requested for itself and for a forgotten one
MOVE_ROWS = 5  # records that one message can need at once: Returned, Owed, Arrived, Settled, QueuePurged
STEP_ROWS = STEP_BYTES_MAX // ROW_BYTES + MOVE_ROWS  # records that one step of timers or jobs can write
ENTRY_ROWS = 3  # records that one entry of a channel can need: Settled, JobSet, QueuePurged


@dataclass(slots=True, frozen=True, kw_only=True)
class ShardLimits:
    slots_max: int = 100_000_000  # messages in the shard
    dedup_entries_max: int = 50_000_000  # deduplication ids that are remembered
    requests_max: int = 2_000_000  # entries for Idempotency-Keys: two a request, and one a message if taken in part
    invocations_max: int = 2_000_000  # requests of SDKs that are remembered: the newest of the last two minutes
    producers_max: int = 1_000_000  # producers whose last number is remembered
    attempts_max: int = 100_000  # receive attempts that are remembered
    verdicts_max: int = VERDICTS_KEPT  # the newest channel entries of a source that are answered when asked for again
    timer_records_max: int = 2_000  # leases, messages and delays, of each, that one step of the timers ends
    retries_max: int = 1_000  # refused transfers that one step tries again
    given_up_max: int = 1_000  # messages that the receives of one group find expired or used up
    purge_step_max: int = 5_000  # messages that one step of a purge removes
    job_scans_max: int = 2_000  # messages that one step of all jobs looks at
    job_moves_max: int = 100  # messages that one step of all jobs moves

    @property
    def command_rows(self) -> int:
        """Records that a group of commands writes at most: first what is due by then, then what the requests are about.

        Those that write most are receives, which give up some messages before they lease others, and sends.
        """
        moved = max(self.given_up_max, self.job_moves_max, REQUEST_MESSAGES_MAX)
        return STEP_ROWS + max(moved * MOVE_ROWS + GROUP_MESSAGES_MAX, GROUP_MESSAGES_MAX * SEND_ROWS)


DEFAULT_LIMITS = ShardLimits()

"""The limits of one shard, in one place.

Only decisions read the limits, never replay: a log gives the same state whatever the limits are. Production uses the
defaults. The simulator and the model also run with tiny limits, so that every limit is reached and recovered from.
"""

from __future__ import annotations

from dataclasses import dataclass

from batonq.core.records import FRAME_ROWS_MAX, ROW_BYTES

VERDICTS_KEPT = 16_384  # channel entries per source whose verdict a shard stores: part of the state, not a limit

# A frame of the log has room for FRAME_ROWS_MAX records. A command, or a group of requests that are executed together,
# writes at most COMMAND_ROWS_MAX of them (`ShardLimits.command_rows`; the node's settings are checked against it). No
# command begins while the open frame has more than ROLL_ROWS: the host refuses it before that, or begins a new frame.
COMMAND_ROWS_MAX = 16_384
ROLL_ROWS = FRAME_ROWS_MAX - COMMAND_ROWS_MAX
STEP_BYTES_MAX = 384 * 1024  # bytes of records, with variable parts, after which a step of timers or jobs stops
REQUEST_MESSAGES_MAX = 1_000  # messages per request, on every interface
GROUP_MESSAGES_MAX = 2_500  # messages per group of requests that are executed together
SEND_ROWS = 4  # records per new message at most: Sent, Produced, and Requested for itself and for a forgotten one
MOVE_ROWS = 5  # records per moved message at most: Returned, Owed, Arrived, Settled, QueuePurged
STEP_ROWS = STEP_BYTES_MAX // ROW_BYTES + MOVE_ROWS  # records per step of timers or jobs at most
ENTRY_ROWS = 4  # records per channel entry at most: Settled, then those of a move to a dead-letter queue of this shard


@dataclass(slots=True, frozen=True, kw_only=True)
class ShardLimits:
    slots_max: int = 100_000_000  # messages in the shard
    dedup_entries_max: int = 50_000_000  # remembered deduplication ids
    idempotency_keys_max: int = (
        2_000_000  # entries for Idempotency-Keys: 2 per request, 1 per message if partly accepted
    )
    sdk_names_max: int = 2_000_000  # remembered SDK requests: the newest of the last two minutes
    producers_max: int = 1_000_000  # producers whose last number is remembered
    attempts_max: int = 100_000  # remembered receive attempts
    verdicts_max: int = VERDICTS_KEPT  # newest channel entries per source that can be answered again
    timer_records_max: int = 2_000  # leases, messages and delays, each, that one step of the timers ends
    retries_max: int = 1_000  # refused transfers that one step retries
    given_up_max: int = 1_000  # expired or exhausted messages that the receives of one group may find
    purge_step_max: int = 5_000  # messages that one step of a purge removes
    job_scans_max: int = 2_000  # messages that one step of all jobs examines
    job_moves_max: int = 100  # messages that one step of all jobs moves

    @property
    def command_rows(self) -> int:
        """The maximum number of records that a group of commands writes: first what is due by then, then the
        requests' own.

        The commands that write most are sends, and receives, which remove exhausted messages before they lease others.
        """
        moved = max(self.given_up_max, self.job_moves_max, REQUEST_MESSAGES_MAX)
        return STEP_ROWS + max(moved * MOVE_ROWS + GROUP_MESSAGES_MAX, GROUP_MESSAGES_MAX * SEND_ROWS)


DEFAULT_LIMITS = ShardLimits()

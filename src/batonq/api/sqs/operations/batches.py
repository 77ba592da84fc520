"""Helpers shared by the batch operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batonq.api.sqs.errors import SENDER, SqsError
from batonq.api.sqs.shapes import BatchFailure, BatchOutput, BatchSuccess


def failure(entry_id: str, error: SqsError) -> BatchFailure:
    return BatchFailure(entry_id, error.kind.code, error.kind.fault == SENDER, error.message)


def outcome_of(ids: Sequence[str], errors: Mapping[int, SqsError]) -> BatchOutput:
    """The answer to a batch, given the errors by the places of their entries."""
    if not errors:
        return BatchOutput([*map(BatchSuccess, ids)])
    successful = [BatchSuccess(entry_id) for at, entry_id in enumerate(ids) if at not in errors]
    failed = [failure(ids[at], errors[at]) for at in sorted(errors)]
    return BatchOutput(successful or None, failed)

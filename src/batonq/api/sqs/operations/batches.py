"""Helpers shared by the batch operations."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.api.sqs.errors import SENDER, SqsError
from batonq.api.sqs.shapes import BatchFailure, BatchOutput, BatchSuccess


def failure(entry_id: str, error: SqsError) -> BatchFailure:
    return BatchFailure(entry_id, error.kind.code, error.kind.fault == SENDER, error.message)


def outcome_of(ids: Sequence[str], errors: Sequence[SqsError | None]) -> BatchOutput:
    """The answer to a batch, given for each entry its error or None for success."""
    successful = [BatchSuccess(entry_id) for entry_id, error in zip(ids, errors, strict=True) if error is None]
    failed = [failure(entry_id, error) for entry_id, error in zip(ids, errors, strict=True) if error is not None]
    return BatchOutput(successful or None, failed or None)

"""Permissions of other accounts: the statements of AddPermission."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.attribute_formats.access_policy import LABEL_LENGTH_MAX, Statement
from batonq.attribute_formats.permissions import GRANTABLE
from batonq.core.catalog.names import ACCOUNT_DIGITS, is_word
from batonq.errors import InvalidInput, OverLimit

PRINCIPALS_MAX = 50
ACTIONS_MAX = 7


def statement(label: str, accounts: Sequence[str], actions: Sequence[str], arn: str) -> Statement:
    """The statement that AddPermission adds. Raises InvalidInput or OverLimit."""
    if not is_word(label, LABEL_LENGTH_MAX):
        raise InvalidInput(
            f"Value {label[:LABEL_LENGTH_MAX]} for parameter Label is invalid. Reason: Can only include alphanumeric "
            f"characters, hyphens, or underscores. 1 to {LABEL_LENGTH_MAX} in length"
        )
    if not accounts or not all(
        len(account) == ACCOUNT_DIGITS and account.isascii() and account.isdigit() for account in accounts
    ):
        raise InvalidInput(
            f"Value [{', '.join(accounts)[:256]}] for parameter PrincipalId is invalid. Reason: Unable to verify."
        )
    if len(accounts) > PRINCIPALS_MAX:
        raise OverLimit(f"{len(accounts)} AWSAccountIds were found, maximum allowed is {PRINCIPALS_MAX}.")
    if len(actions) > ACTIONS_MAX:
        raise OverLimit(f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for action in actions:
        if action not in GRANTABLE:
            raise InvalidInput(
                f"Value SQS:{action[:256]} for parameter ActionName is invalid. "
                "Reason: Only the queue owner is allowed to invoke this action."
            )
    if not actions:
        raise InvalidInput("The request must contain the parameter Actions.")
    return {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_many([f"SQS:{action}" for action in actions]),
        "Resource": arn,
    }


def _one_or_many(items: list[str]) -> str | list[str]:
    return items[0] if len(items) == 1 else items

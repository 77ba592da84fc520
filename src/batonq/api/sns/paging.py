"""Pages of lists, as SNS gives them: a hundred entries and a token for the next page."""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import TypeVar

from batonq.api.sns.errors import invalid

PAGE_SIZE = 100
TOKEN_LENGTH_MAX = 1_024

Entry = TypeVar("Entry")


def page(
    entries: Sequence[Entry], name: Callable[[Entry], str], token: str | None
) -> tuple[Sequence[Entry], str | None]:
    """One page of entries that are sorted by `name`, and the token for the next page. The token is made from the name
    of this page's last entry, so entries that are added or removed in between do not move the pages.
    """
    if token:
        after = _read_token(token)
        entries = [entry for entry in entries if name(entry) > after]
    found = entries[:PAGE_SIZE]
    if len(entries) <= PAGE_SIZE:
        return found, None
    return found, urlsafe_b64encode(name(found[-1]).encode()).decode()


def _read_token(token: str) -> str:
    try:
        return b64decode(token[:TOKEN_LENGTH_MAX].encode("ascii"), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("NextToken Reason: the token is not valid.") from None

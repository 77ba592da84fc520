"""Access keys and callers of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from batonq.api.rest.shapes import Answered, Given
from batonq.core.catalog.machine import KEY_LIFE_MAX_MS, KEY_NAME_LENGTH_MAX

KeyId = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9_-]+$")]
KeyName = Annotated[str, Meta(max_length=KEY_NAME_LENGTH_MAX)]
KeySeconds = Annotated[int, Meta(ge=1, le=KEY_LIFE_MAX_MS // 1000)]
AccountId = Annotated[str, Meta(pattern="^[0-9]{12}$")]
Role = Literal["admin", "write", "read"]


class KeySpec(Given):
    """A new access key."""

    name: KeyName = ""
    role: Role = "write"
    account: AccountId | None = None
    expires_in_seconds: KeySeconds | None = None


class Key(Answered):
    """An access key without its secret."""

    key_id: str
    name: str
    account: str
    role: Role
    created_at_ms: int
    disabled: bool
    expired: bool
    expires_at_ms: int | UnsetType = UNSET


class NewKey(Key, kw_only=True):
    """A key that was just created, with its secret."""

    secret: str


class Keys(Answered):
    keys: list[Key]


class CallerInfo(Answered):
    """Who sent a request."""

    account: str
    key: str
    name: str
    role: Role
    operator: bool

"""Access keys of the server, and who sent a request."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from batonq.api.rest.key_shapes import CallerInfo, Key, Keys, KeySpec, NewKey, Role
from batonq.api.rest.service import SECOND_MS, Answer, Call
from batonq.core.catalog.entries import AccessKey

TOKEN_NAME = "admin token"


async def who_am_i(call: Call) -> Answer:
    caller = call.caller
    if call.broker.dev:
        name = ""
    elif caller.key:
        key = call.broker.find_key(caller.key)
        name = "" if key is None else key.name
    else:
        name = TOKEN_NAME
    return Answer(200, CallerInfo(caller.account, caller.key, name, cast(Role, caller.role), caller.operator))


async def list_keys(call: Call) -> Answer:
    call.require_operator(write=False)
    now_ms = call.broker.now_ms()
    return Answer(200, Keys([shown(key, now_ms) for key in call.broker.access_keys()]))


async def create_key(call: Call) -> Answer:
    call.require_operator(write=True)
    given = call.read(KeySpec)
    key = await call.broker.create_key(
        account=given.account or call.broker.account,
        name=given.name,
        role=given.role,
        lasts_ms=(given.expires_in_seconds or 0) * SECOND_MS,
    )
    return Answer(201, shown_once(key, call.broker.now_ms()))


async def disable_key(call: Call) -> Answer:
    return await _set_disabled(call, True)


async def enable_key(call: Call) -> Answer:
    return await _set_disabled(call, False)


async def _set_disabled(call: Call, disabled: bool) -> Answer:
    call.require_operator(write=True)
    key = await call.broker.disable_key(call.name, disabled)
    return Answer(200, shown(key, call.broker.now_ms()))


def shown(key: AccessKey, now_ms: int) -> Key:
    """A key without its secret."""
    return Key(**_fields(key, now_ms))


def shown_once(key: AccessKey, now_ms: int) -> NewKey:
    """A key that was just created, with its secret."""
    return NewKey(**_fields(key, now_ms), secret=key.secret)


def _fields(key: AccessKey, now_ms: int) -> dict[str, Any]:
    return {
        "key_id": key.id,
        "name": key.name,
        "account": key.account,
        "role": key.role,
        "created_at_ms": key.created_ms,
        "disabled": key.disabled,
        "expired": key.expired(now_ms),
        "expires_at_ms": key.expires_ms or UNSET,
    }

"""What schemathesis has to know to use the API: MessagePack, and not to wait for messages that never come."""

from __future__ import annotations

from typing import Any

import msgspec
import schemathesis

NOT_WAITED_FOR = {"waitSeconds": 20, "receiveWaitSeconds": 20, "delaySeconds": 900}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A wait or a delay that is valid becomes none, so that a case takes milliseconds and messages are found."""
    _at_once(case.body)
    if case.query and case.query.get("wait"):
        case.query["wait"] = 0


def _at_once(body: Any) -> None:
    if isinstance(body, dict):
        for name, most in NOT_WAITED_FOR.items():
            value = body.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
                body[name] = 0
        for member in body.values():
            _at_once(member)
    elif isinstance(body, list):
        for member in body:
            _at_once(member)


@schemathesis.serializer("application/msgpack")
def pack(context: Any, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.msgpack.encode(_fitting(value))


def _fitting(value: Any) -> Any:
    """MessagePack has no integers beyond 64 bits."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return float(value) if abs(value) < 1 << 1000 else 0
    if isinstance(value, dict):
        return {key: _fitting(member) for key, member in value.items()}
    return [_fitting(member) for member in value] if isinstance(value, list) else value


@schemathesis.deserializer("application/msgpack", "application/problem+msgpack")
def unpack(context: Any, response: Any) -> Any:
    return msgspec.msgpack.decode(response.content)


@schemathesis.deserializer("text/html")
def read(context: Any, response: Any) -> str:
    return str(response.content.decode())

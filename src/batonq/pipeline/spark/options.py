"""The options of format("baton"): tables that the reference page is made from, and one way to read a value.

Spark gives options as texts, under names without case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from batonq.errors import InvalidInput

T = TypeVar("T")


class Option(NamedTuple):
    """`default`: as the reference shows it; empty: none."""

    name: str
    default: str
    doc: str


CONNECTION = (
    Option("url", "", "Where: `http(s)://host:port` of a node. `load(…)` and `save(…)` take it as their argument too."),
    Option("accessKey", "`BATON_ACCESS_KEY_ID`", "Access key, for a node that asks for one."),
    Option("secretKey", "`BATON_SECRET_ACCESS_KEY`", "Its secret."),
)


def check_known(options: Mapping[str, str], table: Iterable[Option], *, also: Iterable[str] = ()) -> None:
    """Raises InvalidInput for an option that is not in the table: it would have no effect, and nobody would know.

    `read` and `path` are Spark's way to this source; `also` names more, in lower case.
    """
    names = [option.name for option in table]
    known = {name.lower() for name in names} | {"read", "path", *also}
    unknown = [name for name in options if name.lower() not in known]
    if unknown:
        raise InvalidInput(f"There is no option {unknown[0]!r}; there are {', '.join(names)}.")


class Access(NamedTuple):
    """Where, and the keys for it (both empty: none)."""

    url: str
    access_key: str
    secret_key: str


def access(options: Mapping[str, str]) -> Access:
    """Raises InvalidInput when no address is given, or half of a pair of keys."""
    url = options.get("url") or options.get("path") or ""
    if not url:
        raise InvalidInput("The option url is missing: where is the history, or the node?")
    key = options.get("accessKey") or os.environ.get("BATON_ACCESS_KEY_ID", "")
    secret = options.get("secretKey") or os.environ.get("BATON_SECRET_ACCESS_KEY", "")
    if bool(key) != bool(secret):
        raise InvalidInput("Give both accessKey and secretKey, or neither.")
    return Access(url, key, secret)


def node(options: Mapping[str, str]) -> Access:
    """The same, of what only a node can do."""
    found = access(options)
    if not found.url.startswith(("http://", "https://")):
        raise InvalidInput(f"This needs a node, http(s)://host:port, and the option url is {found.url!r}.")
    return found


def needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise InvalidInput(f"The option {name} is missing.")
    return options[name]


def whole(options: Mapping[str, str], name: str, default: int, *, least: int = 1, most: int | None = None) -> int:
    return _number(options, name, default, int, "a whole number", least, most)


def seconds(options: Mapping[str, str], name: str, default: float, *, least: float = 0.0, most: float) -> float:
    return _number(options, name, default, float, "a number of seconds", least, most)


def number(options: Mapping[str, str], name: str, default: float, *, least: float = 0.0) -> float:
    return _number(options, name, default, float, "a number", least, None)


def _number(
    options: Mapping[str, str], name: str, default: T, kind: Callable[[str], T], what: str, least: T, most: T | None
) -> T:
    given = options.get(name)
    if given is None:
        return default
    upper = f" to {most}" if most is not None else ""
    problem = InvalidInput(f"The option {name} is {what} from {least}{upper}, not {given!r}.")
    try:
        value = kind(given)
    except ValueError:
        raise problem from None
    if not value >= least or (most is not None and not value <= most):  # type: ignore[operator]
        raise problem
    return value


def flag(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    given = options.get(name, str(default)).lower()
    if given not in ("true", "false"):
        raise InvalidInput(f"The option {name} is true or false, not {given!r}.")
    return given == "true"


def time_ms(options: Mapping[str, str], name: str) -> int | None:
    """Milliseconds of an ISO time (UTC unless it says otherwise); None when it is not given."""
    given = options.get(name)
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(f"The option {name} is a time such as 2026-01-31T12:00:00, not {given!r}.") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

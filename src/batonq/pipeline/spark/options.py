"""The options of format("baton"): tables for the reference page, and functions that parse values.

Spark passes options as strings, with case-insensitive names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from batonq.errors import InvalidInput

T = TypeVar("T")


class Option(NamedTuple):
    """`default`: as shown in the reference; empty: none."""

    name: str
    default: str
    doc: str


CONNECTION = (
    Option(
        "url", "", "URL of the node: `http(s)://host:port`. It can also be the argument of `load(…)` and `save(…)`."
    ),
    Option("accessKey", "`BATON_ACCESS_KEY_ID`", "Access key id, for a secured node."),
    Option("secretKey", "`BATON_SECRET_ACCESS_KEY`", "Secret access key."),
)


def check_known(options: Mapping[str, str], table: Iterable[Option], *, also: Iterable[str] = ()) -> None:
    """Raises InvalidInput for an unknown option, which would otherwise be ignored silently.

    `read` and `path` are set by Spark; `also` names more, in lower case.
    """
    names = [option.name for option in table]
    known = {name.lower() for name in names} | {"read", "path", *also}
    unknown = [name for name in options if name.lower() not in known]
    if unknown:
        raise InvalidInput(f"There is no option {unknown[0]!r}; the options are {', '.join(names)}.")


class Access(NamedTuple):
    """A URL and its keys (both empty: none)."""

    url: str
    access_key: str
    secret_key: str


def access(options: Mapping[str, str]) -> Access:
    """Raises InvalidInput if there is no URL, or only one of the keys."""
    url = options.get("url") or options.get("path") or ""
    if not url:
        raise InvalidInput("The option url is missing: the URL of the history or of the node.")
    key = options.get("accessKey") or os.environ.get("BATON_ACCESS_KEY_ID", "")
    secret = options.get("secretKey") or os.environ.get("BATON_SECRET_ACCESS_KEY", "")
    if bool(key) != bool(secret):
        raise InvalidInput("accessKey and secretKey must be set together.")
    return Access(url, key, secret)


def node(options: Mapping[str, str]) -> Access:
    """The same, for operations that need a node."""
    found = access(options)
    if not found.url.startswith(("http://", "https://")):
        raise InvalidInput(f"This needs a node, http(s)://host:port, but the option url is {found.url!r}.")
    return found


def needed(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise InvalidInput(f"The option {name} is missing.")
    return options[name]


def whole(options: Mapping[str, str], name: str, default: int, *, least: int = 1, most: int | None = None) -> int:
    return _number(options, name, default, int, "an integer", least, most)


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
    problem = InvalidInput(f"The option {name} must be {what} from {least}{upper}, not {given!r}.")
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
        raise InvalidInput(f"The option {name} must be true or false, not {given!r}.")
    return given == "true"


def time_ms(options: Mapping[str, str], name: str) -> int | None:
    """An ISO time in milliseconds (default time zone UTC); None if it is not given."""
    given = options.get(name)
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(f"The option {name} must be a time such as 2026-01-31T12:00:00, not {given!r}.") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)

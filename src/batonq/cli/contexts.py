"""Named servers with their credentials, in $XDG_CONFIG_HOME/baton/contexts.json, which only its owner can read."""

from __future__ import annotations

import json
import os
import stat
from typing import Any, NamedTuple

from batonq.cli.parser import did_you_mean
from batonq.errors import InvalidInput, NotFound
from batonq.whole_file import replace_file

FILE_NAME = "contexts.json"
CONTEXTS_MAX = 1_000
FILE_BYTES_MAX = 4 << 20


class Context(NamedTuple):
    """One named server. A field that is not set is empty."""

    url: str
    key: str = ""
    secret: str = ""
    token: str = ""
    account: str = ""
    ca_file: str = ""


class Contexts:
    """All contexts of the user, and the name of the one in use (empty: none)."""

    def __init__(self, path: str, current: str = "", named: dict[str, Context] | None = None) -> None:
        self.path = path
        self.current = current
        self.named = named or {}

    def get(self, name: str) -> Context:
        try:
            return self.named[name]
        except KeyError:
            raise NotFound(
                f"Context {name!r} does not exist.{did_you_mean(name, self.named)} `baton context list` lists the "
                "contexts."
            ) from None

    def save(self) -> None:
        """Write the file again, in one step, readable only for its owner."""
        if len(self.named) > CONTEXTS_MAX:
            raise InvalidInput(f"There are more than {CONTEXTS_MAX} contexts in {self.path}. Remove some first.")
        value = {"current": self.current, "contexts": {name: _given(context) for name, context in self.named.items()}}
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        replace_file(self.path, json.dumps(value, indent=2).encode() + b"\n")


def _given(context: Context) -> dict[str, str]:
    return {name: value for name, value in context._asdict().items() if value}


def path() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "baton", FILE_NAME)


def load() -> Contexts:
    """The contexts of the user; none if there is no file. Raises InvalidInput if it is not valid or not private."""
    place = path()
    try:
        with open(place, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return Contexts(place)
    except OSError as problem:
        raise InvalidInput(f"The contexts in {place} cannot be read: {problem.strerror}.") from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidInput(f"Other users can read {place}, which contains credentials. Run: chmod 600 {place}")
    try:
        return _decode(place, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidInput(f"{place} is not a valid file of contexts. Correct it, or remove it.") from None


def _decode(place: str, value: Any) -> Contexts:
    named = {
        str(name): Context(**{key: str(text) for key, text in given.items() if key in Context._fields})
        for name, given in value["contexts"].items()
    }
    current = str(value.get("current", ""))
    return Contexts(place, current if current in named else "", named)

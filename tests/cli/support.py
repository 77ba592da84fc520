"""Runs commands in this process, against a real server, and checks what they print."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import msgspec

from batonq.cli.json_shapes import shape_of
from batonq.cli.main import main

Found = TypeVar("Found")
WAIT_S = 120
# What a developer may have set must not reach the tests.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("BATON_", "AWS_"))}


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    with mock.patch.dict(os.environ, {**CLEAN, **variables}, clear=True):
        yield


class Terminal(io.StringIO):
    """Output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Keyboard(io.TextIOWrapper):
    """Standard input: a pipe with this content, or a terminal on which someone types it."""

    def __init__(self, text: bytes, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(text), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Shell:
    """`shell("queue", "list")` runs `baton queue list`. `variables` is the environment of all commands."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables

    def __call__(self, *words: str, stdin: bytes = b"", terminal: bool = False, **variables: str) -> Done:
        out, err = (Terminal() if terminal else io.StringIO()), (Terminal() if terminal else io.StringIO())
        keyboard = Keyboard(stdin, terminal=terminal)
        given = {**self.variables, **variables}
        with environment(given), mock.patch("sys.stdin", keyboard), redirect_stdout(out), redirect_stderr(err):
            try:
                code = main(list(words))
            except SystemExit as end:
                code = int(end.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def good(self, *words: str, **more: Any) -> str:
        """The output of a command that must succeed."""
        done = self(*words, **more)
        assert done.code == 0, done
        return done.out

    def json(self, *words: str, code: int = 0, **more: Any) -> Any:
        """The output of a command with --json, which must have the shape that is documented for it."""
        done = self(*words, "--json", **more)
        assert done.code == code, done
        assert len(done.out.splitlines()) == 1, "one line when it is not a terminal"
        value = json.loads(done.out)
        check_shape(words, value)
        return value


def check_shape(words: tuple[str, ...], value: Any) -> None:
    command = next(name for name in (" ".join(words[:2]), words[0]) if _known(name))
    msgspec.convert(value, shape_of(command))


def _known(name: str) -> bool:
    from batonq.cli.json_shapes import OUTPUTS

    return name in OUTPUTS


def wait_for(read: Callable[[], Found | None], what: str = "it") -> Found:
    """Read again until there is something. The limit stops a test that hangs."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = read()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen")

"""The argument parser of every command: argparse, with a suggestion for a misspelled command, flag or value."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

ALTERNATIVES_MAX = 3
WRONG_USAGE = 2
CHOICES_SHOWN_MAX = 12


def did_you_mean(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """` Did you mean queue?`, or an empty text if nothing is similar. `prefix` is put before each suggestion."""
    import difflib  # only needed after a mistake

    found = difflib.get_close_matches(word, list(known), n=ALTERNATIVES_MAX, cutoff=0.7)
    if not found:
        return ""
    *others, last = (prefix + name for name in found)
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


class Parser(argparse.ArgumentParser):
    """Subcommands of a Parser are Parsers too."""

    def format_help(self) -> str:
        """The help with a short usage line: it names what is required, and the list below it has all flags."""
        if self.usage is None:
            self.usage = self._short_usage()
        return super().format_help()

    def _short_usage(self) -> str:
        parts = [self.prog.replace("%", "%%")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return f"{parts[0]} {str(action.metavar).upper()} …"
            name = action.metavar if isinstance(action.metavar, str) else action.dest
            if not action.option_strings:
                shown = f"{name} …" if action.nargs in ("+", "*") else name
                parts.append(f"[{shown}]" if action.nargs in ("?", "*") else shown)
            elif action.required:
                parts.append(f"{action.option_strings[-1]} {name.upper()}")
        return " ".join(parts) + " [flags]"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not (sys.argv[1:] if args is None else args) and self._has_subcommands():
            self.exit(WRONG_USAGE, self.format_help())  # it lists the commands to choose from
        found, rest = super().parse_known_args(args, namespace)
        if rest and not self._has_subcommands():
            self._refuse(rest)
        return found, rest

    def _has_subcommands(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._actions)

    def _refuse(self, rest: Sequence[str]) -> NoReturn:
        flags = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"]
        if not flags:
            self.error(f"too many arguments: {' '.join(rest)}")
        names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        similar = did_you_mean(flags[0].lstrip("-"), [name.lstrip("-") for name in names], prefix="--")
        self.error(f"unknown flag {flags[0]}.{similar}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        is_command = isinstance(action, argparse._SubParsersAction)
        what = "command" if is_command else "value"
        similar = did_you_mean(str(value), choices)
        if not similar and len(choices) <= CHOICES_SHOWN_MAX:
            similar = f" Choose from: {', '.join(choices)}."
        more = f" `{self.prog} --help` lists them." if is_command else ""
        # A subcommand has no name of its own in a message; any other argument is named.
        raise argparse.ArgumentError(None if is_command else action, f"unknown {what} {str(value)!r}.{similar}{more}")

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\nUsage: {self.prog} --help\n")

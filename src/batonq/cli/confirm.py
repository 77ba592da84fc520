"""Ask before something is destroyed."""

from __future__ import annotations

import argparse
import sys

from batonq.cli.exit_codes import WrongUsage
from batonq.errors import BatonError


class NotConfirmed(BatonError):
    """Nothing was changed."""


def add_yes_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask; required when standard input is not a terminal")


def confirm(what: str, *, yes: bool) -> None:
    """Ask the user to agree. `what` says in one sentence what will be done, with numbers.

    Raises NotConfirmed if the user says no, and WrongUsage if there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongUsage(f"{what} Nothing was changed: add --yes to do this without a terminal.")
    print(f"{what}\nContinue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("Nothing was changed.")

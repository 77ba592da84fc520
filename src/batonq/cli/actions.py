"""Help texts of subcommands: the same text is the entry in the list and the description in the command's own help."""

from __future__ import annotations

import argparse
from typing import Any


def add_action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add a subcommand to the result of `add_subparsers`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return parser

"""Commands and their actions: one text each, as an entry of a list and as the sentence above its own help."""

from __future__ import annotations

import argparse
from typing import Any


def add_action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """A subcommand of what `add_subparsers` returned."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return parser

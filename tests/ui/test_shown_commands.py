"""The commands that pages show can be run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from batonq.cli.main import build_parser

TEMPLATES = Path(__file__).resolve().parents[2] / "src" / "batonq" / "api" / "ui" / "templates"
SHOWN = sorted(
    {
        command
        for template in TEMPLATES.glob("*.html")
        for command in re.findall(r'ui\.command\("(baton [^"{}]+)"\)', template.read_text())
    }
)


def test_commands_are_found() -> None:
    assert "baton redrive QUEUE --dry-run" in SHOWN


@pytest.mark.parametrize("command", SHOWN)
def test_a_shown_command_is_valid(command: str) -> None:
    words = shlex.split(command)[1:]
    build_parser(words[0]).parse_args(words)

"""The commands that pages show can be run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from batonq.cli.main import build_parser

TEMPLATES = Path(__file__).resolve().parents[2] / "src" / "batonq" / "api" / "ui" / "templates"


def commands_of(template: str) -> list[str]:
    """The commands that a template shows, with NAME in place of values."""
    shown = [
        re.sub(r'" ~ [\w.]+ ~ "|" ~ [\w.]+$', "NAME", expression).strip('"').replace('\\"', '"')
        for expression in re.findall(r"ui\.command\((.+?)\) }}", template)
        if expression.startswith('"baton ')
    ]
    return [command for text in shown for command in text.split("\\n")]


SHOWN = sorted({command for path in TEMPLATES.glob("*.html") for command in commands_of(path.read_text())})


def test_commands_are_found() -> None:
    assert {
        "baton redrive QUEUE --dry-run",
        "baton topic subscribe NAME QUEUE",
        "baton reader create NAME analytics",
    } <= set(SHOWN)


@pytest.mark.parametrize("command", SHOWN)
def test_a_shown_command_is_valid(command: str) -> None:
    words = shlex.split(command)[1:]
    build_parser(words[0]).parse_args(words)

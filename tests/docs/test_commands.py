"""Every `baton` command that a page or a text of the server mentions exists, with these flags."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from batonq.cli.main import build_parser
from batonq.cli.worker import expand
from tests.docs.pages import ROOT, pages

MENTION = re.compile(r"(?:`|^|\$ )baton (?P<line>[a-z][^`\n|;&>#]*)", re.MULTILINE)
SOURCES = [page for page in pages() if page.name != "cli.md"] + sorted((ROOT / "src").rglob("*.py"))
PARSER = build_parser()


def problem_of(line: str) -> str:
    """What is wrong with a command; empty if nothing is. Only names and flags are checked, not values."""
    words = [word.strip("`,.)\"'") for word in line.split()]
    if words[0] == "worker":
        words = ["worker", *expand(words[1:])]
    parser: argparse.ArgumentParser = PARSER
    while True:
        groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not groups or not words:
            break
        name = words.pop(0)
        if name not in groups[0].choices:
            # `baton worker …`, `baton COMMAND` and `baton cluster up` in the middle of a sentence
            return f"{name} is not a command of {parser.prog}" if re.fullmatch("[a-z]+", name) else ""
        parser = groups[0].choices[name]
    flags = [word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z-]+(=.*)?", word)]
    unknown = [flag for flag in flags if flag not in parser._option_string_actions]
    return f"{parser.prog} has no {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize(
    "page", [page for page in SOURCES if MENTION.search(page.read_text())], ids=lambda page: page.name
)
def test_commands_exist(page: Path) -> None:
    found = [(match["line"], problem_of(match["line"])) for match in MENTION.finditer(page.read_text())]
    assert [problem for problem in found if problem[1]] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert problem_of("quue list") == "quue is not a command of baton"
    assert problem_of("queue list --sorted name") == "baton queue list has no --sorted"
    assert problem_of("worker jobs:app --processes 2") == problem_of("queue list --sort=name") == ""

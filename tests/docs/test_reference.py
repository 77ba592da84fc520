"""Every setting, command, metric and error is in the reference, and what is generated there is up to date."""

from __future__ import annotations

import subprocess
import sys

import pytest

from batonq.api.sqs.errors import Kind
from batonq.cli.main import COMMANDS, build_parser
from batonq.errors import BatonError
from batonq.node import settings
from batonq.node.monitoring import metrics
from batonq.node.operations.pages import Pages
from tests.docs.pages import ROOT
from tools import make_docs

REFERENCE = ROOT / "docs" / "reference"


def _page(name: str) -> str:
    return (REFERENCE / name).read_text()


def test_generated_parts_are_up_to_date() -> None:
    assert [str(page.relative_to(ROOT)) for page in make_docs.outdated()] == []


@pytest.mark.parametrize("name", [field.name for field, _ in settings.documented()])
def test_every_setting_is_documented(name: str) -> None:
    assert f"`--{name.replace('_', '-')}`" in _page("settings.md")


def test_every_command_and_argument_is_documented() -> None:
    page = _page("cli.md")
    commands = list(make_docs.commands(build_parser()))
    assert len(commands) >= len(COMMANDS)
    for parser, _ in commands:
        assert f"### {parser.prog}\n" in page
        section = page.split(f"### {parser.prog}\n")[1].split("\n### ")[0]
        for action in make_docs.options(parser):
            for name in action.option_strings or [f"`{action.metavar or action.dest}`"]:
                assert name in section, f"{name} of {parser.prog}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "batonq", command, "--help"], capture_output=True, text=True, check=True
    )
    assert f"usage: baton {command}" in result.stdout


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda metric: metric.name)
def test_every_metric_is_documented(metric: metrics.Metric) -> None:
    assert f"`{metric.name}`" in _page("metrics.md")


@pytest.mark.parametrize("error", list(make_docs.error_classes()), ids=lambda error: error.__name__)
def test_every_error_is_documented(error: type[BatonError]) -> None:
    assert f"`{error.code}`" in _page("errors.md")


def test_an_error_outside_of_errors_py_has_one_of_its_codes() -> None:
    codes = {error.code for error in make_docs.error_classes()}
    assert {error.code for error in _all_errors(BatonError)} == codes


def _all_errors(error: type[BatonError]) -> list[type[BatonError]]:
    return [error, *(finer for child in error.__subclasses__() for finer in _all_errors(child))]


@pytest.mark.parametrize("kind", make_docs.sqs_kinds(), ids=lambda kind: kind.code)
def test_every_sqs_error_is_documented(kind: Kind) -> None:
    assert f"`{kind.code}`" in _page("errors.md")


def test_every_address_of_the_server_is_documented() -> None:
    page = _page("endpoints.md")
    routes = Pages.__new__(Pages).routes  # nothing is asked of a node as long as nobody calls
    assert [path for path, methods, _ in routes if f"| `{path}` | {methods[0]} |" not in page] == []

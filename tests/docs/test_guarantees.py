"""The tests that the documentation calls as witnesses exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, page_id, pages

_NAMED = re.compile(r"`(?P<file>tests/[\w/.-]+\.py)(?:::(?P<name>[\w:]+))?`")


@cache
def _defined(file: Path) -> frozenset[str]:
    """Everything that a test's node id may name: functions, classes, and functions of classes."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}::{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
        elif isinstance(node, ast.Assign):  # a state machine's test case has no definition of its own
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_named_tests_exist(page: Path) -> None:
    missing = []
    for match in _NAMED.finditer(page.read_text()):
        file = ROOT / match["file"]
        if not file.is_file() or (match["name"] and match["name"] not in _defined(file)):
            missing.append(match[0])
    assert missing == []


def test_every_promise_has_a_witness() -> None:
    page = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    assert [row for row in rows if not _NAMED.search(row)] == []

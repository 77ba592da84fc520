"""Test doubles override only what exists, and every double is checked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.doubles import double

TESTS = Path(__file__).parents[1]
LIBRARIES = ("batonq", "nats")


class Production:
    limit = 3

    def run(self) -> str:
        return "done"


def test_a_double_that_overrides_what_exists_is_left_as_it_is() -> None:
    @double("count")
    class Counting(Production):
        limit = 5

        def __init__(self) -> None:
            self.seen = 0

        def run(self) -> str:
            self.count()
            return super().run()

        def count(self) -> None:
            self.seen += 1

    counting = Counting()
    assert (counting.run(), counting.seen) == ("done", 1)


def test_a_double_of_a_method_that_is_gone_is_refused() -> None:
    with pytest.raises(TypeError, match="Slow overrides walk, which Production does not have"):

        @double()
        class Slow(Production):
            def walk(self) -> str:
                return "slowly"


@pytest.mark.parametrize("adds", ["run", "walk"], ids=["overridden", "not there"])
def test_what_a_double_adds_is_new_and_there(adds: str) -> None:
    with pytest.raises(TypeError, match=f"says that it adds {adds}"):

        @double(adds)
        class Other(Production):
            def run(self) -> str:
                return "otherwise"


def unchecked(path: Path) -> list[str]:
    """Classes of a file that derive from a library's class and are not decorated."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES
        for alias in node.names
    }
    return [
        f"{path.relative_to(TESTS)}:{node.lineno} {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0].split(".")[0] in imported for base in node.bases)
        and not any(ast.unparse(decorator).startswith("double(") for decorator in node.decorator_list)
    ]


def test_every_double_of_the_tests_is_checked() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    assert len(paths) > 200
    assert [found for path in paths for found in unchecked(path)] == []

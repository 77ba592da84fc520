"""The front doors and the node ask a shard by its methods; they do not read its state."""

from __future__ import annotations

import ast
from pathlib import Path

import batonq
from batonq.core.shard.machine import Shard

# The parts of a shard. Its jobs and schedules can be read: they are values.
INTERNALS = {name for name, part in vars(Shard(0)).items() if type(part).__module__.startswith("batonq.core.shard")}
INTERNALS -= {"jobs", "schedules"}
SOURCE = Path(batonq.__file__).parent


def reads_of_internals(source: str) -> list[str]:
    """Expressions such as `host.shard.columns`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in INTERNALS:
            base = node.value
            name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            if name == "shard":
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_nothing_above_the_core_reads_the_state_of_a_shard() -> None:
    paths = [path for layer in ("api", "node") for path in (SOURCE / layer).rglob("*.py")]
    assert len(paths) > 100
    found = {path.relative_to(SOURCE).as_posix(): reads_of_internals(path.read_text()) for path in paths}
    assert {path: reads for path, reads in found.items() if reads} == {}


def test_such_a_read_would_be_found() -> None:
    assert reads_of_internals("def f(host):\n    return host.shard.columns.state[1]") == ["line 2: host.shard.columns"]
    assert reads_of_internals("shard.messages.overlays.get(1)") == ["line 1: shard.messages"]
    assert reads_of_internals("shard.place(1).overlays") == []

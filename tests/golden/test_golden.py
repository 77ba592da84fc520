"""Every scenario gives the trace that is written in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.runner import main, parse, played, scenarios

# What must be told in a file that a person can read.
TOLD = {
    "attempts",
    "dead_letters",
    "dedup",
    "delays_and_retention",
    "fairness",
    "fifo",
    "lifecycle",
    "owners",
    "pausing",
    "priority",
    "purge_and_close",
    "readers",
    "receipts",
    "redrive",
    "two_shards",
}


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_nothing_is_left_untold() -> None:
    assert {path.stem for path in scenarios()} >= TOLD
    for path in scenarios():
        assert any(block.trace for block in parse(path.read_text())), f"{path.name} shows nothing"


def test_a_wrong_trace_is_seen_and_can_be_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "scenario.txt"
    path.write_text("# A scenario.\n\nqueue jobs\nsend jobs a\n----\n> a: #7\n")
    assert main([str(path)]) == 1
    assert main(["--rewrite", str(path)]) == 0
    assert path.read_text().endswith("+0s Sent a #1 jobs: visible +0s, expires +4d\n> a: #1\n")
    assert main([str(path)]) == 0

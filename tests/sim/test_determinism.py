"""The same seed is the same run, byte for byte, in another process too."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from sim.__main__ import main
from sim.run import simulate

SEEDS = (3, 7)


def test_two_runs_of_one_seed_have_the_same_history() -> None:
    first, second = simulate(11), simulate(11)
    assert first.lines == second.lines
    assert first.digest == second.digest


def test_two_seeds_differ() -> None:
    assert simulate(11, steps=50).digest != simulate(12, steps=50).digest


@pytest.mark.parametrize("seed", SEEDS)
def test_other_hash_seeds_make_no_difference(seed: int) -> None:
    """Sets of texts are walked through in another order in each process; nothing may depend on that."""
    said = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "sim", "--seed", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        said.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(said) == 1


def test_the_command_says_the_seed_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--steps", "40"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 5: ok: ")
    assert said.count("\n") == 1


def test_the_command_prints_the_whole_history_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--steps", "40", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "node 1     starts" in said
    assert said.count("call ") > 40


def test_the_command_shows_what_was_violated_and_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--bug", "group-not-locked"]) == 1
    said = capsys.readouterr().out
    assert "VIOLATIONS" in said
    assert re.search(r"fifo: (line|dead)\.fifo, group group \d: message #\d+ .* went out at", said)
    assert "the lines about it:" in said
    assert said.endswith("again: make sim SEED=3 ARGS='--bug group-not-locked'\n")

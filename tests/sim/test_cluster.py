"""A simulated cluster: one seed is one run, a run can be written down and judged again, a life can be paused."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from batonq.log.frames import parse
from batonq.pipeline.reading.archive import Archive
from sim.__main__ import main
from sim.cluster.run import simulate_cluster
from sim.loop import Life, SimLoop
from sim.recording import judge


def test_two_runs_of_one_seed_have_the_same_history() -> None:
    first, second = simulate_cluster(11), simulate_cluster(11)
    assert first.lines == second.lines
    assert first.digest == second.digest != simulate_cluster(12).digest


def test_other_hash_seeds_make_no_difference() -> None:
    """Sets of texts are walked through in another order in each process; nothing may depend on that."""
    said = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "sim", "--cluster", "--seed", "3", "--count", "3"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        said.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(said) == 1


def test_a_history_is_written_and_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history"
    assert main(["--cluster", "--seed", "5", "--history", str(path)]) == 0
    assert main(["--judge", str(path)]) == 0
    ran, judged = capsys.readouterr().out.splitlines()
    assert judged.startswith("seed 5: ok, history ") and judged[-16:] == ran[-16:]


def test_a_history_with_a_violation_is_judged_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history"
    bug = ["--bug", "release-before-commit"]
    seed = next(seed for seed in range(1, 50) if "total-queue" in simulate_cluster(seed, bug=bug[1]).checkers)
    assert main(["--cluster", "--seed", str(seed), "--history", str(path), *bug]) == 1
    assert capsys.readouterr().out.endswith(f"again: make sim SEED={seed} CLUSTER=1 ARGS='--bug {bug[1]}'\n")
    assert any(violation.checker == "total-queue" for violation in judge(path)[1])


def test_the_logs_are_written_as_an_archive(tmp_path: Path) -> None:
    assert main(["--cluster", "--seed", "5", "--archive", str(tmp_path)]) == 0
    archive = Archive.at(f"file://{tmp_path}")
    assert 0 in archive.shards()
    for shard in archive.shards():
        (manifest,) = archive.manifests(shard)
        assert manifest.first == 1 and parse(archive.segment(manifest)).shard == shard


def test_a_life_that_is_paused_goes_on_later_with_what_has_become_due() -> None:
    loop = SimLoop()
    life = Life("a")
    said: list[tuple[str, float]] = []

    async def tick() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            said.append(("tick", loop.time()))

    async def course() -> None:
        task = loop.create_task(tick(), context=life.context)
        await asyncio.sleep(1.5)
        loop.pause(life)
        loop.call_soon(lambda: said.append(("told", loop.time())), context=life.context)
        await asyncio.sleep(5)
        assert said == [("tick", 1.0)]
        loop.resume(life)
        await task

    loop.run_until_complete(course())
    loop.close()
    assert said == [("tick", 1.0), ("told", 6.5), ("tick", 6.5), ("tick", 7.5)]


def test_a_life_that_ends_while_it_is_paused_says_nothing_more() -> None:
    loop = SimLoop()
    life = Life("a")
    said: list[str] = []

    async def course() -> None:
        loop.call_later(1, said.append, "late", context=life.context)
        loop.pause(life)
        life.alive = False
        loop.end_life(life)
        loop.resume(life)
        await asyncio.sleep(2)

    loop.run_until_complete(course())
    loop.close()
    assert not said

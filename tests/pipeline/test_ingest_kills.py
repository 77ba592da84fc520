"""A driver that is killed, at any point: the tables come out as if it had not been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from batonq.pipeline.jobs import ingest
from batonq.pipeline.lake import Lake
from tests.pipeline.job_support import assert_same_rows, run_job
from tests.support.spark import NO_CODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = Path(__file__).parent / "programs" / "ingest_killed.py"
FRAMES = "300"
STEPS = 40  # that three batches take: twelve each, and the tables
LIMIT_S = 1_200


def start(step: str, lake: Path, history: str) -> subprocess.Popen[str]:
    words = ["--lake", str(lake), "--history", history, "--frames", FRAMES, "--master", "local[1]", "--json"]
    words += [word for name, value in NO_CODE.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), step, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (0, -signal.SIGKILL), err
    return out


def test_killed_between_any_two_steps_and_anywhere(spark: SparkSession, busy_logs: str, tmp_path: Path) -> None:
    lake, plain = tmp_path / "lake", tmp_path / "plain"
    seed = int(os.environ.get("BATON_TEST_SEED", "1"))
    chance = random.Random(seed)
    steps = ["batch", str(chance.randrange(STEPS))]
    print(f"BATON_TEST_SEED={seed}: killed at {steps}, then at some moment")
    for step in steps:
        out = ended(start(step, lake, busy_logs))
        assert step != "batch" or out == "killed at batch\n"
    process = start("never", lake, busy_logs)
    _kill_after(process, lake, chance.uniform(0, 1))
    ended(process)
    run_job(spark, ingest, "--frames", FRAMES, lake=lake, history=busy_logs)
    run_job(spark, ingest, "--frames", FRAMES, lake=plain, history=busy_logs)
    one, other = Lake(lake), Lake(plain)
    for table in ("events", "queues"):
        assert_same_rows(one.read(spark, table), other.read(spark, table))
    written = {str(path) for path in (lake / "events").rglob("*.parquet")}
    assert written >= set(one.files("events")), "what the dead left is not part of the table"


def _kill_after(process: subprocess.Popen[str], lake: Path, pause_s: float) -> None:
    """SIGKILL to the driver and its Java, some time after the files of one more batch begin to come."""
    known = set((lake / "events").rglob("*.parquet"))
    until = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < until:
        if set((lake / "events").rglob("*.parquet")) - known:
            time.sleep(pause_s)
            break
        time.sleep(0.02)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass

"""The shared parts of the pipeline's sections: histories, their lakes, a Spark session, and jobs in it."""

from __future__ import annotations

import shutil
import tempfile
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonq.cli.main import build_parser
from batonq.cli.pipeline import JOBS
from bench import histories
from bench.clients import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"


class Lab:
    """Each history and lake is created once; everything is under one directory, which is removed with the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: set[Path] = set()

    @cached_property
    def spark(self) -> SparkSession:
        from batonq.pipeline.spark.session import start

        return start("bench", master=MASTER)

    def history(self, events: int) -> str:
        """A data directory with about this many events."""
        directory = self._directory / f"history-{events}"
        if directory not in self._made:
            print(f"  making a history of {events:,} events", flush=True)
            histories.make(str(directory), events)
            self._made.add(directory)
        return str(directory)

    def lake(self, events: int) -> str:
        """The lake that `baton pipeline ingest` creates from it."""
        directory = self._directory / f"lake-{events}"
        if directory not in self._made:
            self.run("ingest", directory, events)
            self._made.add(directory)
        return str(directory)

    def files(self, events: int, table: str) -> list[str]:
        """The files of a table of that lake."""
        from batonq.pipeline.lake import Lake

        return Lake(self.lake(events)).files(table)

    def events(self, events: int) -> DataFrame:
        """The events of that lake."""
        from batonq.pipeline.lake import Lake

        return Lake(self.lake(events)).read(self.spark, "events")

    def forget(self, events: int) -> None:
        """Delete a history and its lake."""
        for kind in ("history", "lake"):
            directory = self._directory / f"{kind}-{events}"
            shutil.rmtree(directory, ignore_errors=True)
            self._made.discard(directory)

    def scratch(self, name: str) -> Path:
        """A path for a round's output, not created yet."""
        self._directory.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._directory)) / name

    def arguments(self, job: str, lake: Path | str, events: int) -> list[str]:
        """A command line of `baton` for a job."""
        common = ["--lake", str(lake), "--history", self.history(events), "--master", MASTER, "--quiet", "--json"]
        return ["pipeline", job, *common]

    def run(self, job: str, lake: Path | str, events: int) -> dict[str, Any]:
        """Run a job in this session. Returns its summary."""
        from batonq.pipeline.jobs.context import Context

        options = build_parser("pipeline").parse_args(self.arguments(job, lake, events))
        outcome = import_module(JOBS[job]).run(Context(options, spark=self.spark))
        if outcome.code:
            raise BenchError(f"{job}: {outcome.text}")
        summary: dict[str, Any] = outcome.summary
        return summary

    def close(self) -> None:
        if "spark" in self.__dict__:
            self.spark.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

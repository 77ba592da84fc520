"""What a job works with: its options, the lake, the session, the history, and a way to say how far it is.

A job is a module with `HELP`, `add_arguments(parser)` and `run(context) -> Outcome`. It imports Spark only in `run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.problems import is_spark, not_started
from batonq.pipeline.jobs.quiet import stderr_aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from batonq.pipeline.lake import Lake
    from batonq.sync import Baton

BAR_WIDTH = 30


@dataclass(slots=True)
class Outcome:
    """`code`: 0, or 1 when something was found; `summary` is what --json prints, `text` what is printed else."""

    code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class Keys(NamedTuple):
    access: str
    secret: str


class Context:
    """One run of a job. Close it: the session that it started is stopped."""

    def __init__(self, options: argparse.Namespace, *, spark: SparkSession | None = None) -> None:
        self.options = options
        self._given = spark
        self._bar = Bar(sys.stderr, shown=not (options.quiet or options.json) and sys.stderr.isatty())

    @property
    def history(self) -> str:
        """Where history is read: a node, a data directory or an archive."""
        return str(self.options.history)

    @property
    def keys(self) -> Keys:
        """Of the node, if it asks for them: from the command line, else from the environment."""
        return Keys(
            self.options.access_key or os.environ.get("BATON_ACCESS_KEY_ID", ""),
            self.options.secret_key or os.environ.get("BATON_SECRET_ACCESS_KEY", ""),
        )

    @property
    def source_options(self) -> dict[str, str]:
        """For `spark.read.format("baton").options(…)`."""
        given = {"url": self.history, "accessKey": self.keys.access, "secretKey": self.keys.secret}
        return {name: value for name, value in given.items() if value}

    @cached_property
    def lake(self) -> Lake:
        from batonq.pipeline.lake import Lake

        return Lake(self.options.lake)

    @property
    def spark(self) -> SparkSession:
        return self._given or self._started

    @cached_property
    def _started(self) -> SparkSession:
        from batonq.pipeline.spark.session import start

        self.progress("starting Spark")
        settings = settings_of(self.options.conf)
        if self.options.debug:
            return start("baton", master=self.options.master, settings=settings)
        with stderr_aside() as said:
            try:
                session = start("baton", master=self.options.master, settings={"spark.log.level": "OFF", **settings})
            except Exception as problem:
                if not is_spark(problem):
                    raise
                raise InvalidInput(f"Spark did not start. {not_started(problem, said.text())}") from problem
        self.progress("")
        return session

    def client(self) -> Baton:
        """A client of the node that --history names."""
        if not self.history.startswith(("http://", "https://")):
            raise InvalidInput(
                f"This asks a node to do something, and {self.history} is none: --history http://host:port"
            )
        from batonq.sync import Baton

        return Baton(self.history, access_key=self.keys.access or None, secret_key=self.keys.secret or None)

    def progress(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being done, on a terminal; each call takes the place of the one before."""
        self._bar.show(text, done, total)

    def close(self) -> None:
        self._bar.show("")
        if "_started" in self.__dict__:
            self._started.stop()
        if "lake" in self.__dict__:
            self.lake.close()


def settings_of(given: list[str]) -> dict[str, str]:
    """--conf key=value, as often as it was given."""
    settings = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--conf takes key=value, such as spark.sql.shuffle.partitions=8, not {one!r}.")
        settings[key] = value
    return settings


class Bar:
    """A line of a terminal that is written over and over."""

    def __init__(self, stream: TextIO, *, shown: bool) -> None:
        self._stream = stream
        self._shown = shown
        self._width = 0

    def show(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if not self._shown:
            return
        line = bar_line(text, done, total)
        self._stream.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
        self._stream.flush()
        self._width = len(line)


def bar_line(text: str, done: int | None, total: int | None) -> str:
    if done is None:
        return text
    if not total:
        return f"{text}  {done:,}"
    filled = min(BAR_WIDTH, BAR_WIDTH * done // total)
    return f"{text}  [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:,} of {total:,}"

"""The context of a job: options, lake, session, history and progress.

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
    """`code`: 0, or 1 if the job found problems; `summary` is printed by --json, `text` otherwise."""

    code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class Keys(NamedTuple):
    access: str
    secret: str


class Context:
    """One run of a job. Closing it stops the session that it started."""

    def __init__(self, options: argparse.Namespace, *, spark: SparkSession | None = None) -> None:
        self.options = options
        self._given = spark
        self._bar = Bar(sys.stderr, shown=not (options.quiet or options.json) and sys.stderr.isatty())

    @property
    def history(self) -> str:
        """Source of the history: a node, a data directory or an archive."""
        return str(self.options.history)

    @property
    def keys(self) -> Keys:
        """Keys for the node, if needed: from the command line, otherwise from the environment."""
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
        """A client of the node in --history."""
        if not self.history.startswith(("http://", "https://")):
            raise InvalidInput(
                f"This job needs a node, but --history is {self.history}. Use --history http://host:port"
            )
        from batonq.sync import Baton

        return Baton(self.history, access_key=self.keys.access or None, secret_key=self.keys.secret or None)

    def progress(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Show the current step on a terminal; each call replaces the previous one."""
        self._bar.show(text, done, total)

    def close(self) -> None:
        self._bar.show("")
        if "_started" in self.__dict__:
            self._started.stop()


def settings_of(given: list[str]) -> dict[str, str]:
    """The --conf key=value options."""
    settings = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--conf must be key=value, for example spark.sql.shuffle.partitions=8, not {one!r}.")
        settings[key] = value
    return settings


class Bar:
    """A terminal line that is overwritten repeatedly."""

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
